"""Unpacks a body as it comes, and stops where a small one would become a large one."""

from __future__ import annotations

import zlib
from typing import Final

from ringfence.egress.caps import FREE_EXPANSION, RetrievalCaps
from ringfence.egress.responses import no_http
from ringfence.errors import CapabilityBlocked

CODINGS: Final = ("gzip", "deflate")
"""What is asked for, and all that is unpacked: both tell how much came out before it is all there."""
_STEP: Final = 256 * 1024


class Unpacker:
    """Counts what came in and what came out, and keeps both within the caps."""

    def __init__(self, coding: str | None, caps: RetrievalCaps) -> None:
        """Unpack `coding`, the value of Content-Encoding, if there is one.

        Raises:
            Unavailable: It is none that was asked for, or several.
        """
        name = "identity" if coding is None else coding.strip().lower().removeprefix("x-")
        if name not in ("identity", *CODINGS):
            raise no_http("is packed in a way nobody asked for")
        self._coding, self._caps = name, caps
        self._stream: zlib._Decompress | None = None
        self.raw = 0
        self.unpacked = 0

    def expect(self, length: int) -> None:
        """Refuse a body that says itself that it is too long, before any of it is taken.

        Raises:
            CapabilityBlocked: It does.
        """
        if length > self._caps.body_bytes:
            raise self._too_large("as it comes")

    def feed(self, data: bytes) -> bytes:
        """Return what `data` unpacks to.

        Raises:
            CapabilityBlocked: It is more than may come in, or comes from too little.
            Unavailable: It is not packed as it says.
        """
        self.raw += len(data)
        if self.raw > self._caps.body_bytes:
            raise self._too_large("as it comes")
        if self._coding == "identity":
            self.unpacked = self.raw
            return data
        out = bytearray()
        has_more = False  # an unpacker that gave all it may at once keeps the rest to itself
        while data or has_more:
            if self._stream is None:
                self._stream = zlib.decompressobj(self._window(data[0]))
            elif self._stream.eof and data:
                raise no_http("goes on after its packed part has ended")
            piece = self._step(self._stream, data)
            data = self._stream.unconsumed_tail or self._stream.unused_data
            has_more = len(piece) == _STEP
            self._count(len(piece))
            out += piece
        return bytes(out)

    def finish(self) -> None:
        """Make sure that all of it came.

        Raises:
            Unavailable: It was cut off.
        """
        if self._coding != "identity" and self.raw and (self._stream is None or not self._stream.eof):
            raise no_http("ends in the middle of its packed part")

    def _window(self, first: int) -> int:
        if self._coding == "gzip":
            return 31
        return 15 if first & 0x0F == 8 else -15  # some servers leave the frame of zlib out

    def _step(self, stream: zlib._Decompress, data: bytes) -> bytes:
        try:
            return stream.decompress(data, _STEP)
        except zlib.error:
            raise no_http("is not packed as it says") from None

    def _count(self, more: int) -> None:
        self.unpacked += more
        if self.unpacked > self._caps.body_bytes:
            raise self._too_large("unpacked")
        if self.unpacked > FREE_EXPANSION and self.unpacked > self.raw * self._caps.ratio:
            raise CapabilityBlocked(
                f"the answer unpacks to more than {self._caps.ratio} times its size", reason="expansion"
            )

    def _too_large(self, how: str) -> CapabilityBlocked:
        most = self._caps.body_bytes
        return CapabilityBlocked(
            f"the answer has more than {most} bytes {how}",
            reason="too_large",
            fix="raise max_bytes_in, as far as policy and budget allow",
            limit=most,
        )
