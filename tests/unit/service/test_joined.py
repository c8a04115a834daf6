"""Answers that leave in one piece, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ringfence.interfaces.http.joined import Joined


@asynccontextmanager
async def connected(read_within: float = 60) -> AsyncIterator[tuple[Joined, socket.socket]]:
    """Give a transport and the other end of its connection, which reads without waiting."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    below, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    theirs.setblocking(False)
    try:
        yield Joined(below, loop, read_within), theirs
    finally:
        below.abort()
        theirs.close()


async def test_what_is_written_in_one_go_leaves_when_the_loop_comes_round() -> None:
    async with connected() as (joined, theirs):
        joined.write(b"head ")
        joined.write(b"")
        joined.write(b"body")
        with pytest.raises(BlockingIOError):
            theirs.recv(100)
        await asyncio.sleep(0)
        assert theirs.recv(100) == b"head body"


async def test_a_whole_answer_does_not_wait_for_the_loop() -> None:
    async with connected() as (joined, theirs):
        joined.write(b"head ")
        joined.write(b"body")
        joined.flush()
        assert theirs.recv(100) == b"head body"
        await asyncio.sleep(0)
        with pytest.raises(BlockingIOError):
            theirs.recv(100)


async def test_much_is_not_kept_from_the_transport_that_counts_it() -> None:
    async with connected() as (joined, theirs):
        joined.write(bytes(1_000_000))
        assert joined.below.get_write_buffer_size() > 0
        assert theirs.recv(100) == bytes(100)


async def test_closing_sends_what_was_written_and_aborting_does_not() -> None:
    async with connected() as (joined, theirs):
        joined.write(b"last words")
        joined.close()
        assert joined.is_closing()
        assert theirs.recv(100) == b"last words"
    async with connected() as (joined, theirs):
        joined.write(b"never said")
        joined.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert theirs.recv(100) == b""


async def test_what_nobody_reads_is_waited_for_no_longer_than_it_may_lie_also_once_we_closed() -> None:
    async with connected(read_within=0.05) as (joined, _):
        joined.write(bytes(1_000_000))
        joined.close()
        joined.was_read()  # some of it: what is left keeps its time
        assert joined.get_write_buffer_size() > 0
        await asyncio.sleep(0.1)
        assert joined.get_write_buffer_size() == 0


async def test_whoever_reads_again_is_not_cut_off() -> None:
    async with connected(read_within=0.05) as (joined, theirs):
        joined.await_reading()
        joined.was_read()
        await asyncio.sleep(0.1)
        joined.write(b"still here")
        joined.flush()
        assert theirs.recv(100) == b"still here"
