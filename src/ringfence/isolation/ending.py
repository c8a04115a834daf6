"""The end of a guest, as every kind of box waits for it and tells it: what the kernel saw and what was captured."""

from __future__ import annotations

import asyncio
import contextlib
import os
from signal import SIGXCPU

from ringfence.capability.limits import Limits
from ringfence.isolation.capture import Capture
from ringfence.ports import Ending

# the clocks behind a limit and behind what is counted are not the same
_NEARLY_A_SECOND_US = 900_000


async def until_over(over: asyncio.Event) -> None:
    """Wait for the end, however often the caller is cancelled meanwhile."""
    while not over.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await over.wait()


def seen_by_the_kernel(wait_status: int | None) -> tuple[int | None, int | None]:
    """Return the exit code of a guest or the signal it died of; neither, where nobody was left to see it."""
    if wait_status is None:
        return None, None
    if os.WIFSIGNALED(wait_status):
        return None, os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status), None


def whole_cpu_seconds(limits: Limits) -> int:
    """Return after how much of its own CPU time the kernel tells a process that there is no more."""
    return max(1, int(limits.cpu_seconds))


def used_up_its_time(signal_number: int | None, cpu_us: int, limits: Limits) -> bool:
    """Whether a guest died of that; of the same signal, sent by itself long before, it died by its own hand."""
    return signal_number == SIGXCPU and cpu_us >= whole_cpu_seconds(limits) * _NEARLY_A_SECOND_US


def told(
    captures: tuple[Capture, Capture],
    *,
    exit_code: int | None,
    signal: int | None,
    killed_by: str | None,
    elapsed_seconds: float,
    cpu_ms: int | None,
    memory_peak_bytes: int | None,
    tasks_peak: int | None = None,
) -> Ending:
    """Put together what was seen of an end, and what is kept of both streams."""
    (stdout, stdout_left_out), (stderr, stderr_left_out) = (capture.finish() for capture in captures)
    return Ending(
        exit_code=exit_code,
        signal=signal,
        killed_by=killed_by,
        stdout=stdout,
        stderr=stderr,
        stdout_bytes=captures[0].seen,
        stderr_bytes=captures[1].seen,
        stdout_left_out=stdout_left_out,
        stderr_left_out=stderr_left_out,
        elapsed_seconds=elapsed_seconds,
        cpu_ms=cpu_ms or 0,
        memory_peak_bytes=memory_peak_bytes,
        tasks_peak=tasks_peak,
    )
