"""The seal on a record: its one canonical text, its hash, and the hash of the record before it in its log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

from ringfence.dataclass import dataclass, field
from ringfence.errors import InvalidRequest
from ringfence.evidence.merkle import HASH_BYTES, Frontier

VERSION: Final = 1
NO_HASH: Final = bytes(HASH_BYTES)
"""What the first record of a log names as the hash of the one before it."""

# Beyond this a reader whose numbers are IEEE doubles, as RFC 8785 assumes, could not tell a number from the next.
_LARGEST: Final = 2**53 - 1
# A list that holds itself would be walked for ever.
_MOST_CONTAINERS: Final = 100_000
_PLAIN: Final = frozenset({str, bool})
_SET_BY_LOG: Final = frozenset({"v", "log_id", "seq", "prev_hash", "hash"})

# With ASCII keys, sorting by code point is RFC 8785's sorting by UTF-16 unit; its escapes are those of this encoder.
_encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False
).encode


class Sealed(NamedTuple):
    """A record as it goes into its log."""

    seq: int
    hash: bytes
    text: str
    """The canonical text, which has every member but `hash`."""


@dataclass(frozen=True, slots=True)
class Head:
    """Where a log stands; sealing makes a new head, so a transaction that fails just drops it."""

    log_id: str
    size: int = 0
    last_hash: bytes = NO_HASH
    frontier: Frontier = field(default_factory=Frontier)

    @classmethod
    def empty(cls, log_id: str) -> Head:
        """Return the head of a log without records."""
        return cls(log_id)

    def seal(self, members: Mapping[str, Any]) -> tuple[Sealed, Head]:
        """Return the next record of this log, and the log's head after it.

        Raises:
            InvalidRequest: A value has no canonical form, or a member is one that the log itself writes.
        """
        if not _SET_BY_LOG.isdisjoint(members):
            taken = ", ".join(sorted(_SET_BY_LOG.intersection(members)))
            raise _refused(f"the log itself writes {taken} into its records")
        text = _canonical_text(
            {
                **members,
                "v": VERSION,
                "log_id": self.log_id,
                "seq": self.size,
                "prev_hash": self.last_hash.hex(),
            }
        )
        digest = sha256(_utf8(text)).digest()
        return Sealed(self.size, digest, text), Head(self.log_id, self.size + 1, digest, self.frontier.add(digest))


def canonical_record(members: Mapping[str, Any]) -> bytes:
    """Return the one RFC 8785 form of a record, which is what is hashed, stored and exported.

    Raises:
        InvalidRequest: A value is none of text, whole number below 2^53, truth value, list and object with ASCII keys.
    """
    return _utf8(_canonical_text(dict(members)))


def record_hash(text: str) -> bytes:
    """Return the hash of a record from its canonical text, which it does not check.

    Raises:
        InvalidRequest: The text holds half a surrogate pair.
    """
    return sha256(_utf8(text)).digest()


def read_record(text: str) -> dict[str, Any]:
    """Return the members of a record from its canonical text, and from no other text with the same meaning.

    Raises:
        InvalidRequest: The text is not, byte for byte, the canonical form of what it says.
    """
    try:
        text.encode()
        members = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused("the record is not JSON in UTF-8") from error
    # Writing it again finds repeated keys, blanks, other escapes and other spellings of a number all at once.
    if type(members) is not dict or _canonical_text(members) != text:
        raise _refused("the record is not in its canonical form")
    return members


def _canonical_text(members: dict[str, Any]) -> str:
    _require_canonical_values(members)
    try:
        return _encode(members)
    except RecursionError as error:
        raise _refused("a value is nested too deep") from error


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _refused("a text holds half a surrogate pair") from error


def _require_canonical_values(members: dict[str, Any]) -> None:
    # A walk takes half the time of the encoder; searching the text it made for what looks wrong was measured at thrice.
    found: list[Any] = [members]
    keys: set[Any] = set()
    for number, container in enumerate(found):  # which grows meanwhile
        if number > _MOST_CONTAINERS:
            raise _refused("a record holds too many lists and objects, or itself")
        values = container
        if type(container) is dict:
            keys.update(container)
            values = container.values()
        if _PLAIN.issuperset(map(type, values)):  # most of them are, and this is one call
            continue
        for value in values:
            kind = type(value)
            if kind is str or kind is bool:
                continue
            if kind is int:
                if not -_LARGEST <= value <= _LARGEST:
                    raise _refused("a whole number is not below 2^53")
            elif kind is dict or kind is list or kind is tuple:
                found.append(value)
            elif not isinstance(value, str):  # an enumeration of texts is one
                raise _refused(f"a value of type {kind.__name__} has no place in a record")
    _require_ascii(keys)


def _require_ascii(keys: set[Any]) -> None:
    try:
        if "".join(keys).isascii():
            return
    except TypeError as error:
        raise _refused("a key is not text") from error
    raise _refused("a key is not ASCII")


def _refused(problem: str) -> InvalidRequest:
    return InvalidRequest(problem, reason="not_canonical")
