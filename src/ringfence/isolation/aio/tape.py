"""Reads the tar file and the list in which an AIO service hands back a run's files, as strictly as a guest's writing.

Not with `tarfile`: it knows ten more kinds of entry than `tar` makes of plain files, and follows sizes and offsets
wherever they lead. What is not one of the four kinds below, in the one form that is asked for, ends the reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ringfence.dataclass import dataclass

BLOCK: Final = 512
FILE, DIRECTORY, LINK, SPECIAL = "file", "directory", "link", "special"
_KINDS: Final = {b"0": FILE, b"\0": FILE, b"5": DIRECTORY, b"2": LINK, b"3": SPECIAL, b"4": SPECIAL, b"6": SPECIAL}
_LONG_NAME, _LONG_LINK = b"L", b"K"
_MOST_NAME: Final = 4096
_MOST_TIME: Final = 1 << 33


@dataclass(frozen=True, slots=True)
class Taped:
    """One entry; of a file, `content` is a view into what was read, of a link, `target` is where it points."""

    path: bytes
    kind: str
    mode: int
    mtime: int
    size: int = 0
    content: memoryview | None = None
    """Nothing where only the name and the size were told."""
    target: bytes = b""


def read_tape(data: memoryview) -> Iterator[Taped]:
    """Yield the entries of a tar file in GNU's form, without hard links and holes.

    Raises:
        ValueError: It is none.
    """
    at = 0
    name = link = None
    while True:
        header = bytes(data[at : at + BLOCK])
        if len(header) < BLOCK:
            raise ValueError("the tape ends in the middle")
        if not any(header):
            return
        _check_sum(header)
        size = _number(header[124:136])
        kind = header[156:157]
        body = data[at + BLOCK : at + BLOCK + size]
        if len(body) < size:
            raise ValueError("the tape ends in the middle of a file")
        at += BLOCK + -(-size // BLOCK) * BLOCK
        if kind in (_LONG_NAME, _LONG_LINK):
            if not 0 < size <= _MOST_NAME:
                raise ValueError("a name that no file has")
            told = bytes(body).rstrip(b"\0")
            name, link = (told, link) if kind == _LONG_NAME else (name, told)
            continue
        if kind not in _KINDS or (size and _KINDS[kind] != FILE):
            raise ValueError(f"an entry of kind {kind!r}")
        path = (name if name is not None else _text(header[0:100])).rstrip(b"/")
        target = (link if link is not None else _text(header[157:257])) if _KINDS[kind] == LINK else b""
        name = link = None
        mtime = min(_number(header[136:148]), _MOST_TIME)
        yield Taped(path, _KINDS[kind], _number(header[100:108]) & 0o777, mtime, size, body, target)


LISTED: Final = "%y %m %s %T@ %p\\0%l\\0"
"""How `find` is to write an entry that is only listed."""
_LISTED_KINDS: Final = {b"f": FILE, b"d": DIRECTORY, b"l": LINK}


def read_list(data: bytes) -> Iterator[Taped]:
    """Yield the entries that `find` wrote as `LISTED` says.

    Raises:
        ValueError: They are none.
    """
    fields = data.split(b"\0")
    if fields.pop() or len(fields) % 2:
        raise ValueError("the list ends in the middle")
    for about, target in zip(fields[::2], fields[1::2], strict=True):
        try:
            kind, mode, size, changed, path = about.split(b" ", 4)
            whole_mode, whole_size, seconds = int(mode, 8), int(size), int(changed.partition(b".")[0])
        except ValueError:
            raise ValueError("a line that tells of nothing") from None
        if whole_size < 0 or whole_mode < 0:
            raise ValueError("a number that is none")
        found = _LISTED_KINDS.get(kind, SPECIAL)
        mtime = min(max(seconds, 0), _MOST_TIME)
        yield Taped(path, found, whole_mode & 0o777, mtime, whole_size, None, target if found == LINK else b"")


def _check_sum(header: bytes) -> None:
    if _number(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * 0x20:
        raise ValueError("a header that is none")


def _number(digits: bytes) -> int:
    text = digits.strip(b" \0")
    if not text:
        return 0
    if len(text) > 12 or any(byte not in b"01234567" for byte in text):  # also a size beyond 8 GiB, in binary
        raise ValueError("a number that is none")
    return int(text, 8)


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]
