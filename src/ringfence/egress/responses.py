"""What a server answered, read as HTTP/1 and as nothing else: what two readers could understand differently is refused.

Sans I/O, so that every split of every answer can be tried. A connection carries one answer and is closed after it, so
that nothing behind the answer is ever read as another.
"""

from __future__ import annotations

import re
from typing import Final

from ringfence.dataclass import dataclass
from ringfence.egress.caps import RetrievalCaps
from ringfence.errors import CapabilityBlocked, Unavailable

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?\Z")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?[ \t]*\Z")  # fmt: skip  # noqa: E501
_LENGTH = re.compile(r"[0-9]{1,15}\Z")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[\t\x20-\x7e]*)?\Z")
_MOST_CHUNK_LINE: Final = 256
_MOST_TRAILER: Final = 8 * 1024
# Two of them, and whoever reads the first sees another answer than whoever reads the last.
_SINGLE: Final = ("content-length", "content-type", "content-encoding", "transfer-encoding", "location")
_BODILESS: Final = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers; names are in lower case, values as they came."""

    status: int
    minor: int
    fields: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str | None:
        """Return the first header of this name."""
        return next((value for key, value in self.fields if key == name), None)


@dataclass(frozen=True, slots=True)
class Framing:
    """Where the body ends: after `length` bytes, with its last chunk, or (with neither) when the connection does."""

    length: int | None = None
    is_chunked: bool = False


def read_head(head: bytes, caps: RetrievalCaps) -> Head:
    """Read status line and headers, with the empty line that ends them.

    Raises:
        Unavailable: It is no HTTP/1 answer, or one that readers disagree about.
        CapabilityBlocked: It has more headers than are taken.
    """
    # every line ends with both characters, and neither stands anywhere else
    lines = head[:-4].split(b"\r\n")
    status = _STATUS.match(lines[0])
    if status is None:
        raise no_http("does not begin with an HTTP/1 status line")
    if len(lines) - 1 > caps.headers:
        raise CapabilityBlocked(f"the answer has more than {caps.headers} headers", reason="too_large")
    fields = []
    for line in lines[1:]:
        field = _FIELD.match(line)
        if field is None:
            raise no_http("has a header that is none")
        fields.append((field[1].decode().lower(), (field[2] or b"").decode("latin-1")))
    names = [name for name, _ in fields]
    for name in _SINGLE:
        if names.count(name) > 1:
            raise no_http(f"has {name} more than once")
    return Head(int(status[2]), int(status[1]), tuple(fields))


def framing_of(head: Head, method: str) -> Framing:
    """Return where the body of an answer to `method` ends.

    Raises:
        Unavailable: It says so in two ways, or in one that is not known.
    """
    coding, length = head.get("transfer-encoding"), head.get("content-length")
    if coding is not None and (length is not None or head.minor == 0 or coding.lower() != "chunked"):
        raise no_http("says in two ways where it ends, or in one that is not HTTP/1.1's")
    if length is not None and not _LENGTH.match(length):
        raise no_http("has a length that is no number")
    if method == "HEAD" or head.status in _BODILESS:
        return Framing(length=0)
    return Framing(None if length is None else int(length), coding is not None)


class ChunkedBody:
    """Takes the chunks of a body apart; whatever comes after the last one is left alone."""

    def __init__(self) -> None:
        """Nothing came yet."""
        self._buffer = bytearray()
        self._left = 0  # of the chunk that is coming
        self._is_between = False  # whether the line end after a chunk is still to come
        self._trailer = 0
        self._is_last = False
        self.is_over = False

    def feed(self, data: bytes) -> bytes:
        """Return what `data` adds to the body.

        Raises:
            Unavailable: It is not chunked as HTTP/1.1 says.
        """
        self._buffer += data
        out = bytearray()
        while not self.is_over:
            if self._left:
                taken = self._buffer[: self._left]
                if not taken:
                    break
                del self._buffer[: len(taken)]
                self._left -= len(taken)
                self._is_between = self._left == 0
                out += taken
                continue
            line = self._line()
            if line is None:
                break
            self._read(line)
        return bytes(out)

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > _MOST_CHUNK_LINE and not self._is_last:
                raise no_http("has a chunk that never says its size")
            if len(self._buffer) > _MOST_TRAILER:
                raise no_http("has an endless trailer")
            return None
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
            raise no_http("has a line that ends otherwise than HTTP's")
        return line[:-2]

    def _read(self, line: bytes) -> None:
        if self._is_last:
            self._trailer += len(line) + 2
            if self._trailer > _MOST_TRAILER:
                raise no_http("has an endless trailer")
            self.is_over = not line
            return
        if self._is_between:
            if line:
                raise no_http("has a chunk that is longer than it said")
            self._is_between = False
            return
        size = _CHUNK.match(line) if len(line) <= _MOST_CHUNK_LINE else None
        if size is None:
            raise no_http("has a chunk without a size")
        self._left = int(size[1], 16)
        self._is_last = self._left == 0


def no_http(problem: str) -> Unavailable:
    """Return the refusal of an answer that is not read further."""
    return Unavailable(f"the answer {problem}, and is not read further", reason="bad_http")
