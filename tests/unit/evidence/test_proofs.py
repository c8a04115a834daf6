"""Many proofs made in one pass are the proofs made one by one."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest
from ringfence.evidence.merkle import Frontier, inclusion_proof, roots_in, verify_inclusion
from ringfence.evidence.proofs import inclusion_proofs

HASHES = [sha256(str(number).encode()).digest() for number in range(200)]


@given(st.integers(1, 200), st.data())
def test_each_proof_is_the_one_made_for_that_record_alone(size: int, data: st.DataObject) -> None:
    wanted = data.draw(st.sets(st.integers(0, size - 1)))
    root = Frontier().extend(HASHES[:size]).root()
    found = inclusion_proofs(wanted, size, HASHES[:size])
    assert found.keys() == wanted
    for index, proof in found.items():
        assert proof == inclusion_proof(index, size, roots_in(lambda begin, end: HASHES[begin:end]))
        assert verify_inclusion(HASHES[index], index, size, proof, root)


@given(st.integers(1, 200), st.data())
def test_records_after_those_that_were_dropped_have_their_proofs(size: int, data: st.DataObject) -> None:
    dropped = data.draw(st.integers(0, size - 1))
    wanted = data.draw(st.sets(st.integers(dropped, size - 1)))
    found = inclusion_proofs(wanted, size, HASHES[dropped:size], Frontier().extend(HASHES[:dropped]))
    assert found == inclusion_proofs(wanted, size, HASHES[:size])


def test_each_hash_is_read_once() -> None:
    read = 0

    def passing() -> Iterator[bytes]:
        nonlocal read
        for one in HASHES:
            read += 1
            yield one

    inclusion_proofs(range(0, 200, 3), 200, passing())
    assert read == 200


@pytest.mark.parametrize("index", [-1, 10])
def test_a_record_outside_the_tree_has_no_proof(index: int) -> None:
    with pytest.raises(InvalidRequest):
        inclusion_proofs([index], 10, HASHES[:10])


def test_a_dropped_record_has_no_proof_and_neither_has_one_of_a_log_with_a_gap() -> None:
    with pytest.raises(InvalidRequest):
        inclusion_proofs([2], 10, HASHES[5:10], Frontier().extend(HASHES[:5]))
    with pytest.raises(InvalidRequest):
        inclusion_proofs([2], 10, HASHES[:9])
