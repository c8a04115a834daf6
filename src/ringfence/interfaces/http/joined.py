"""What is written to a client: head and body of an answer in one system call, and for no longer than it may lie unread.

The loop's own transport says when a client does not read, but only above a mark, and it waits for ever for what is left
of an answer once it is told to close. Whoever reads nothing would keep his connection, and be counted by nobody.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Final

_ENOUGH: Final = 16 * 1024
"""What is larger leaves at once: the transport below says when a client does not read, and nothing is kept from it."""
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class Joined(asyncio.Transport):
    """A transport that keeps what is written until the answer is whole, or until the event loop comes round."""

    def __init__(self, below: asyncio.Transport, loop: asyncio.AbstractEventLoop, read_within: float) -> None:
        """Write to `below`, which stays whose protocol it was; `read_within` is what a client has, in seconds."""
        super().__init__()
        self.below = below
        self._loop = loop
        self._read_within = read_within
        self._unread: asyncio.TimerHandle | None = None
        self._held: list[bytes] = []
        self._size = 0
        self._soon: asyncio.Handle | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take some of an answer."""
        if not data:
            return
        self._held.append(bytes(data))
        self._size += len(data)
        if self._size > _ENOUGH:
            self.flush()
        elif self._soon is None:
            self._soon = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what was taken."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._held:
            whole = self._held[0] if len(self._held) == 1 else b"".join(self._held)
            self._held.clear()
            self._size = 0
            self.below.write(whole)

    def close(self) -> None:
        """Close once everything is sent, and not much later."""
        self.flush()
        self.below.close()
        if self.below.get_write_buffer_size():
            self.await_reading()

    def abort(self) -> None:
        """Close at once, whatever was not sent."""
        self._held.clear()
        self._size = 0
        self.flush()
        self.below.abort()

    def await_reading(self) -> None:
        """Cut the client off unless it reads in time what was written to it."""
        if self._unread is None:
            self._unread = self._loop.call_later(self._read_within, self.cut_off)

    def was_read(self) -> None:
        """Be told that the client reads again; what was left when we closed keeps its time."""
        if not self.is_closing():
            self.forget()

    def forget(self) -> None:
        """Be told that there is no client any more."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def cut_off(self) -> None:
        """End the connection at once, whatever the client has not read."""
        # or the kernel would go on offering what nobody reads, long after we closed
        sock = self.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self.abort()

    def pause_reading(self) -> None:
        """Take nothing from the client for a while."""
        self.below.pause_reading()

    def resume_reading(self) -> None:
        """Take what the client sends again."""
        self.below.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Return how much was written and is still here."""
        return self._size + self.below.get_write_buffer_size()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Have another protocol hear of what comes."""
        self.below.set_protocol(protocol)

    def is_closing(self) -> bool:
        """Whether nothing can be written any more."""
        return self.below.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known about the connection."""
        return self.below.get_extra_info(name, default)
