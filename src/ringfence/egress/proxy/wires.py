"""Sockets as the proxy uses them: never blocking, read into one buffer of the thread, and let go of for everybody."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final

_CHUNK: Final = 256 * 1024

Count = Callable[[int], int]
"""Told how many bytes are about to be passed on, says how many may be."""


class Wire:
    """One end of a connection."""

    def __init__(self, end: socket.socket, buffer: memoryview) -> None:
        """Take over `end`; `buffer` is shared by all wires of the thread, and holds nothing between two steps."""
        end.setblocking(False)
        with contextlib.suppress(OSError):  # it may be gone already, which the first read will tell
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.end = end
        self.ahead = b""
        """What was read and not yet used."""
        self.buffer = buffer
        self._loop = asyncio.get_running_loop()

    async def read_until(self, mark: bytes, most: int) -> bytes | None:
        """Return what comes up to and with `mark`; None when it ends before, or `most` bytes have no mark."""
        while mark not in self.ahead:
            if len(self.ahead) > most or not await self.read_more():
                return None
        head, found, self.ahead = self.ahead.partition(mark)
        return head + found

    async def read_more(self) -> bool:
        """Wait for something to come, and put it to what is ahead; False at the end."""
        data = await self._loop.sock_recv(self.end, 16 * 1024)
        self.ahead += data
        return bool(data)

    async def send(self, data: bytes) -> None:
        """Send all of it."""
        await self._loop.sock_sendall(self.end, data)

    async def pour_into(self, other: Wire, count: Count, *, most: int | None = None) -> bool:
        """Pass on what comes until it ends, or `most` bytes; False when `count` did not let all of it through."""
        left = most
        if self.ahead:
            data, self.ahead = self.ahead, b""
            if left is not None:
                data, self.ahead = data[:left], data[left:]
                left -= len(data)
            allowed = count(len(data))
            await other.send(data[:allowed])
            if allowed < len(data):
                return False
        while left is None or left:
            size = await self._read(_CHUNK if left is None else min(left, _CHUNK))
            if not size:
                return left is None
            allowed = count(size)
            await other.send_buffered(allowed)
            if allowed < size:
                return False
            if left is not None:
                left -= size
        return True

    async def _read(self, most: int) -> int:
        """Wait for the next bytes, and put them into the buffer; whoever calls uses them before anybody else runs."""
        await asyncio.sleep(0)  # a fast connection must not keep the others waiting
        while True:
            try:
                return self.end.recv_into(self.buffer, most)
            except (BlockingIOError, InterruptedError):
                await self._until_readable()

    async def send_buffered(self, size: int) -> None:
        """Send what the buffer begins with; what the kernel does not take at once is kept aside."""
        data = self.buffer[:size]
        try:
            sent = self.end.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        if sent < size:
            await self._loop.sock_sendall(self.end, bytes(data[sent:]))

    async def _until_readable(self) -> None:
        ready = self._loop.create_future()
        number = self.end.fileno()
        self._loop.add_reader(number, _settle, ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(number)

    def end_sending(self) -> None:
        """Tell the other side that nothing more comes."""
        with contextlib.suppress(OSError):
            self.end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the connection, also for a forked child that has a copy."""
        with contextlib.suppress(OSError):
            self.end.shutdown(socket.SHUT_RDWR)
        self.end.close()


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def new_buffer() -> memoryview:
    """Return the buffer that the wires of one thread share."""
    return memoryview(bytearray(_CHUNK))
