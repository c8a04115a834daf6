"""The proofs of many runs of one log at once, for the price of reading the log's hashes a single time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice

from ringfence.errors import InvalidRequest
from ringfence.evidence.merkle import Frontier, RootIn, node_hash, roots_in


def inclusion_proofs(
    indices: Iterable[int], size: int, hashes: Iterable[bytes], start: Frontier | None = None
) -> dict[int, tuple[bytes, ...]]:
    """Return the audit paths of some records in the tree of `size` entries, each as `inclusion_proof` has it.

    A path on its own takes the hashes of the whole log. Here they pass by once, and only the paths are kept.

    Args:
        indices: Which records.
        size: Of how many records the tree is.
        hashes: The record hashes in their order, from the first that was not dropped on.
        start: The frontier of the records that were dropped from the front.

    Raises:
        InvalidRequest: A record is not in the tree, was dropped, or there are fewer hashes than the tree has records.
    """
    wanted = sorted(set(indices))
    if wanted and not 0 <= wanted[0] <= wanted[-1] < size:
        raise InvalidRequest(f"a tree of {size} has no record {wanted[0]} or {wanted[-1]}", reason="no_proof")
    passing: Iterator[bytes] = iter(hashes)
    paths: dict[int, list[bytes]] = {index: [] for index in wanted}
    if wanted:
        # subtrees are asked for from left to right and none twice, so the next hashes are always those asked for
        _collect(wanted, 0, size, roots_in(lambda begin, end: islice(passing, end - begin), start), paths)
    return {index: tuple(path) for index, path in paths.items()}


def _collect(wanted: list[int], begin: int, end: int, root_in: RootIn, paths: dict[int, list[bytes]]) -> bytes:
    """Return the root over a range, and add to each path inside it the nodes beside that path, lowest first."""
    if not wanted or end - begin == 1:
        return root_in(begin, end)
    middle = begin + (1 << (end - begin - 1).bit_length() - 1)
    split = bisect_left(wanted, middle)
    left = _collect(wanted[:split], begin, middle, root_in, paths)
    right = _collect(wanted[split:], middle, end, root_in, paths)
    for index in wanted[:split]:
        paths[index].append(right)
    for index in wanted[split:]:
        paths[index].append(left)
    return node_hash(left, right)
