"""A box that dies while it is being built, as when its zygote is ended meanwhile, leaves no descriptor behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringfence.authority.profile import Isolation
from ringfence.isolation.linux import observe, workshop
from ringfence.isolation.native import backend as native
from ringfence.isolation.native.backend import NativeBackend
from ringfence.isolation.native.fork_server import ForkServer
from ringfence.ports import Backend, WorkerSpec
from ringfence.wiring.box import make_backend
from ringfence.wiring.settings import Settings
from ringfence.workspaces.session import SessionWorkspace

pytestmark = [pytest.mark.needs("native")]


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    made = make_backend(Settings(home=tmp_path, isolation=Isolation.NATIVE))
    yield made
    made.close()


@pytest.mark.parametrize(
    "step",
    [
        (native, "pid_of"),
        (workshop, "Anchor"),
        (workshop, "wait_until_at_rest"),
        (observe, "look"),
        (workshop, "watch_ends"),
    ],
    ids=lambda step: f"{step[0].__name__.rpartition('.')[2]}.{step[1]}",
)
def test_whatever_step_finds_it_dead(backend: Backend, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str]) -> None:
    backend.start(WorkerSpec()).discard()
    before = open_descriptors()

    def dead(*_: object) -> None:
        raise ProcessLookupError("no such process")

    monkeypatch.setattr(*step, dead)
    with pytest.raises(ProcessLookupError):
        backend.start(WorkerSpec())
    assert open_descriptors() == before


@pytest.mark.parametrize(
    "step",
    [
        (SessionWorkspace, "generation"),
        (NativeBackend, "_offset"),
        (ForkServer, "request"),
        (ForkServer, "open_work_directory"),
        (ForkServer, "spawn"),
        (native, "pid_of"),
        (observe, "look"),
    ],
    ids=lambda step: step[1],
)
def test_whatever_step_fails_over_a_session(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str]
) -> None:
    spec = WorkerSpec(session_id="s")
    backend.start(spec).discard()
    before = open_descriptors()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(*step, full)
    with pytest.raises(OSError, match="too many open files"):
        backend.start(spec)
    assert open_descriptors() == before


def open_descriptors() -> set[str]:
    names = os.listdir("/proc/self/fd")
    return {
        f"{name} {os.readlink(f'/proc/self/fd/{name}')}" for name in names if os.path.exists(f"/proc/self/fd/{name}")
    }
