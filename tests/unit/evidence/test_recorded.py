"""A recorded result comes back exactly, or not at all; a run made again is compared by digests alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.evidence.described import CannotTell
from ringfence.evidence.drift import Concern, compare, outputs_digest_of
from ringfence.evidence.recorded import from_bytes, operation_digest, operation_from_bytes, operation_to_bytes, to_bytes
from ringfence.operation import CodeRun, Language
from ringfence.operation import brokered as ask
from ringfence.operation.form import Operation
from ringfence.operation.secret import read_ask
from ringfence.outcome import (
    Artifact,
    BrokerOutcome,
    Budget,
    Destination,
    Digest,
    Effect,
    ExecutionResult,
    Layers,
    Network,
    Outcome,
    SandboxType,
    Status,
)

WORDS = st.text(max_size=8)  # lone surrogates too: file names are bytes
NUMBERS = st.integers(0, 1 << 60)
ARTIFACTS = st.builds(Artifact, WORDS, NUMBERS, WORDS, st.binary(max_size=20))
LAYERS = st.builds(
    Layers, st.lists(WORDS, max_size=2).map(tuple), st.booleans(), st.booleans(), NUMBERS, NUMBERS, WORDS,
    st.integers(-1, 9), WORDS, st.lists(WORDS, max_size=2).map(tuple),
)  # fmt: skip
PLACES = st.builds(Destination, WORDS, NUMBERS, WORDS, WORDS, WORDS, WORDS, NUMBERS, NUMBERS, NUMBERS)
NETWORKS = st.builds(Network, st.lists(PLACES, max_size=2).map(tuple), NUMBERS, st.booleans())
RUNS = st.builds(
    ExecutionResult,
    status=st.sampled_from(Status),
    exit_code=st.none() | st.integers(0, 255),
    stdout_raw=st.binary(max_size=40),
    stderr_raw=st.binary(max_size=40),
    stdout_bytes=NUMBERS,
    stdout_truncated=st.booleans(),
    killed_by=st.none() | WORDS,
    error=st.none() | WORDS,
    elapsed_ms=st.floats(0, 1e9),
    memory_peak_bytes=st.none() | NUMBERS,
    sandbox_type=st.sampled_from(SandboxType),
    isolation=LAYERS,
    artifacts=st.lists(ARTIFACTS, max_size=3).map(tuple),
    files_written=st.lists(WORDS, max_size=3).map(tuple),
    notes=st.lists(WORDS, max_size=2).map(tuple),
    exec_id=WORDS,
    risk=st.none() | WORDS,
    network=st.none() | NETWORKS,
)
VALUES = st.recursive(st.none() | st.booleans() | NUMBERS | WORDS, lambda inner: st.lists(inner, max_size=3))
BROKERED = st.builds(
    BrokerOutcome,
    operation=st.sampled_from(["fs_read", "tmp_alloc"]),
    out=st.dictionaries(WORDS, VALUES, max_size=3),
    content=st.none() | st.binary(max_size=40),
    used=st.builds(Budget, bytes_in=st.integers(0, 1 << 53), memory_peak_bytes=st.none() | NUMBERS),
    effects=st.lists(st.builds(Effect, WORDS, st.dictionaries(WORDS, WORDS | NUMBERS, max_size=2)), max_size=2).map(
        tuple
    ),
    exec_id=WORDS,
)


@settings(max_examples=150)
@given(RUNS | BROKERED)
def test_a_result_comes_back_as_it_was(outcome: Outcome) -> None:
    assert from_bytes(to_bytes(outcome)) == outcome


@settings(max_examples=150)
@given(RUNS | BROKERED, st.data())
def test_a_result_that_was_cut_off_or_added_to_does_not_come_back(outcome: Outcome, data: st.DataObject) -> None:
    whole = to_bytes(outcome)
    end = data.draw(st.integers(0, len(whole) - 1))
    assert isinstance(from_bytes(whole[:end]), CannotTell)
    assert isinstance(from_bytes(whole + b"x"), CannotTell)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"[]\n", b"7\n", b'{"form":2,"kind":"run","sizes":[]}\n', b'{"form":1,"kind":"tea","sizes":[]}\n',
     b'{"form":1,"kind":"run","sizes":[-1,1]}\n', b'{"form":1,"kind":"broker","sizes":["1"]}\nx', b"[" * 5000 + b"\n"],
)  # fmt: skip
def test_what_is_no_recorded_result_is_not_guessed_at(content: bytes) -> None:
    assert isinstance(from_bytes(content), CannotTell)


RUN = CodeRun(Language.PYTHON, "print(1)", ("a",), b"in", {"f": b"1"}, {"i": b"2"}, {"E": "v"}, ("numpy",), ("json",))
CHANGES: list[dict[str, Any]] = [
    {"language": Language.JAVASCRIPT}, {"code": "print(2)"}, {"args": ("b",)}, {"stdin": b""}, {"files": {"f": b"2"}},
    {"files": {"g": b"1"}}, {"inputs": {}}, {"env": {"E": "w"}}, {"packages": ()}, {"preload": ()},
    {"cwd": "/workspace/artifacts"}, {"ports": (8000,)}, {"domains": ("a.example",)}, {"domains": ("b.example",)},
    {"secrets": (read_ask("token=env:TOKEN"),)}, {"process_id": "pr_1"},
]  # fmt: skip
OTHERS: list[Operation] = [
    *(replace(RUN, **change) for change in CHANGES),
    ask.FsRead("a"), ask.FsRead("b"), ask.FsStat("a"), ask.FsWrite("a", b"1"), ask.FsWrite("b", b"1"),
    ask.FsWrite("a", b"1", overwrite=True), ask.ProcExec("git", ("a",)), ask.ProcExec("git", ("b",)),
    ask.NetHttp("GET", "https://example.com/?a"), ask.NetHttp("GET", "https://example.com/?b"),
]  # fmt: skip


def test_no_two_operations_answer_for_each_other() -> None:
    everything = [RUN, *OTHERS]
    assert len({operation_digest(operation) for operation in everything}) == len(everything)
    assert operation_digest(RUN) == operation_digest(replace(RUN))
    assert operation_digest(RUN, "s1") != operation_digest(RUN, "s2") != operation_digest(RUN)


@pytest.mark.parametrize("operation", [RUN, *(replace(RUN, **change) for change in CHANGES)])
def test_an_operation_comes_back_with_everything_it_was_given(operation: CodeRun) -> None:
    assert operation_from_bytes(operation_to_bytes(operation)) == operation


# --- drift ---

BEFORE = ExecutionResult(
    Status.SUCCEEDED, 0, b"out", b"err", 3, 3, artifacts=(Artifact("a", 1, "aa", b"1"), Artifact("b", 1, "bb", b"2"))
)


def ending(result: ExecutionResult) -> dict[str, Any]:
    record: dict[str, Any] = {
        "type": "exec.end",
        "outcome": str(result.status),
        "stdout": {"digest": Digest.of(result.stdout_raw).to_dict(), "bytes": result.stdout_bytes, "truncated": False},
        "stderr": {"digest": Digest.of(result.stderr_raw).to_dict(), "bytes": result.stderr_bytes, "truncated": False},
        "artifacts": [artifact.to_dict() for artifact in result.artifacts],
        "backend": result.backend,
        "sandbox_type": str(result.sandbox_type),
        "layers": result.isolation.to_dict(),
        "runtime": "3.11.2",
    }
    return record if result.exit_code is None else record | {"exit_code": result.exit_code}


@given(RUNS)
def test_a_run_is_the_same_as_itself(result: ExecutionResult) -> None:
    result = replace(result, stdout_truncated=False, stderr_truncated=False, killed_by=None)
    result = replace(result, artifacts=tuple({artifact.path: artifact for artifact in result.artifacts}.values()))
    drift = compare({}, ending(result), result)
    assert drift.is_same
    assert drift.differences == ()
    assert list(drift.lines()) == ["it came out the same"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"status": Status.FAILED}, "outcome"),
        ({"exit_code": 1}, "exit code"),
        ({"exit_code": None}, "exit code"),
        ({"killed_by": "memory"}, "killed by"),
        ({"stdout_raw": b"other"}, "stdout"),
        ({"stderr_raw": b""}, "stderr"),
        ({"stdout_truncated": True}, "stdout truncated"),
        ({"artifacts": BEFORE.artifacts[:1]}, "artifact b"),
        ({"artifacts": (*BEFORE.artifacts, Artifact("c", 1, "cc"))}, "artifact c"),
        ({"artifacts": (Artifact("a", 1, "ax"), BEFORE.artifacts[1])}, "artifact a"),
    ],
)
def test_whatever_came_out_otherwise_is_named(change: dict[str, Any], what: str) -> None:
    drift = compare({}, ending(BEFORE), replace(BEFORE, **change))
    assert not drift.is_same
    assert [each.what for each in drift.differences] == [what]
    assert next(drift.lines()) == "it came out otherwise in 1 respect"


def test_other_surroundings_are_told_and_are_no_other_result() -> None:
    layers = Layers(seccomp_filters=1, runtime="3.13.1")
    now = replace(BEFORE, backend="bwrap", sandbox_type=SandboxType.BWRAP, isolation=layers)
    drift = compare({"language": "python"}, ending(BEFORE), now)
    assert drift.is_same
    assert {each.concern for each in drift.differences} == {Concern.SURROUNDINGS}
    assert [each.what for each in drift.differences] == ["backend", "box", "layer seccomp_filters", "runtime"]
    assert "  runtime: then 3.11.2, now 3.13.1" in list(drift.lines())


@pytest.mark.parametrize("missing", ["outcome", "stdout", "stderr", "artifacts"])
def test_what_was_not_recorded_is_never_called_the_same(missing: str) -> None:
    end = ending(BEFORE)
    del end[missing]
    drift = compare({}, end, BEFORE)
    assert not drift.is_same
    assert missing in drift.not_recorded


def test_a_brokers_answer_is_compared_by_what_it_brought() -> None:
    then = BrokerOutcome("fs_read", {"path": "a"}, b"1")
    begin, end = {"op": {"kind": "fs_read"}}, {"outcome": "succeeded", "outputs_digest": outputs_digest_of(then)}
    assert compare(begin, end, then).is_same
    assert [each.what for each in compare(begin, end, replace(then, content=b"2")).differences] == ["output"]
    assert [each.what for each in compare(begin, end, replace(then, operation="fs_stat")).differences] == ["operation"]
    assert compare(begin, {}, then).not_recorded == ("outcome", "output")


def test_the_digest_of_a_run_is_of_everything_that_came_out() -> None:
    variants = [
        BEFORE, replace(BEFORE, stdout_raw=b"x"), replace(BEFORE, stderr_raw=b"x"), replace(BEFORE, exit_code=None),
        replace(BEFORE, artifacts=()),
    ]  # fmt: skip
    assert len({outputs_digest_of(result)["b64"] for result in variants}) == len(variants)
