"""There is one zygote of a kind, and one that has served enough is ended, also when nobody asks for another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.capability.limits import Limits
from ringfence.isolation.linux.parked import ParkedWorker
from ringfence.isolation.native.backend import NativeBackend, Recycling
from ringfence.operation import Language
from ringfence.ports import Job, WorkerSpec
from ringfence.wiring.box import native_backend
from ringfence.wiring.settings import Settings

pytestmark = [pytest.mark.needs("native")]


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[NativeBackend]:
    made = native_backend(Settings(home=tmp_path))
    assert isinstance(made, NativeBackend)
    yield made
    made.close()


def start(backend: NativeBackend, *preload: str) -> tuple[ParkedWorker, int]:
    """Start a worker; return it and the process that its zygote came from."""
    worker = backend.start(WorkerSpec(preload=preload))
    return worker, backend._generations[None, preload].server._process.pid


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_old_zygotes_of_kinds_that_nobody_asks_for_again_are_ended(backend: NativeBackend) -> None:
    kinds = [start(backend, "json"), start(backend, "decimal"), start(backend)]
    for worker, _ in kinds:
        worker.discard()
    backend.tidy()
    assert all(lives(launcher) for _, launcher in kinds)
    backend._recycling = Recycling(after_seconds=0)
    backend.tidy()
    assert not any(lives(launcher) for _, launcher in kinds)


def test_an_old_zygote_stays_until_the_last_of_its_runs_is_over(backend: NativeBackend) -> None:
    worker, launcher = start(backend, "json")
    backend._recycling = Recycling(after_seconds=0)
    backend.tidy()
    job = Job(Language.PYTHON, "print(1)", (), {}, b"", Limits())
    assert asyncio.run(worker.run(job, None)).stdout == b"1\n"
    assert lives(launcher)
    worker.discard()
    assert not lives(launcher)


def test_a_zygote_that_died_is_forgotten(backend: NativeBackend) -> None:
    worker, launcher = start(backend, "json")
    backend._generations[None, ("json",)].server.broken = True
    worker.discard()
    backend.tidy()
    assert not lives(launcher)
    assert backend._generations == {}
    backend.start(WorkerSpec()).discard()


def test_whoever_comes_while_a_zygote_is_started_gets_a_worker_of_that_one(backend: NativeBackend) -> None:
    workers: list[ParkedWorker] = []
    go = threading.Barrier(3)
    done = threading.Event()

    def starter() -> None:
        go.wait()
        workers.append(backend.start(WorkerSpec()))
        done.wait()  # a zygote dies with the thread that made it

    threads = [threading.Thread(target=starter) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(workers) < len(threads):
        assert any(thread.is_alive() for thread in threads)
        done.wait(0.01)
    generations = [*backend._generations.values(), *backend._retired]
    assert [generation.alive for generation in generations] == [3]
    for worker in workers:
        worker.discard()
    done.set()
    for thread in threads:
        thread.join()
