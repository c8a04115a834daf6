"""The tree over a log: the published vectors, every proof of every small tree, and logs whose front was dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest
from ringfence.evidence.merkle import (
    EMPTY_ROOT,
    Frontier,
    RootIn,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    node_hash,
    roots_in,
    verify_consistency,
    verify_inclusion,
)

# The eight leaves, roots and paths that the certificate-transparency projects share as test data.
LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
PATHS = {
    (0, 1): (),
    (0, 8): (
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ),
    (5, 8): (
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ),
    (2, 3): ("fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",),
    (1, 5): (
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ),
}
CONSISTENCY = {
    (1, 1): (),
    (1, 8): (
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ),
    (6, 8): (
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ),
    (2, 5): (
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ),
}
ENTRIES = [bytes([number]) * 32 for number in range(65)]


def of(entries: list[bytes]) -> Callable[[int, int], Iterable[bytes]]:
    return lambda begin, end: entries[begin:end]


def from_front_of(start: Frontier) -> RootIn:
    """Roots of a log whose records below `start.size` are gone: asking for one of them is an error of the test."""

    def left(begin: int, end: int) -> list[bytes]:
        assert begin >= start.size
        return ENTRIES[begin:end]

    return roots_in(left, start)


def naive_root(entries: list[bytes]) -> bytes:
    """The definition of RFC 6962, word for word."""
    if not entries:
        return EMPTY_ROOT
    if len(entries) == 1:
        return leaf_hash(entries[0])
    split = 1
    while split * 2 < len(entries):
        split *= 2
    return node_hash(naive_root(entries[:split]), naive_root(entries[split:]))


ROOT = [naive_root(ENTRIES[:size]) for size in range(66)]


def test_the_empty_tree_has_the_hash_of_nothing() -> None:
    assert Frontier().root().hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_the_published_roots_are_found() -> None:
    frontier = Frontier()
    for leaf, root in zip(LEAVES, ROOTS, strict=True):
        frontier = frontier.add(leaf)
        assert frontier.root().hex() == root


@pytest.mark.parametrize(("place", "path"), PATHS.items())
def test_the_published_audit_paths_are_found_and_verified(place: tuple[int, int], path: tuple[str, ...]) -> None:
    index, size = place
    proof = inclusion_proof(index, size, roots_in(of(LEAVES)))
    assert tuple(node.hex() for node in proof) == path
    assert verify_inclusion(LEAVES[index], index, size, proof, bytes.fromhex(ROOTS[size - 1]))


@pytest.mark.parametrize(("sizes", "path"), CONSISTENCY.items())
def test_the_published_consistency_proofs_are_found_and_verified(sizes: tuple[int, int], path: tuple[str, ...]) -> None:
    old, new = sizes
    proof = consistency_proof(old, new, roots_in(of(LEAVES)))
    assert tuple(node.hex() for node in proof) == path
    assert verify_consistency(old, new, bytes.fromhex(ROOTS[old - 1]), bytes.fromhex(ROOTS[new - 1]), proof)


def test_a_frontier_has_the_root_of_the_definition_however_it_grew() -> None:
    grown = Frontier()
    for size in range(65):
        assert grown.root() == ROOT[size]
        assert Frontier().extend(ENTRIES[:size]) == grown == Frontier.from_text(grown.to_text())
        grown = grown.add(ENTRIES[size])


def test_every_record_of_every_small_tree_is_proved_and_at_no_other_place() -> None:
    root_in = roots_in(of(ENTRIES))
    for size in range(1, 65):
        for index in range(size):
            proof = inclusion_proof(index, size, root_in)
            assert verify_inclusion(ENTRIES[index], index, size, proof, ROOT[size])
            assert not verify_inclusion(ENTRIES[index + 1], index, size, proof, ROOT[size])
            assert not verify_inclusion(ENTRIES[index], index + 1, size, proof, ROOT[size])
            assert not verify_inclusion(ENTRIES[index], index, size, (*proof, ROOT[1]), ROOT[size])
            assert not verify_inclusion(ENTRIES[index], index, size, proof[:-1], ROOT[size]) or size == 1


def test_every_small_tree_is_proved_to_continue_every_smaller_one() -> None:
    root_in = roots_in(of(ENTRIES))
    for size in range(1, 65):
        for old in range(1, size + 1):
            proof = consistency_proof(old, size, root_in)
            assert verify_consistency(old, size, ROOT[old], ROOT[size], proof)
            assert not verify_consistency(old, size, ROOT[old - 1], ROOT[size], proof)
            assert not verify_consistency(old, size, ROOT[old], ROOT[size + 1], proof)
            assert not verify_consistency(old, size, ROOT[old], ROOT[size], (*proof, ROOT[1]))
            assert not verify_consistency(old, size, ROOT[old], ROOT[size], proof[:-1]) or old == size


def test_a_log_without_its_front_still_proves_every_record_and_size_after_it() -> None:
    for dropped in range(33):
        root_in = from_front_of(Frontier().extend(ENTRIES[:dropped]))
        for size in range(max(dropped, 1), 65):
            for index in range(dropped, size):
                proof = inclusion_proof(index, size, root_in)
                assert verify_inclusion(ENTRIES[index], index, size, proof, ROOT[size])
            for old in range(max(dropped, 1), size + 1):
                assert verify_consistency(old, size, ROOT[old], ROOT[size], consistency_proof(old, size, root_in))


def test_a_dropped_record_can_no_longer_be_proved() -> None:
    root_in = from_front_of(Frontier().extend(ENTRIES[:6]))
    for index in range(6):
        with pytest.raises(InvalidRequest, match="dropped"):
            inclusion_proof(index, 10, root_in)
    with pytest.raises(InvalidRequest, match="dropped"):
        consistency_proof(3, 10, root_in)


def test_a_log_that_is_shorter_than_it_says_proves_nothing() -> None:
    with pytest.raises(InvalidRequest, match="does not hold all"):
        inclusion_proof(3, 80, roots_in(of(ENTRIES)))


@given(st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=200), st.data())
def test_a_changed_entry_or_node_is_proved_nowhere(entries: list[bytes], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(entries) - 1))
    root = Frontier().extend(entries).root()
    proof = list(inclusion_proof(index, len(entries), roots_in(of(entries))))
    assert verify_inclusion(entries[index], index, len(entries), proof, root)
    at = data.draw(st.integers(0, len(proof)))
    flip = bytes([1]) + bytes(31)
    changed = bytes(a ^ b for a, b in zip(entries[index] if at == len(proof) else proof[at], flip, strict=True))
    if at == len(proof):
        assert not verify_inclusion(changed, index, len(entries), proof, root)
    else:
        proof[at] = changed
        assert not verify_inclusion(entries[index], index, len(entries), proof, root)


@pytest.mark.parametrize(
    "text",
    ["", "0", "1:", "0:" + "aa" * 32, "01:" + "aa" * 32, "1:" + "AA" * 32, "3:" + "aa" * 32, "1:" + "aa" * 32 + "\n"],
)
def test_what_is_no_frontier_is_not_read_as_one(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Frontier.from_text(text)
