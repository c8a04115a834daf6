"""A socket whose reads and writes share a deadline and an allowance: nobody gains by answering slowly, or endlessly."""

from __future__ import annotations

import io
import select
import socket
import time
from math import inf
from typing import BinaryIO


class Overrun(OSError):
    """More bytes came than anything that was asked for can have."""


class PatientSocket:
    """What `http.client` needs of a socket, each exchange under limits of its own."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected socket."""
        self._sock = sock
        self._deadline = inf
        self._allowance = inf

    def allow(self, *, seconds: float, received: float) -> None:
        """From now on wait for so long, and take in so many bytes."""
        self._deadline = time.monotonic() + seconds
        self._allowance = received

    def sendall(self, data: bytes) -> None:
        """Send it all before the deadline."""
        self._sock.settimeout(self._left())
        self._sock.sendall(data)

    def makefile(self, _mode: str) -> BinaryIO:
        """Return the side that is read; it outlives `close`, as that of a plain socket does."""
        return io.BufferedReader(_Reader(self, self._sock.makefile("rb", buffering=0)))

    def receive_into(self, raw: io.RawIOBase, buffer: memoryview) -> int | None:
        """Read once, within what is left of time and bytes."""
        self._sock.settimeout(self._left())
        count = raw.readinto(buffer)
        self._allowance -= count or 0
        if self._allowance < 0:
            raise Overrun("the answer does not end")
        return count

    def is_quiet(self) -> bool:
        """Whether the other side neither closed it nor said what nobody asked for, so that it can be used again."""
        looked = select.poll()  # unlike `select`, it knows descriptors beyond the thousandth
        looked.register(self._sock, select.POLLIN)
        return not looked.poll(0)

    def abort(self) -> None:
        """Wake whoever waits on it, from another thread."""
        try:
            # not the method of a TLS socket: that takes its state apart under the other thread
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            return  # it is over already

    def close(self) -> None:
        """Close it."""
        self._sock.close()

    def _left(self) -> float | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        return None if left == inf else left


class _Reader(io.RawIOBase):
    def __init__(self, patient: PatientSocket, raw: io.RawIOBase) -> None:
        self._patient = patient
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]
        return self._patient.receive_into(self._raw, buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()
