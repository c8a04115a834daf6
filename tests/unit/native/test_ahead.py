"""What was started ahead is used by the first run that it fits, and is gone when nobody takes it over."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence import wiring
from ringfence.capability.limits import Limits
from ringfence.errors import InvalidRequest
from ringfence.isolation.linux.parked import ParkedWorker
from ringfence.isolation.native import ahead
from ringfence.isolation.native.ahead import Ahead
from ringfence.isolation.native.backend import NativeBackend
from ringfence.ports import WorkerSpec

pytestmark = pytest.mark.needs("native")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Ahead]:
    """One on its way for the home of this test."""
    ahead.start(tmp_path)
    (coming,) = ahead._started
    yield coming
    ahead._let_go_of_all()
    assert ahead._started == []
    assert is_gone(coming)


def backend_in(home: Path) -> NativeBackend:
    backend = wiring.box.native_backend(wiring.Settings(home=home))
    assert isinstance(backend, NativeBackend)
    return backend


def is_gone(coming: Ahead) -> bool:
    return coming.server.result()._process.poll() is not None


def test_the_first_worker_of_that_home_comes_from_it(started: Ahead, tmp_path: Path) -> None:
    backend = backend_in(tmp_path)
    try:
        worker = backend.start(WorkerSpec())
        parent = Path(f"/proc/{worker.init_pid}/status").read_text().partition("\nPPid:\t")[2].split()[0]
        launcher = Path(f"/proc/{parent}/status").read_text().partition("\nPPid:\t")[2].split()[0]
        assert int(launcher) == started.server.result()._process.pid
        worker.discard()
    finally:
        backend.close()
    assert is_gone(started)


def test_no_other_home_gets_it(started: Ahead, tmp_path: Path) -> None:
    assert ahead.take(tmp_path / "other") is None
    assert ahead.take(tmp_path) is started
    assert ahead.take(tmp_path) is None
    started.let_go()


def test_a_worker_with_modules_of_its_own_has_another_zygote_and_this_one_goes_with_the_backend(
    started: Ahead, tmp_path: Path
) -> None:
    backend = backend_in(tmp_path)
    try:
        backend.start(WorkerSpec(preload=("json",))).discard()
        assert not is_gone(started)
    finally:
        backend.close()
    assert is_gone(started)


def begun_in(started: Ahead) -> ParkedWorker:
    """The worker that is being parked ahead, when it is there."""
    started.park()
    assert started.backend is not None
    assert started.backend._begun is not None
    return started.backend._begun[1].result()


@contextlib.contextmanager
def ends_with_it(worker: ParkedWorker) -> Iterator[None]:
    """Wait, after what is done inside, until the kernel has ended the worker; it is killed, and that takes a moment."""
    watched = os.pidfd_open(worker.worker_pid)
    try:
        yield
        assert select.select([watched], [], [], 10)[0] == [watched]
    finally:
        os.close(watched)


def test_a_worker_that_was_parked_ahead_is_the_first_that_is_given_out_and_only_once(
    started: Ahead, tmp_path: Path
) -> None:
    begun = begun_in(started)
    backend = backend_in(tmp_path)
    try:
        first, second = backend.start(WorkerSpec()), backend.start(WorkerSpec())
        assert first is begun
        assert second.sandbox_id != begun.sandbox_id
        assert Path(f"/proc/{first.worker_pid}").exists()
        first.discard()
        second.discard()
    finally:
        backend.close()


def test_a_run_that_needs_another_worker_does_not_get_it_and_it_goes_with_the_backend(
    started: Ahead, tmp_path: Path
) -> None:
    begun = begun_in(started)
    backend = backend_in(tmp_path)
    with ends_with_it(begun):
        try:
            other = backend.start(WorkerSpec(pids=17))
            assert other.sandbox_id != begun.sandbox_id
            other.discard()
        finally:
            backend.close()


def test_an_engine_with_limits_of_its_own_has_another_backend(started: Ahead, tmp_path: Path) -> None:
    begun = begun_in(started)
    with ends_with_it(begun):
        backend = wiring.box.native_backend(wiring.Settings(home=tmp_path, limits=Limits(memory_bytes=64 << 20)))
    assert backend is not started.backend
    backend.close()


def test_a_worker_that_nobody_takes_over_is_gone(started: Ahead) -> None:
    begun = begun_in(started)
    with ends_with_it(begun):
        ahead._let_go_of_all()


def test_what_is_wrong_is_told_to_the_first_who_asks_for_a_worker(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[workspace.ro_mounts]\nx = "not absolute"\n')
    ahead.start(tmp_path)
    backend = backend_in(tmp_path)
    try:
        for _ in range(2):  # as if it had not been tried ahead
            with pytest.raises(InvalidRequest, match="absolute"):
                backend.start(WorkerSpec())
    finally:
        backend.close()


def test_a_command_that_never_gets_to_its_run_leaves_none(tmp_path: Path) -> None:
    program = (
        "import os, sys; from ringfence.interfaces.cli.main import main\n"
        "code = main(['run', '--no-stdin', '--home', sys.argv[1], 'no-such-file.py'])\n"
        "from ringfence.isolation.native import ahead\n"
        "print(code, ahead._started[0].server.result()._process.pid)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    code, pid = done.stdout.split()
    assert (code, done.returncode, os.path.exists(f"/proc/{pid}")) == ("2", 0, False)
