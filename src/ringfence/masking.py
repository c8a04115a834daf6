"""Puts a secret's name where its value would be read: in a stream of bytes, however it is cut, in its usual spellings.

Masked are the value itself, its base64 (both alphabets, at each of the three places it can begin in a longer text),
hex, percent-encoding, JSON, HTML and shell escapes, the other case, UTF-16, and its reverse. A program that means to
disguise it otherwise can: split by spaces, compressed, encrypted. So masking is the second line; the first is that a
box does not hold the value at all.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final
from urllib.parse import quote, quote_plus

from ringfence.errors import InvalidRequest

LEAST_BYTES: Final = 8
"""A shorter value occurs by chance, and masking it would tear holes into everything else."""
MOST_BYTES: Final = 16 * 1024
MOST_SPELLINGS: Final = 1 << 15
"""Of all secrets of one run: each line, and each text of a secret that is JSON, has some ten."""
PIECE_BYTES: Final = 1 << 16
"""No more is searched in one go: meanwhile no other thread of this process moves."""
_HEAD: Final = 64
"""So much of a spelling tells it; whoever prints the beginning of a long one prints enough of it to be masked."""


class Masks:
    """What is never to be shown, of one run; nothing of it is in its text form."""

    __slots__ = ("_blind", "_heads", "_names", "_pattern", "_sorted")

    def __init__(self, values: Mapping[str, bytes], shown: bytes | None = None, *, blind: bool = False) -> None:
        """Know every spelling of the value of every name; `shown` is put there instead of the name.

        `blind` is for those who do not hold the value, and may have guesses of their own said: what begins as a long
        one does is masked at its whole length, right or wrong, so that it tells nobody how far a guess is right.

        Raises:
            InvalidRequest: A value is too short to be masked, or too long.
        """
        self._blind = blind
        self._names: dict[bytes, bytes] = {}
        for name, value in values.items():
            if not LEAST_BYTES <= len(value) <= MOST_BYTES:
                raise InvalidRequest(
                    f"secret {name}: its value must have {LEAST_BYTES} to {MOST_BYTES} bytes to be masked in output",
                    reason="invalid_secret",
                    fix="use a longer secret, or one that the proxy puts in, which never enters the box",
                )
            for spelling in spellings(value):
                self._names.setdefault(spelling, f"[secret:{name}]".encode() if shown is None else shown)
        if len(self._names) > MOST_SPELLINGS:
            raise InvalidRequest(
                "the secrets of one run have too many lines, or texts, to be masked in its output",
                reason="invalid_secret",
                fix="ask for fewer secrets, or for ones with fewer lines",
            )
        self._heads: dict[bytes, list[bytes]] = {}
        for spelling in self._names:
            self._heads.setdefault(spelling[:_HEAD], []).append(spelling)
        self._sorted = sorted(self._heads)
        self._pattern = re.compile(_one_of(self._sorted)) if self._sorted else None

    def __repr__(self) -> str:
        """Tell how many there are, and nothing else."""
        return f"Masks({len(set(self._names.values()))})"

    def __bool__(self) -> bool:
        """Whether there is anything to mask."""
        return self._pattern is not None

    def mask(self, data: bytes) -> bytes:
        """Return all of `data` with names in the place of values."""
        if len(data) <= PIECE_BYTES:
            return self.whole(data)
        masker = self.stream()
        pieces = (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))
        return b"".join((*map(masker.add, pieces), masker.finish()))

    def whole(self, data: bytes) -> bytes:
        """Return `data` masked in one go; for what is known to be short."""
        return self._cut(data, more=False)[0]

    def mask_text(self, text: str) -> str:
        """Return a text with names in the place of values."""
        return self.mask(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def stream(self, *, steady: bool = False) -> Masker:
        """Return what masks one stream, piece by piece; a `steady` one holds as much back whatever comes."""
        return Masker(self, self.split_steadily if steady else self.split)

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """Return what of `data` can be shown, masked, and the rest, which may be the beginning of a value."""
        return self._cut(data, more=True)

    @property
    def longest(self) -> int:
        """How long the longest spelling is."""
        return max(map(len, self._names), default=0)

    def split_steadily(self, data: bytes) -> tuple[bytes, bytes]:
        """Return what of `data` can be shown, masked, and its last bytes: always as many, whatever they are.

        `split` keeps back what looks like a value. Whoever can have a guess of their own said, and see whether it comes
        at once, would learn a value from that, letter by letter.
        """
        bound, at = len(data) - self.longest + 1, 0
        shown: list[bytes] = []
        while self._pattern is not None and (found := self._pattern.search(data, at)) and found.start() < bound:
            start = found.start()
            size, spelling = self._match(data, start, found[0])
            shown += (data[at:start], self._names[spelling])
            at = start + size
        end = max(at, bound)
        return b"".join((*shown, data[at:end])), data[end:]

    def _cut(self, data: bytes, *, more: bool) -> tuple[bytes, bytes]:
        """Mask `data`; where `more` comes, only up to what that may continue.

        What is found is never looked at again, and what is not costs at most a head: a guest that prints the beginning
        of a secret over and over must not keep the host busy.
        """
        if self._pattern is None:
            return data, b""
        shown: list[bytes] = []
        at = 0
        begun = self._first_begun(data, 0) if more else len(data)
        while (found := self._pattern.search(data, at)) is not None and found.start() < begun:
            start = found.start()
            size, spelling = self._match(data, start, found[0])
            if more and len(data) <= start + size and len(data) < start + len(spelling):  # it may go on
                begun = start
                break
            shown += (data[at:start], self._names[spelling])
            at = start + size
            if begun < at:
                begun = self._first_begun(data, at)
        return b"".join((*shown, data[at:begun])), data[begun:]

    def _match(self, data: bytes, start: int, head: bytes) -> tuple[int, bytes]:
        """Return which spelling with that head stands there, and how much is to be masked of what does."""
        alike = self._heads[head]
        if not self._blind:
            return max((_alike(data, start, each), each) for each in alike)
        spelling = max([each for each in alike if data.startswith(each, start)] or alike, key=len)
        return len(spelling), spelling

    def _first_begun(self, data: bytes, start: int) -> int:
        """Return the first place from which all the rest is the beginning of a head, and not all of it."""
        for at in range(max(start, len(data) - _HEAD + 1), len(data)):
            rest = data[at:]
            after = bisect_right(self._sorted, rest)
            if after < len(self._sorted) and self._sorted[after].startswith(rest):
                return at
        return len(data)


class Masker:
    """One stream: holds back only what may be the beginning of a value, until that is known."""

    __slots__ = ("_held", "_masks", "_split", "found")

    def __init__(self, masks: Masks, split: Callable[[bytes], tuple[bytes, bytes]]) -> None:
        """Nothing has come yet."""
        self._masks, self._split = masks, split
        self._held = b""
        self.found = False
        """Whether anything was masked."""

    def add(self, data: bytes) -> bytes:
        """Return what can be shown now that `data` has come."""
        whole = self._held + data
        shown, self._held = self._split(whole)
        self.found = self.found or not whole.startswith(shown)
        return shown

    def finish(self) -> bytes:
        """Return what was held back; nothing more comes."""
        rest, held, self._held = self._masks.whole(self._held), self._held, b""
        self.found = self.found or rest != held
        return rest


def _one_of(words: Sequence[bytes]) -> bytes:
    """Return a pattern for the longest of these words, sorted, in which no two ways begin with the same byte.

    Ten thousand words beside each other would each be tried at every byte of an output.
    """
    shared = words[0][: _alike(words[0], 0, words[-1])]
    rests = [word[len(shared) :] for word in words]
    ways = [_one_of(tuple(alike)) for _, alike in groupby(filter(None, rests), lambda rest: rest[:1])]
    if not ways:
        return re.escape(shared)
    return re.escape(shared) + b"(?:" + b"|".join(ways) + (b")" if rests[0] else b")?")


def _alike(data: bytes, at: int, spelling: bytes) -> int:
    """Return how much of `spelling` stands in `data`, by halves: as fast as memory, whatever it is."""
    low, high = 0, min(len(spelling), len(data) - at)
    while low < high:
        middle = (low + high + 1) // 2
        if data.startswith(spelling[low:middle], at + low):
            low = middle
        else:
            high = middle - 1
    return low


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


_MARKUP: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# how servers write a text that has what base64 and passwords have: `+`, `/`, `=`, quotes
_WRITERS: Final = (
    str.maketrans(_MARKUP),
    str.maketrans({**_MARKUP, '"': "&quot;", "'": "&#x27;"}),
    str.maketrans({**_MARKUP, '"': "&quot;", "'": "&#039;"}),  # PHP
    str.maketrans({**_MARKUP, '"': "&#34;", "'": "&#39;"}),  # Jinja
    str.maketrans({**_MARKUP, '"': "&#34;", "'": "&#39;", "+": "&#43;"}),  # Go
    str.maketrans({**_MARKUP, '"': "&quot;", "'": "&#x27;", "`": "&#x60;", "=": "&#x3D;"}),  # Handlebars
    str.maketrans({**_MARKUP, '"': "&quot;", "'": "&#39;", "`": "&#x60;", "=": "&#x3D;", "/": "&#x2F;"}),  # mustache
    str.maketrans({"\\": "\\\\", '"': '\\"', **{sign: f"\\u{ord(sign):04x}" for sign in "&<>"}}),  # JSON of Go
    str.maketrans({"\\": "\\\\", **{sign: f"\\u{ord(sign):04X}" for sign in "\"&'+<>`"}}),  # and of .NET
)


def _escaped(value: bytes) -> Iterable[bytes]:
    percent = quote(value, safe="").encode()
    yield from (percent, percent.lower(), quote(value).encode(), quote_plus(value).encode())
    yield "".join(f"%{byte:02X}" for byte in value).encode()
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return
    for ascii_only in (True, False):
        plain = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        yield from (plain.encode(), plain.replace("/", "\\/").encode())  # the second is PHP's
    for table in _WRITERS:
        yield text.translate(table).encode()
    yield repr(text)[1:-1].encode()
    yield shlex.quote(text).encode()
    yield from (text.upper().encode(), text.lower().encode())
    wide = text.encode("utf-16-le")
    yield from (wide, *_in_base64(wide))  # what PowerShell takes as a command
