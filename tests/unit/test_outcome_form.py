"""What the service writes of an outcome and what its client reads are the same outcome."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.authority.taint import Tainted
from ringfence.errors import Unavailable
from ringfence.outcome import (
    Artifact,
    BrokerOutcome,
    Budget,
    Destination,
    Effect,
    ExecutionResult,
    FileChanges,
    Layers,
    Network,
    Pending,
    SandboxType,
    Status,
)
from ringfence.outcome_form import broker_form, read_broker, read_result, result_form

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
COUNTS = st.integers(0, 2**40)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "status": st.sampled_from(Status),
    "exit_code": st.none() | st.integers(-64, 255),
    "stdout_raw": st.binary(max_size=20),
    "stderr_raw": TEXTS.map(str.encode),
    "stdout_bytes": COUNTS,
    "stderr_bytes": COUNTS,
    "stdout_truncated": st.booleans(),
    "stderr_truncated": st.booleans(),
    "stdout_left_out": COUNTS,
    "stderr_left_out": COUNTS,
    "killed_by": st.none() | TEXTS,
    "error": st.none() | TEXTS,
    "error_code": st.none() | TEXTS,
    "reason": st.none() | TEXTS,
    "elapsed_ms": st.floats(0, 1e9),
    "cpu_ms": COUNTS,
    "memory_peak_bytes": st.none() | COUNTS,
    "sandbox_id": TEXTS,
    "sandbox_type": st.sampled_from(SandboxType),
    "backend": TEXTS,
    "isolation": st.builds(Layers, namespaces=st.tuples(TEXTS), notes=st.tuples(TEXTS), landlock_abi=COUNTS),
    "artifacts": st.tuples(st.builds(Artifact, path=TEXTS, size=COUNTS, sha256=TEXTS, content=st.just(b""))),
    "files_written": st.tuples(TEXTS, TEXTS),
    "changes": st.builds(
        FileChanges,
        sizes=st.tuples(COUNTS),
        deleted=st.tuples(TEXTS),
        uncollected=st.tuples(st.tuples(TEXTS, TEXTS)),
        complete=st.booleans(),
        kept=st.booleans(),
        denied=st.tuples(TEXTS),
    ),
    "pending": st.none()
    | st.builds(
        Pending,
        exec_id=TEXTS,
        added=st.tuples(TEXTS),
        modified=st.tuples(TEXTS),
        deleted=st.tuples(TEXTS),
        diff=TEXTS,
        complete=st.booleans(),
        size=COUNTS,
        expires_at_ms=st.none() | COUNTS,
    ),
    "tasks_peak": st.none() | COUNTS,
    "notes": st.tuples(TEXTS),
    "exec_id": TEXTS,
    "evidence_id": st.none() | TEXTS,
    "risk": st.none() | TEXTS,
    "value": st.none() | TEXTS,
    "network": st.none()
    | st.builds(
        Network,
        destinations=st.tuples(st.builds(Destination, host=TEXTS, port=COUNTS, decision=TEXTS, address=TEXTS)),
        not_shown=COUNTS,
        complete=st.booleans(),
    ),
    "tainted": st.none() | st.builds(Tainted, by=TEXTS, reached=TEXTS, at_ms=COUNTS),
    "kept_in": st.none() | TEXTS,
    "digests": st.none() | st.dictionaries(TEXTS, TEXTS | COUNTS, max_size=2),
}
RESULTS = st.builds(ExecutionResult, **FIELDS)
BROKERED = st.builds(
    BrokerOutcome,
    operation=TEXTS,
    out=st.dictionaries(TEXTS, COUNTS | TEXTS | st.lists(COUNTS, max_size=2), max_size=3),
    content=st.none() | st.binary(max_size=20),
    used=st.builds(Budget, bytes_out=COUNTS, memory_peak_bytes=st.none() | COUNTS),
    effects=st.tuples(st.builds(Effect, kind=TEXTS, meta=st.dictionaries(TEXTS, COUNTS | TEXTS, max_size=2))),
    exec_id=TEXTS,
    tainted=FIELDS["tainted"],
    evidence_id=st.none() | TEXTS,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
ONE = result_form(ExecutionResult(Status.SUCCEEDED, artifacts=(Artifact("a", 1, "00"),)))


@given(RESULTS)
def test_a_result_read_back_is_equal_field_by_field(result: ExecutionResult) -> None:
    assert read_result(json.loads(json.dumps(result_form(result)))) == result


@given(BROKERED)
def test_a_brokered_outcome_read_back_is_equal_field_by_field(outcome: BrokerOutcome) -> None:
    assert read_broker(json.loads(json.dumps(broker_form(outcome)))) == outcome


def test_output_that_is_not_text_is_kept_byte_by_byte() -> None:
    result = ExecutionResult(Status.SUCCEEDED, stdout_raw=b"\xff\x00\xfe", stderr_raw="\ufffd".encode())
    read = read_result(result_form(result))
    assert (read.stdout_raw, read.stderr_raw) == (b"\xff\x00\xfe", b"\xef\xbf\xbd")


@given(st.sampled_from(sorted(ONE)), JSON)
def test_a_member_of_another_type_is_refused_or_read_and_never_anything_else(name: str, value: Any) -> None:
    with suppress(Unavailable):
        read_result({**ONE, name: value})


@given(JSON)
def test_what_is_no_outcome_at_all_is_refused_in_our_words(form: Any) -> None:
    for read in (read_result, read_broker):
        with pytest.raises(Unavailable):
            read(form)


def test_a_member_of_a_later_release_is_left_out() -> None:
    assert read_result({**ONE, "novelty": 1}) == read_result(ONE)


def test_every_field_of_a_result_is_tried_here() -> None:
    assert [field.name for field in fields(ExecutionResult)] == list(FIELDS)
