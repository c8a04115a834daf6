"""The RFC 6962 tree over the record hashes of one log: its root, and proofs that a run is in it and nothing left it.

An *entry* is what a log appends, the 32-byte hash of a record. A tree is kept as a `Frontier`, the roots of its
complete subtrees, so that a log of any length goes on from a few hashes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import TypeAlias

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest

HASH_BYTES = 32
EMPTY_ROOT = sha256().digest()

RootIn: TypeAlias = Callable[[int, int], bytes]
"""Answers with the root over the entries from the first number on, up to and without the second."""

_TEXT = re.compile(r"(0|[1-9][0-9]{0,15}):((?:[0-9a-f]{64})*)")


def leaf_hash(entry: bytes) -> bytes:
    """Return the hash of a leaf; the leading 0x00 keeps an inner node from being passed off as a leaf."""
    return sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node."""
    return sha256(b"\x01" + left + right).digest()


@dataclass(frozen=True, slots=True)
class Frontier:
    """The roots of the complete subtrees that a tree of `size` entries is made of, largest first."""

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is the frontier of no tree."""
        if self.size < 0 or len(self.hashes) != self.size.bit_count():
            raise _refused(f"no tree of {self.size} entries has the frontier given")

    def add(self, entry: bytes) -> Frontier:
        """Return the frontier with one more entry."""
        grown = list(self.hashes)
        _append(grown, self.size, leaf_hash(entry))
        return Frontier(self.size + 1, tuple(grown))

    def extend(self, entries: Iterable[bytes]) -> Frontier:
        """Return the frontier with all of these entries after it, in less time than adding them one by one."""
        grown, size = list(self.hashes), self.size
        for entry in entries:
            _append(grown, size, leaf_hash(entry))
            size += 1
        return Frontier(size, tuple(grown))

    def root(self) -> bytes:
        """Return the root of the whole tree."""
        return _fold(self.hashes) if self.hashes else EMPTY_ROOT

    def to_text(self) -> str:
        """Write it as `size:` and the hashes in hexadecimal."""
        return f"{self.size}:{b''.join(self.hashes).hex()}"

    @classmethod
    def from_text(cls, text: str) -> Frontier:
        """Read what `to_text` wrote, and nothing else.

        Raises:
            InvalidRequest: It is not the text of a frontier.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise _refused("this is not the text of a frontier")
        joined = bytes.fromhex(match[2])
        return cls(int(match[1]), tuple(joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES)))

    def spans(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield where each complete subtree begins and ends, and its root."""
        begin = 0
        for width, one in zip(_widths(self.size), self.hashes, strict=True):
            yield begin, begin + width, one
            begin += width


def roots_in(entries: Callable[[int, int], Iterable[bytes]], start: Frontier | None = None) -> RootIn:
    """Make the function that proofs are built with, from what is left of a log.

    With the first k records of a log gone, `Frontier(k)` stands for them. That is enough for the inclusion of every
    record from k on and for consistency from every size from k on. The inclusion of a dropped record, and consistency
    from a size below k that is not itself made of subtrees of that frontier, need hashes that are gone: refused.

    Args:
        entries: Gives the record hashes from one sequence number up to and without another, none below `start.size`.
        start: The frontier of the records that were dropped from the front.
    """
    dropped = start or Frontier()

    def root_in(begin: int, end: int) -> bytes:
        within = [span for span in dropped.spans() if begin <= span[0] and span[1] <= end]
        covered = within[-1][1] if within else begin
        if (within and within[0][0] != begin) or covered < min(end, dropped.size):
            raise _refused(f"records {begin} to {end - 1} were dropped from this log, and a hash over them is needed")
        # `begin` is a multiple of the width of every subtree after it, so a range may be folded like a tree of its own
        front = Frontier(covered - begin, tuple(span[2] for span in within))
        whole = front.extend(entries(covered, end)) if covered < end else front
        if whole.size != end - begin:
            raise _refused(f"the log does not hold all of the records {begin} to {end - 1}")
        return whole.root()

    return root_in


def inclusion_proof(index: int, size: int, root_in: RootIn) -> tuple[bytes, ...]:
    """Return the audit path of one record in the tree of `size` entries, lowest node first (RFC 6962, 2.1.1)."""
    if not 0 <= index < size:
        raise _refused(f"there is no record {index} in a tree of {size}")
    path: list[bytes] = []
    begin, end = 0, size
    while end - begin > 1:
        middle = begin + _largest_power_below(end - begin)
        if index < middle:
            path.append(root_in(middle, end))
            end = middle
        else:
            path.append(root_in(begin, middle))
            begin = middle
    return tuple(reversed(path))


def verify_inclusion(entry: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Tell whether the proof shows this entry at this place in the tree with this size and root (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size or any(len(one) != HASH_BYTES for one in proof):
        return False
    place, last, node = index, size - 1, leaf_hash(entry)
    for one in proof:
        if last == 0:
            return False
        if place & 1 or place == last:
            node = node_hash(one, node)
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            node = node_hash(node, one)
        place, last = place >> 1, last >> 1
    return last == 0 and node == root


def consistency_proof(old_size: int, size: int, root_in: RootIn) -> tuple[bytes, ...]:
    """Return the proof that the tree of `size` continues the one of `old_size` (RFC 6962, 2.1.2)."""
    if not 0 < old_size <= size:
        raise _refused(f"a tree of {size} entries continues no tree of {old_size} that could be proved")
    path: list[bytes] = []
    begin, end, known = 0, size, True
    while old_size != end:
        middle = begin + _largest_power_below(end - begin)
        if old_size <= middle:
            path.append(root_in(middle, end))
            end = middle
        else:
            path.append(root_in(begin, middle))
            begin, known = middle, False
    if not known:
        path.append(root_in(begin, end))
    return tuple(reversed(path))


def verify_consistency(old_size: int, size: int, old_root: bytes, root: bytes, proof: Sequence[bytes]) -> bool:
    """Tell whether the proof shows that the second tree only appended to the first (RFC 9162, 2.1.4.2)."""
    if not 0 < old_size <= size or any(len(one) != HASH_BYTES for one in proof):
        return False
    if old_size == size:
        return not proof and old_root == root
    # a complete old tree is its own first node, and is not repeated in the proof
    nodes = [old_root, *proof] if old_size & (old_size - 1) == 0 else list(proof)
    if not nodes:
        return False
    place, last = old_size - 1, size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    old = new = nodes[0]
    for one in nodes[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            old, new = node_hash(one, old), node_hash(one, new)
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            new = node_hash(new, one)
        place, last = place >> 1, last >> 1
    return last == 0 and old == old_root and new == root


def _append(hashes: list[bytes], size: int, node: bytes) -> None:
    # every trailing 1 of the size is a complete subtree as large as the one that was just completed
    while size & 1:
        node = node_hash(hashes.pop(), node)
        size >>= 1
    hashes.append(node)


def _fold(hashes: Sequence[bytes]) -> bytes:
    root = hashes[-1]
    for left in reversed(hashes[:-1]):
        root = node_hash(left, root)
    return root


def _widths(size: int) -> Iterator[int]:
    for bit in range(size.bit_length() - 1, -1, -1):
        if size >> bit & 1:
            yield 1 << bit


def _largest_power_below(size: int) -> int:
    return 1 << (size - 1).bit_length() - 1


def _refused(problem: str) -> InvalidRequest:
    return InvalidRequest(problem, reason="no_proof")
