"""Attack: fill memory that belongs to no process, where no cgroup counts it and a sampler cannot see it."""

from __future__ import annotations

import pytest

import ringfence
from ringfence.capability.limits import MIB, Limits

pytestmark = [pytest.mark.guarantee(7), pytest.mark.needs("native")]

HOARD = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, work):
    try:
        work()
    except OSError as error:
        print(name, os.strerror(error.errno))
    else:
        print(name, 'done')
def made(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), '')
attempt('memfd', lambda: os.memfd_create('x'))
attempt('segments', lambda: made(libc.shmget(0, 1 << 20, 0o1600)))
attempt('semaphores', lambda: made(libc.semget(0, 32000, 0o1600)))
attempt('messages', lambda: made(libc.msgget(0, 0o1600)))
attempt('anonymous', lambda: mmap.mmap(-1, 1 << 20))
attempt('zero', lambda: mmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 20))
attempt('private', lambda: mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
"""


def test_memory_of_nobody_can_be_had_only_where_a_cgroup_counts_it() -> None:
    result = ringfence.run(HOARD, isolation="native")
    outcomes = dict(
        line.rsplit(" ", 1) if line.endswith("done") else line.split(" ", 1) for line in result.stdout.splitlines()
    )
    assert outcomes.pop("private") == "done"
    if result.isolation.memory_limit == "cgroup":
        assert set(outcomes.values()) == {"done"}
    else:
        assert "done" not in outcomes.values()


def test_memory_of_nobody_counts_against_the_limit_where_it_can_be_had() -> None:
    fill = f"""
import os
kept = []
for _ in range(64):
    fd = os.memfd_create('x')
    if os.fork() == 0:
        os.write(fd, bytes({8 * MIB}))
        os._exit(0)
    os.wait()
    kept.append(fd)
print('kept', len(kept))
"""
    result = ringfence.run(fill, isolation="native", limits=Limits(memory_bytes=64 * MIB))
    assert "kept" not in result.stdout


def test_sockets_hold_more_than_they_come_with_only_where_a_cgroup_counts_it() -> None:
    fill = """
import socket
def held(wish):
    writer, reader = socket.socketpair()
    if wish:
        writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, wish)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wish)
    writer.setblocking(False)
    total = 0
    try:
        while True:
            total += writer.send(bytes(16384))
    except BlockingIOError:
        return total
print(held(0), held(1 << 24), held(4096))
"""
    result = ringfence.run(fill, isolation="native")
    usual, enlarged, reduced = map(int, result.stdout.split())
    if result.isolation.memory_limit == "cgroup":
        assert reduced < usual <= enlarged
    else:
        assert reduced == usual == enlarged
