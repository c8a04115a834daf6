"""What a warm run asks of its host: the work of one run is counted, not timed, so that it cannot quietly grow."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ringfence import SandboxManager
from ringfence.evidence.correlation import Correlation

pytestmark = [pytest.mark.needs("native"), pytest.mark.timeout(120), pytest.mark.once]
MOST_CALLS = 1700
"""Of functions, ours, the library's and built-in ones; about 1,500 when this was written.

The filing of the run before is among them.
"""
OPENING = {"posix.open", "_io.open", "_socket.socketpair", "posix.pipe", "posix.mkdir", "_thread.start_new_thread"}


class Counting:
    """Counts what the thread of the event loop calls."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __enter__(self) -> Counting:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            self.calls[frame.f_code.co_name] += 1
        elif event == "c_call":
            self.calls[f"{called.__module__}.{called.__name__}"] += 1


async def test_a_warm_run_opens_nothing_and_takes_a_bounded_number_of_calls(tmp_path: Path) -> None:
    counted: list[Counter[str]] = []
    async with SandboxManager(home=tmp_path) as manager:
        for _ in range(40):  # classes whose methods are written when they are often used, first pages of a journal
            await manager.execute_code("python", "print(1)")
        for _ in range(5):
            with Counting() as counting:
                result = await manager.execute_code("python", "print(1)")
            assert result.stdout == "1\n"
            counted.append(counting.calls)
    fewest = min(counted, key=Counter.total)
    assert fewest.total() <= MOST_CALLS, fewest.most_common(40)
    assert not fewest.keys() & OPENING, fewest.keys() & OPENING


async def test_a_silent_stream_is_never_read(tmp_path: Path) -> None:
    reads = []
    async with SandboxManager(home=tmp_path) as manager:
        for _ in range(5):
            with Counting() as counting:
                result = await manager.execute_code("python", "print(1)")
            assert (result.stdout, result.stderr) == ("1\n", "")
            reads.append(counting.calls["posix.read"])
    # what was said, and nothing more: that standard error was silent and that both have ended came with the events
    assert min(reads) == 1, reads


async def test_the_files_of_a_run_are_opened_once_each_and_little_else_is(tmp_path: Path) -> None:
    counted: list[Counter[str]] = []
    async with SandboxManager(home=tmp_path, session_id="p", correlation=Correlation(project_id="p")) as manager:
        for _ in range(10):
            await manager.execute_code("python", "print(1)")
        for _ in range(5):
            with Counting() as counting:
                result = await manager.execute_code("python", "print(1)")
            assert result.kept_in is not None
            counted.append(counting.calls)
    fewest = min(counted, key=Counter.total)
    # the home and four new files; by `openat2` the project, its artifacts, their count, the draft, the session's state
    assert fewest["posix.open"] <= 5, fewest
    assert fewest["_openat2"] <= 5, fewest
    assert fewest["posix.fstatvfs"] <= 2, fewest
    assert fewest["_split"] <= 1, "whether a name is one of ours is found out once"
