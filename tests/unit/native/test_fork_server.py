"""A launcher that is gone or late is not asked again: what it says then would be taken for the answer to the next."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.errors import InternalError
from ringfence.isolation.linux import channel, kernel
from ringfence.isolation.native import launcher
from ringfence.isolation.native.fork_server import ForkServer
from ringfence.ports import WorkerLost


class Started(ForkServer):
    """One of an ordinary user, that has been started: its launcher is the test."""

    def __init__(self, host: socket.socket) -> None:
        self.base_id = None
        self.broken = False
        self._mounting = threading.Lock()
        self._host = host


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    host, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    host.settimeout(0.2)
    with host, inside:
        yield host, inside


@pytest.fixture
def work(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_CLOEXEC)
    yield fd
    os.close(fd)


def test_a_launcher_that_is_gone_makes_room_for_another(ends: tuple[socket.socket, socket.socket], work: int) -> None:
    server = Started(ends[0])
    ends[1].close()
    with pytest.raises(WorkerLost):
        server.open_work_directory(work)
    assert server.broken


def test_what_a_late_launcher_says_is_nobodys_answer(
    ends: tuple[socket.socket, socket.socket], work: int, tmp_path: Path
) -> None:
    server = Started(ends[0])
    with pytest.raises(WorkerLost):
        server.open_work_directory(work)
    assert server.broken
    question, _ = channel.receive(ends[1])
    assert question is not None
    channel.send(ends[1], question, [work])
    with pytest.raises(WorkerLost):
        server.open_work_directory(work)


def test_the_answer_to_another_question_is_none(ends: tuple[socket.socket, socket.socket], work: int) -> None:
    server = Started(ends[0])
    channel.send(ends[1], {"id": "of another"}, [work])
    before = os.listdir("/proc/self/fd")
    with pytest.raises(WorkerLost):
        server.open_work_directory(work)
    assert server.broken
    assert os.listdir("/proc/self/fd") == before


def serve(inside: socket.socket) -> None:
    """Be the launcher until it falls."""
    with pytest.raises(Gone):
        launcher._serve_work_directories(inside)


class Gone(BaseException):
    """The launcher has ended."""


@pytest.mark.parametrize("step", ["clone_tree", "send"])
def test_a_launcher_outlives_what_it_cannot_hand_over(
    ends: tuple[socket.socket, socket.socket], work: int, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    refusals = [OSError(errno.ETOOMANYREFS, "too many references: cannot splice")]

    def leave(_: int) -> None:
        raise Gone

    def clone_tree(path: bytes) -> int:
        if step == "clone_tree" and refusals:
            raise refusals.pop()
        return os.open(path, os.O_RDONLY)

    real = channel.send

    def send(end: socket.socket, message: dict[str, object], fds: list[int] | tuple[()] = ()) -> None:
        if step == "send" and fds and refusals:
            raise refusals.pop()
        real(end, message, fds)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(kernel, "clone_tree", clone_tree)
    monkeypatch.setattr(channel, "send", send)
    serving = threading.Thread(target=serve, args=(ends[1],))
    serving.start()
    before = os.listdir("/proc/self/fd")
    server = Started(ends[0])
    with pytest.raises(InternalError, match="cannot splice"):
        server.open_work_directory(work)
    assert not server.broken
    assert os.listdir("/proc/self/fd") == before
    os.close(server.open_work_directory(work))
    ends[0].close()
    serving.join()
