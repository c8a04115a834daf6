"""Bare: the same program without any isolation, which every ratio is taken to."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

Timed = Callable[[], float]


class WrongOutput(RuntimeError):
    """A measured program did not print what it should: its time means nothing."""


def interpreter() -> str:
    """Return the guest's own binary: a virtual environment's python is a link that starts slower."""
    return str(getattr(sys, "_base_executable", "") or sys.executable)


def python(code: str) -> list[str]:
    """Return the command that runs `code` bare."""
    return [interpreter(), "-I", "-c", code]


def timed(command: Sequence[str], expected: bytes) -> Timed:
    """Return a function that runs `command` once and gives the seconds it took, its output checked."""

    def call() -> float:
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, check=False)
        taken = time.perf_counter() - start
        if done.stdout != expected or done.returncode:
            raise WrongOutput(f"{command[0]} exited with {done.returncode}: {(done.stderr or done.stdout)[-200:]!r}")
        return taken

    return call


def crowd(call: Timed, runs: int, callers: int) -> float:
    """Return the seconds that `runs` calls from `callers` threads take."""
    with ThreadPoolExecutor(callers) as pool:
        # Threads start before the clock does.
        list(pool.map(lambda _: None, range(callers)))
        start = time.perf_counter()
        list(pool.map(lambda _: call(), range(runs)))
        return time.perf_counter() - start
