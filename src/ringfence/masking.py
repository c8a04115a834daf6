"""Puts a secret's name where its value would be read: in a stream of bytes, however it is cut, in its usual spellings.

Masked are the value itself, its base64 (both alphabets, at each of the three places it can begin in a longer text),
hex, percent-encoding, JSON and shell escapes, and its reverse. A program that means to disguise it otherwise can: split
by spaces, compressed, encrypted. So masking is the second line; the first is that a box does not hold the value at all.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote, quote_plus

from ringfence.errors import InvalidRequest

LEAST_BYTES: Final = 8
"""A shorter value occurs by chance, and masking it would tear holes into everything else."""
MOST_BYTES: Final = 16 * 1024
_SURE: Final = 4
"""So many bytes of a spelling are looked for at once; fewer occur too often."""


class Masks:
    """What is never to be shown, of one run; nothing of it is in its text form."""

    __slots__ = ("_names", "_pattern")

    def __init__(self, values: Mapping[str, bytes]) -> None:
        """Know every spelling of the value of every name.

        Raises:
            InvalidRequest: A value is too short to be masked, or too long.
        """
        self._names: dict[bytes, bytes] = {}
        for name, value in values.items():
            if not LEAST_BYTES <= len(value) <= MOST_BYTES:
                raise InvalidRequest(
                    f"secret {name}: its value must have {LEAST_BYTES} to {MOST_BYTES} bytes to be masked in output",
                    reason="invalid_secret",
                    fix="use a longer secret, or one that the proxy puts in, which never enters the box",
                )
            for spelling in spellings(value):
                self._names.setdefault(spelling, f"[secret:{name}]".encode())
        ordered = sorted(self._names, key=len, reverse=True)  # so that of two that begin alike the longer is found
        self._pattern = re.compile(b"|".join(map(re.escape, ordered))) if ordered else None

    def __repr__(self) -> str:
        """Tell how many there are, and nothing else."""
        return f"Masks({len(set(self._names.values()))})"

    def __bool__(self) -> bool:
        """Whether there is anything to mask."""
        return self._pattern is not None

    def mask(self, data: bytes) -> bytes:
        """Return all of `data` with names in the place of values."""
        if self._pattern is None:
            return data
        return self._pattern.sub(lambda found: self._names[found[0]], data)

    def mask_text(self, text: str) -> str:
        """Return a text with names in the place of values."""
        return self.mask(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def stream(self) -> Masker:
        """Return what masks one stream, piece by piece."""
        return Masker(self)

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """Return what of `data` can be shown, masked, and the rest, which may be the beginning of a value."""
        if self._pattern is None:
            return data, b""
        shown: list[bytes] = []
        at = 0
        begun = self._first_begun(data, 0)
        for found in self._pattern.finditer(data):
            if begun <= found.start():  # it reaches over this one, or goes on where this one ends
                break
            shown += (data[at : found.start()], self._names[found[0]])
            at = found.end()
            if begun < at:
                begun = self._first_begun(data, at)
        return b"".join((*shown, data[at:begun])), data[begun:]

    def _first_begun(self, data: bytes, start: int) -> int:
        """Return the first place from which all the rest is the beginning of a spelling, and not all of it."""
        first = len(data)
        for spelling in self._names:
            at = max(start, len(data) - len(spelling) + 1)
            while -1 < (at := data.find(spelling[:_SURE], at)) < first:
                if spelling.startswith(data[at:]):
                    first = at
                at += 1
            for length in range(1, _SURE):
                if len(data) - length >= start and first > len(data) - length and data.endswith(spelling[:length]):
                    first = len(data) - length
        return first


class Masker:
    """One stream: holds back only what may be the beginning of a value, until that is known."""

    __slots__ = ("_held", "_masks", "found")

    def __init__(self, masks: Masks) -> None:
        """Nothing has come yet."""
        self._masks = masks
        self._held = b""
        self.found = False
        """Whether anything was masked."""

    def add(self, data: bytes) -> bytes:
        """Return what can be shown now that `data` has come."""
        whole = self._held + data
        shown, self._held = self._masks.split(whole)
        self.found = self.found or not whole.startswith(shown)
        return shown

    def finish(self) -> bytes:
        """Return what was held back; nothing more comes."""
        rest, held, self._held = self._masks.mask(self._held), self._held, b""
        self.found = self.found or rest != held
        return rest


def spellings(value: bytes) -> frozenset[bytes]:
    """Return the value as programs usually print it; each at least as long as is never there by chance."""
    found = {value, value[::-1], value.hex().encode(), value.hex().upper().encode()}
    found.update(_in_base64(value))
    found.update(_escaped(value))
    # a secret of several lines is printed line by line, and one that ends in a newline without it
    for line in value.splitlines():
        found.update((line, line[::-1], *_in_base64(line)))
    found.add(value.strip())
    return frozenset(spelling for spelling in found if len(spelling) >= LEAST_BYTES)


def leaves(value: bytes) -> Iterable[bytes]:
    """Return the value and, where it is JSON, every text in it: each of them is a secret of its own."""
    yield value
    try:
        pending = [json.loads(value)]
    except (ValueError, RecursionError):
        return
    while pending:
        match pending.pop():
            case dict() as members:
                pending.extend(members.values())
            case list() as items:
                pending.extend(items)
            case str() as text if len(text) >= LEAST_BYTES:
                yield text.encode("utf-8", "surrogatepass")


def _in_base64(value: bytes) -> Iterable[bytes]:
    """Return what is the same in every base64 text that holds the value, wherever in it the value begins."""
    for encode in (base64.standard_b64encode, base64.urlsafe_b64encode):
        yield encode(value)
        for offset in range(3):
            text = encode(bytes(offset) + value)
            # the first characters hold bits of what comes before, the last ones bits of what comes after
            begin = (0, 2, 3)[offset]
            end = (len(value) + offset) * 8 // 6
            yield text[begin:end]


def _escaped(value: bytes) -> Iterable[bytes]:
    percent = quote(value, safe="").encode()
    yield from (percent, percent.lower(), quote(value).encode(), quote_plus(value).encode())
    yield "".join(f"%{byte:02X}" for byte in value).encode()
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return
    for ascii_only in (True, False):
        yield json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode()
    yield repr(text)[1:-1].encode()
    yield shlex.quote(text).encode()
