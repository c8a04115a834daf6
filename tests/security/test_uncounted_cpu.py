"""Attack: have the work done by processes that nobody waits for, where no cgroup counts what they use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from ringfence.capability.limits import Limits
from ringfence.isolation.linux.cgroup_contract import CgroupHost, CgroupReport
from ringfence.isolation.linux.cgroups import NoHost
from ringfence.isolation.linux.workshop import Workshop
from ringfence.isolation.native.backend import NativeBackend
from ringfence.operation import Language
from ringfence.ports import Job, WorkerSpec
from ringfence.wiring.box import native_backend
from ringfence.wiring.settings import Settings

pytestmark = [pytest.mark.guarantee(7), pytest.mark.needs("native")]

WORK = """
import os, signal, sys, time
done, say = os.pipe()
if os.fork() == 0:
    ORPHAN
    while time.process_time() < 0.5:
        pass
    os.write(say, b'.')
    signal.pause()
os.read(done, 1)
time.sleep(1)  # several looks
print('done', flush=True)
END
"""


@pytest.fixture
def uncounted(tmp_path: Path) -> Iterator[NativeBackend]:
    """A backend that finds no cgroup."""
    known: Future[CgroupHost] = Future()
    known.set_result(NoHost(CgroupReport("none", frozenset(), "a test", None)))
    backend = native_backend(Settings(home=tmp_path))
    assert isinstance(backend, NativeBackend)
    backend._workshop = Workshop(Limits(), known)
    yield backend
    backend.close()


@pytest.mark.parametrize("orphan", ["pass", "os.fork() and os._exit(0)"])
@pytest.mark.parametrize(("end", "killed_by"), [("sys.exit()", None), ("signal.pause()", "test")])
def test_what_a_child_used_that_nobody_waited_for_is_charged(
    uncounted: NativeBackend, orphan: str, end: str, killed_by: str | None
) -> None:
    worker = uncounted.start(WorkerSpec())
    code = WORK.replace("ORPHAN", orphan).replace("END", end)

    def kill(*_: object) -> None:
        if killed_by is not None:
            worker.kill(killed_by)

    ending = asyncio.run(worker.run(Job(Language.PYTHON, code, (), {}, b"", Limits()), kill))
    worker.discard()
    assert (ending.killed_by, ending.stdout) == (killed_by, b"done\n")
    assert ending.cpu_ms > 400
