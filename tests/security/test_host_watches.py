"""Attack the host's watch over a run: use up what its user may watch, before the run, at its begin and at its end."""

from __future__ import annotations

import asyncio
import errno
import os
import select
from pathlib import Path
from typing import Any

import pytest
from tests.security.conftest import BUILT_HERE

from ringfence.authority.profile import Isolation
from ringfence.capability.limits import Limits
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.linux.parked import ParkedWorker
from ringfence.operation import Language
from ringfence.ports import Job, WorkerSpec
from ringfence.wiring.box import make_backend
from ringfence.wiring.settings import Settings

pytestmark = pytest.mark.guarantee(15)


class Full:
    """What an epoll is to a host whose user may watch no more: a guest of an ordinary user can bring it there."""

    def __init__(self, events: select.epoll, room: int = 0) -> None:
        """Stand in front of the real one, with room for so many more."""
        self._events = events
        self._room = room

    def __getattr__(self, name: str) -> Any:
        """Refuse what needs room."""
        if name == "register":
            self._room -= 1
        if name == "register" and self._room < 0:
            raise OSError(errno.ENOSPC, "no space left on device")
        return getattr(self._events, name)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("backend", BUILT_HERE, indirect=True)
async def test_a_run_ends_also_when_nothing_more_can_be_watched(backend: str, tmp_path: Path, *, killed: bool) -> None:
    made = make_backend(Settings(home=tmp_path, isolation=Isolation(backend)))
    try:
        worker = made.start(WorkerSpec())
        assert isinstance(worker, ParkedWorker)
        worker.events = Full(worker.events)  # type: ignore[assignment]
        code = f"import os, signal\nif os.fork() == 0 or {killed}:\n    signal.pause()"
        job = Job(Language.PYTHON, code, (), {}, b"", Limits(wall_seconds=1.0))
        ending = await asyncio.wait_for(worker.run(job, None), 10)
        assert (ending.exit_code, ending.killed_by) == ((None, "wall_timeout") if killed else (0, None))
        worker.discard()
    finally:
        made.close()


class Company:
    """Somebody who stays with a run and says nothing."""

    def __init__(self, terminal: tuple[int, int] | None = None) -> None:
        """With a terminal of that size, if any."""
        self.terminal = terminal
        self.idle_seconds: float | None = None
        self.ports: tuple[int, ...] = ()

    async def attach(self, controls: object) -> None:
        """Take them and do nothing with them."""

    def hear(self, name: str, data: bytes) -> None:
        """Let it be said."""


def is_watched(loop: Any, worker: ParkedWorker) -> bool:
    """Whether anything is still to happen in the loop for a run of this worker."""
    return loop.remove_reader(worker.events.fileno()) or any(not timer.cancelled() for timer in loop._scheduled)


@pytest.mark.parametrize("backend", BUILT_HERE, indirect=True)
async def test_a_process_that_cannot_be_watched_does_not_begin(backend: str, tmp_path: Path) -> None:
    made = make_backend(Settings(home=tmp_path, isolation=Isolation(backend)))
    try:
        worker = made.start(WorkerSpec())
        assert isinstance(worker, ParkedWorker)
        before = len(os.listdir("/proc/self/fd"))
        worker.events = Full(worker.events)  # type: ignore[assignment]
        job = Job(Language.PYTHON, "print(1)", (), {}, b"", Limits())
        with pytest.raises(IsolationUnavailable, match="cannot be watched"):
            await worker.run(job, None, attached=Company())
        assert len(os.listdir("/proc/self/fd")) == before
        assert not is_watched(asyncio.get_running_loop(), worker)
        worker.discard()
    finally:
        made.close()


@pytest.mark.parametrize("backend", BUILT_HERE, indirect=True)
async def test_a_terminal_that_cannot_be_watched_ends_its_run(backend: str, tmp_path: Path) -> None:
    made = make_backend(Settings(home=tmp_path, isolation=Isolation(backend)))
    try:
        worker = made.start(WorkerSpec(terminal=True))
        assert isinstance(worker, ParkedWorker)
        worker.events = Full(worker.events, room=1)  # type: ignore[assignment]
        job = Job(Language.PYTHON, "import time; time.sleep(60)", (), {}, b"", Limits())
        ending = await asyncio.wait_for(worker.run(job, None, attached=Company((24, 80))), 10)
        assert ending.killed_by == "unknown"
        worker.discard()
    finally:
        made.close()


@pytest.mark.parametrize("company", [None, Company()], ids=["alone", "attached"])
@pytest.mark.parametrize("call", ["add_reader", "call_at", "add_writer"])
@pytest.mark.parametrize("backend", BUILT_HERE, indirect=True)
async def test_a_watch_that_cannot_begin_leaves_nothing_in_the_loop(
    backend: str, call: str, company: Company | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_backend(Settings(home=tmp_path, isolation=Isolation(backend)))
    loop = asyncio.get_running_loop()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    try:
        worker = made.start(WorkerSpec())
        assert isinstance(worker, ParkedWorker)
        monkeypatch.setattr(loop, call, full)
        more_than_a_pipe = bytes(1 << 20)
        job = Job(Language.PYTHON, "import time; time.sleep(60)", (), {}, more_than_a_pipe, Limits())
        with pytest.raises(OSError, match="no space left"):
            await worker.run(job, None, attached=company)
        monkeypatch.undo()
        assert not is_watched(loop, worker)
        worker.discard()  # closes no number twice
    finally:
        made.close()
