"""Stays with a command in an AIO service until it has ended, passing on what it says, and ends it when it must."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from contextlib import suppress
from typing import Final

from ringfence.dataclass import dataclass, field
from ringfence.errors import RingfenceError, TimedOut
from ringfence.isolation.aio.commands import Bash, BashCommand
from ringfence.isolation.aio.program import Program
from ringfence.isolation.capture import Capture, Listener
from ringfence.isolation.ending import told
from ringfence.outcome import OnOutput
from ringfence.ports import Ending, Job
from ringfence.wire.transport import Dropped

_LOOK_SECONDS: Final = 20.0
"""How long one question for more output waits there."""
_GRACE_SECONDS: Final = 5.0
"""How long after its limit a command may still be said to run, before we have it killed ourselves."""
_DRAIN_SECONDS: Final = 30.0
_KILL_SECONDS: Final = 10.0
_MOST_STATUS: Final = 255
_MOST_SIGNAL: Final = 64
_PAUSES: Final = (0.02, 0.5)


@dataclass(slots=True)
class Following:
    """One command, from its start to its end."""

    bash: Bash
    wall_seconds: float
    stdout: Capture
    stderr: Capture
    most_output: int | None = None
    killed_by: str | None = field(default=None, init=False)
    _wanted: str | None = field(default=None, init=False)

    def end(self, why: str) -> None:
        """Have it killed at the next look, unless it is over by then."""
        self._wanted = self._wanted or why

    async def until_over(self, command: BashCommand) -> BashCommand:
        """Stay with a command that was started until it has ended."""
        deadline = time.monotonic() + self.wall_seconds + _GRACE_SECONDS
        pause = _PAUSES[0]
        while command.is_under_way:
            left = deadline - time.monotonic()
            if left <= 0:
                self.end("wall_timeout")
            if self._wanted is not None:
                self.killed_by = self._wanted
                await self.kill(command.session_id)
                return command
            command = await self.bash.output(command, wait_seconds=min(left, _LOOK_SECONDS))
            if self._tell(command):
                pause = _PAUSES[0]
            elif command.is_under_way:
                # one that answers at once without anything to say would have us ask as fast as the line allows
                await asyncio.sleep(min(pause, left))
                pause = min(2 * pause, _PAUSES[1])
        await self._drain(command)
        if command.status in ("timed_out", "hard_timeout"):
            self.killed_by = "wall_timeout"
        elif command.status != "completed":
            self.killed_by = "unknown"
        return command

    async def _drain(self, command: BashCommand) -> None:
        """Take what is left of the output of a command that has ended."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline and self._wanted is None:
            command = await self.bash.output(command)
            if not self._tell(command):
                return

    def _tell(self, command: BashCommand) -> bool:
        for capture, text in ((self.stdout, command.stdout), (self.stderr, command.stderr)):
            if text:
                capture.add(text.encode("utf-8", "surrogatepass"))
        if self.most_output is not None and self.stdout.seen + self.stderr.seen > self.most_output:
            self.end("budget")
        return bool(command.stdout or command.stderr)

    async def kill(self, session_id: str) -> None:
        """Have everything killed that the service knows of in a session."""
        with suppress(RingfenceError, TimeoutError):  # a service that is gone has ended it, or nobody can
            async with asyncio.timeout(_KILL_SECONDS):
                await self.bash.kill(session_id)


@dataclass(frozen=True, slots=True)
class Followed:
    """How a command ended, as far as anybody but the service can tell."""

    ending: Ending
    lost: RingfenceError | None = None
    """What went wrong on the way to it after it had begun: how it ended, and whether it has, nobody knows."""


async def follow(bash: Bash, program: Program, job: Job, on_output: OnOutput | None = None) -> Followed:
    """Run a program to its end.

    Raises:
        RingfenceError: The service did not start it.
    """
    listener = None if on_output is None else Listener(on_output, lambda why: following.end(why))
    limits = job.limits
    stdout, stderr = (
        Capture("stdout", limits.stdout_bytes, listener),
        Capture("stderr", limits.stderr_bytes, listener),
    )
    following = Following(bash, limits.wall_seconds, stdout, stderr, job.most_output)
    # a name of ours: a command whose start was never answered can be killed by it
    session = f"ringfence-{secrets.token_hex(8)}"
    lost: RingfenceError | None = None
    status: int | None = None
    started = time.perf_counter()
    try:
        begun = await bash.exec(
            program.command,
            session_id=session,
            exec_dir=program.directory,
            env=program.env,
            in_background=True,
            hard_seconds=limits.wall_seconds,
        )
        try:
            status = (await following.until_over(begun)).exit_code
        except RingfenceError as error:
            lost = error
    except TimedOut as error:  # it may have begun
        lost = error
    except Dropped as error:
        if not error.sent:
            raise
        lost = error
    except BaseException:
        await asyncio.shield(following.kill(session))
        raise
    if lost is not None:
        await following.kill(session)
    elapsed = time.perf_counter() - started
    with suppress(RingfenceError):
        await bash.close_session(session)
    if listener is not None and listener.error is not None:
        raise listener.error
    return Followed(_ending(status, following, elapsed), lost)


def _ending(status: int | None, following: Following, elapsed: float) -> Ending:
    killed_by, signal_number = following.killed_by, None
    if killed_by is not None:
        status = None
    elif status is None or not -_MOST_SIGNAL <= status <= _MOST_STATUS:
        status, killed_by = None, "unknown"
    elif status < 0:
        signal_number, status = -status, None
    # a shell says it as a status, unless the program has taken its place
    if signal.SIGXCPU in (signal_number, (status or 0) - 128):
        status, signal_number, killed_by = None, None, "cpu_timeout"
    return told(
        (following.stdout, following.stderr),
        exit_code=status,
        signal=signal_number,
        killed_by=killed_by,
        elapsed_seconds=elapsed,
        cpu_ms=None,
        memory_peak_bytes=None,
    )
