"""Following a log from record to record, and telling from a broken link which record was tampered with, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ringfence.dataclass import dataclass, field
from ringfence.errors import InvalidRequest
from ringfence.evidence.faults import FaultFound, Kind
from ringfence.evidence.merkle import Frontier
from ringfence.evidence.sealing import NO_HASH, VERSION, read_record, record_hash


class Row(NamedTuple):
    """A record as it is stored: its place and hash beside its text, which is gone when its content was pruned."""

    seq: int
    hash: bytes
    text: str | None


@dataclass(frozen=True, slots=True)
class Start:
    """Where what is kept of a log begins: at 0, or after the records that retention dropped."""

    log_id: str
    first_seq: int = 0
    first_prev: bytes = NO_HASH
    frontier: Frontier = field(default_factory=Frontier)


class Chain:
    """The records of one log, each held against the hash of the one before."""

    def __init__(self, start: Start, rows: Iterator[Row]) -> None:
        """Begin at the start of what is kept.

        Raises:
            FaultFound: The start does not fit itself.
        """
        self.size = start.first_seq
        self.last_hash = start.first_prev
        self.frontier = start.frontier
        self.anchored = start.first_seq
        """Up to which size a signed checkpoint was found to fit."""
        self._start = start
        self._rows = rows
        self._hash_before = b""
        whole = start.first_seq > 0 or start.first_prev == NO_HASH
        if start.frontier.size != start.first_seq or not whole:
            raise FaultFound(
                Kind.ALTERED, start.first_seq, "what the log says of its own beginning does not fit together"
            )

    def accept(self, row: Row) -> dict[str, Any] | None:
        """Take the next row, and return what its record says, or nothing where that was pruned.

        Raises:
            FaultFound: It is not the next record of this log, as it was written.
        """
        if row.seq != self.size:
            raise self._displaced(row.seq, row.seq, lambda other: other.seq)
        members = None if row.text is None else self._read(row, row.text)
        self.size += 1
        self._hash_before, self.last_hash = self.last_hash, row.hash
        self.frontier = self.frontier.add(row.hash)
        return members

    def is_last_disowned(self) -> bool:
        """Whether the row to come names another record than the last one before it; for a log known to be at fault."""
        following = next(self._rows, None)
        after = _members(following.text) if following and following.text else None
        return bool(after and after.get("seq") == self.size and after.get("prev_hash") != self.last_hash.hex())

    def _read(self, row: Row, text: str) -> dict[str, Any]:
        if _hash_of(text) != row.hash:
            raise FaultFound(Kind.ALTERED, row.seq, f"record {row.seq} was altered: its text does not have its hash")
        members = _members(text)
        if members is None or not _is_number(members.get("v"), VERSION):
            raise FaultFound(Kind.ALTERED, row.seq, f"record {row.seq} was altered: no log writes such a text")
        if members.get("log_id") != self._start.log_id:
            raise FaultFound(Kind.WRONG_LOG, row.seq, f"record {row.seq} belongs to another log")
        said = members.get("seq")
        if not _is_number(said, row.seq):
            raise self._renumbered(members, said)
        if members.get("prev_hash") != self.last_hash.hex():
            raise self._unlinked(row)
        return members

    def _renumbered(self, members: dict[str, Any], said: object) -> FaultFound:
        # The column says one place and the sealed text another: the text is right about where it was written.
        if type(said) is not int:
            return FaultFound(Kind.ALTERED, self.size, f"record {self.size} was altered: it has no place in its log")
        before = self.size - 1
        if said == before and members.get("prev_hash") == self._hash_before.hex():
            return FaultFound(Kind.INSERTED, before, f"a record was inserted: two claim to be record {before}")
        return self._displaced(said, self.size, _place_in_text)

    def _displaced(self, found: int, at: int, place_of: Callable[[Row], int | None]) -> FaultFound:
        """Say what happened when another record stands where `self.size` should; reads the log to its end."""
        expected = self.size
        if found < expected:
            return FaultFound(Kind.INSERTED, at, f"a record was inserted: record {found} is there twice")
        comes_later = found_again = False
        greatest = -1
        for row in self._rows:
            place = place_of(row)
            if place is not None:
                comes_later, found_again = comes_later or place == expected, found_again or place == found
                greatest = max(greatest, place)
        if not comes_later:
            return FaultFound(
                Kind.REMOVED,
                expected,
                f"record {expected} was removed: after {expected - 1} comes {found}",
                found - 1 if found - 1 > expected else None,
            )
        if found_again or found > greatest + 1:
            return FaultFound(Kind.INSERTED, expected, f"a record was inserted before record {expected}")
        return FaultFound(
            Kind.REORDERED, expected, f"records were reordered: {found} stands where {expected} was written"
        )

    def _unlinked(self, row: Row) -> FaultFound:
        # Two neighbours disagree. Which of them was altered is told by whoever else vouches for one: the record after,
        # or a signed checkpoint that ends between the two.
        here, before = row.seq, row.seq - 1
        following = next(self._rows, None)
        after = _members(following.text) if following and following.text else None
        if after and after.get("seq") == here and after.get("prev_hash") == self.last_hash.hex():
            return FaultFound(Kind.INSERTED, here, f"a record was inserted: two claim to be record {here}")
        altered = "was altered, and its hash with it"
        if here == self._start.first_seq:
            return FaultFound(
                Kind.ALTERED, here, f"record {here} {altered}, or the log's note of what came before its first record"
            )
        if self.anchored == here:
            return FaultFound(Kind.ALTERED, here, f"record {here} {altered}: a checkpoint vouches for the one before")
        if after and after.get("prev_hash") == row.hash.hex():
            return FaultFound(Kind.ALTERED, before, f"record {before} {altered}: record {here} names another hash")
        return FaultFound(Kind.ALTERED, before, f"record {before} or {here} {altered}: they do not fit together", here)


def _is_number(value: object, number: int) -> bool:
    return type(value) is int and value == number  # True equals 1


def _hash_of(text: str) -> bytes | None:
    try:
        return record_hash(text)
    except InvalidRequest:
        return None


def _members(text: str) -> dict[str, Any] | None:
    try:
        return read_record(text)
    except InvalidRequest:
        return None


def _place_in_text(row: Row) -> int | None:
    members = _members(row.text) if row.text else None
    place = members.get("seq") if members else row.seq
    return place if type(place) is int else None
