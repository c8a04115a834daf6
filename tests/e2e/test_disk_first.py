"""Nothing of a run is seen by anybody before its beginning is on the disk, however early it started."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ringfence import ExecutionResult, SandboxManager
from ringfence.journal.journal import Journal

pytestmark = pytest.mark.needs("native")


class Gate:
    """The way to the disk, closed until somebody opens it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.is_open = asyncio.Event()

    async def on_disk(self, _: Journal) -> None:
        self.reached.set()
        await self.is_open.wait()


async def held_up(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    start: Callable[[SandboxManager], Awaitable[ExecutionResult]],
    look: Callable[[], None] = lambda: None,
    session_id: str | None = None,
) -> ExecutionResult:
    """Return what came of a run whose beginning the disk took only after somebody had looked."""
    async with SandboxManager(home=home, session_id=session_id) as manager:
        for _ in range(3):  # a process that lives for long notes what begins
            await manager.execute_code("python", "pass")
        gate = Gate()
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "on_disk", lambda journal: gate.on_disk(journal))
            run = asyncio.ensure_future(start(manager))
            await gate.reached.wait()
            for _ in range(20):  # whatever could be told now is told
                await asyncio.sleep(0)
            look()
            assert not run.done()
            gate.is_open.set()
            return await run


def test_a_run_that_is_listened_to_says_nothing_before_its_beginning_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    def look() -> None:
        assert heard == []

    result = asyncio.run(
        held_up(
            tmp_path,
            monkeypatch,
            lambda manager: manager.execute_code(
                "python", "print(1)", on_output=lambda _, text: heard.append(str(text))
            ),
            look,
        )
    )
    assert result.stdout == "1\n"
    assert heard


def test_what_nobody_sees_starts_at_once_and_is_told_when_its_beginning_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = asyncio.run(held_up(tmp_path, monkeypatch, lambda manager: manager.execute_code("python", "print(1)")))
    assert result.stdout == "1\n"


def test_files_of_a_session_are_kept_only_when_the_beginning_of_their_run_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> None:
        assert list(tmp_path.rglob("left.txt")) == []

    result = asyncio.run(
        held_up(
            tmp_path,
            monkeypatch,
            lambda manager: manager.execute_code("python", "open('left.txt', 'w').write('x')"),
            look,
            session_id="s1",
        )
    )
    assert result.exit_code == 0
    assert list(tmp_path.rglob("left.txt"))
