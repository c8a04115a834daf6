"""Chunked bodies, read strictly and written anew: extensions, trailers and bare line ends are where smuggling hides."""

from __future__ import annotations

import re
from typing import Final

from ringfence.egress.proxy.refusal import BAD_REQUEST, Refusal

_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}\Z")
_LONGEST_SIZE_LINE: Final = 10


def chunk(piece: bytes) -> bytes:
    """Return what one piece of a body is as a chunk; nothing is none, for it would be the last."""
    return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""


LAST: Final = b"0\r\n\r\n"


class Chunks:
    """Takes a chunked body piece by piece and gives back the same body in chunks of its own, or bare."""

    def __init__(self, *, bare: bool = False) -> None:
        """Nothing has come yet."""
        self.is_over = False
        self.rest = b""
        """What came after the last chunk."""
        self._bare = bare
        self._held = bytearray()
        self._left = 0
        """How much of the present chunk is still to come."""
        self._closes = False
        """Whether the next two bytes end a chunk."""

    def feed(self, data: bytes) -> bytes:
        """Return what to send on for `data`; whatever comes after the last chunk is no part of it.

        Raises:
            Refusal: A reader could see the body end elsewhere.
        """
        self._held += data
        out = bytearray()
        while not self.is_over and self._held:
            if self._left:
                piece = bytes(self._held[: self._left])
                del self._held[: len(piece)]
                self._left -= len(piece)
                self._closes = not self._left
                out += piece if self._bare else chunk(piece)
            elif self._closes:
                if len(self._held) < 2:
                    break
                self._take_line_end()
            elif not self._take_size(out):
                break
        return bytes(out)

    def _take_line_end(self) -> None:
        if self._held[:2] != b"\r\n":
            raise _malformed()
        del self._held[:2]
        self._closes = False

    def _take_size(self, out: bytearray) -> bool:
        """Read the line before a chunk; False when it has not all come."""
        end = self._held.find(b"\r\n")
        if end < 0:
            if len(self._held) > _LONGEST_SIZE_LINE:
                raise _malformed()
            return False
        if _SIZE.match(self._held[:end]) is None:
            raise _malformed()
        size = int(self._held[:end], 16)
        if size:
            del self._held[: end + 2]
            self._left = size
            return True
        if len(self._held) < end + 4:
            return False
        if self._held[end : end + 4] != b"\r\n\r\n":
            raise _malformed()
        self.is_over = True
        self.rest = bytes(self._held[end + 4 :])
        self._held.clear()
        out += b"" if self._bare else LAST
        return True


def _malformed() -> Refusal:
    return Refusal(BAD_REQUEST, "framing", "a chunked body needs plain chunks, without extensions or trailers")
