"""Two records as a person reads them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.evidence.sealing import Head
from ringfence.interfaces.cli.evidence_desk import ALTERED, INTACT, MISSING, PRUNED, read_place
from ringfence.interfaces.cli.evidence_view import told_lines
from ringfence.journal.reader import Place

EMPTY = {"algo": "sha256", "b64": "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", "size": 0}
BEGIN: dict[str, Any] = {
    "type": "exec.begin",
    "envelope_id": "ev_1",
    "exec_id": "ex_1",
    "time_ms": 1_794_806_269_332,
    "tenant": "local",
    "subject_id": "agent",
    "task_id": "T-7",
    "tool_name": "code_run",
    "capability": "code.run:python",
    "op": {
        "kind": "code_run",
        "language": "python",
        "arg_count": 1,
        "stdin_bytes": 3,
        "packages": ["numpy"],
        "secrets": ["token=env:T"],
        "domains": ["a.example"],
        "ports": [8000],
    },
    "args": ["[12 bytes]"],
    "env_keys": ["A"],
    "inputs": [{"path": "inputs/a.csv", "size": 4, "sha256": "00"}],
    "inputs_digest": EMPTY,
    "grant_id": "gr_1",
    "documents": {"policy": "sha256:aa", "grant": "sha256:bb"},
    "role": "analyst",
    "consent": {"source": "call", "consent_id": "co_1", "approver": "ada"},
    "risk": {"effective": "high", "declared": "high", "assessed": "safe"},
    "isolation": "container",
    "limits": {"wall_ms": 500, "memory_bytes": 1 << 30, "pids": 16},
}
END: dict[str, Any] = {
    "type": "exec.end",
    "outcome": "timed_out",
    "error_code": "LLM.TIMEOUT",
    "reason": "wall_timeout",
    "duration_us": 504_836,
    "backend": "native",
    "runtime": "python 3.11.2",
    "sandbox_id": "rf-1",
    "layers": {
        "namespaces": ["user", "pid"],
        "seccomp_filters": 2,
        "cgroup": "v2",
        "no_new_privs": True,
        "notes": ["n"],
    },
    "stdout": {"digest": EMPTY, "bytes": 9, "truncated": True},
    "artifacts": [{"path": "a.png", "size": 1, "sha256": "cc"}],
    "files_written": {"paths": ["work/a"], "complete": True},
    "files_read": {"paths": [], "complete": False},
    "network": {"destinations": [{"host": "h", "port": 443, "bytes_out": 1, "bytes_in": 2, "decision": "allow"}]},
    "side_effects": [{"kind": "fs.write", "meta": {"path": "a", "bytes": 3}}],
    "budget_used": {"calls": 1, "gpu_ms": 0},
    "memory_used_bytes": 1 << 20,
    "meter": "cgroup",
}


@pytest.mark.parametrize(
    "told",
    [
        "ex_1  timed_out (LLM.TIMEOUT wall_timeout)",
        "took 504.836 ms",
        "subject agent, task T-7",
        "arguments [12 bytes] (sizes only)",
        "variables A (names only)",
        "3 bytes of standard input",
        "input inputs/a.csv: 4 bytes sha256:00",
        "grant gr_1, a signed grant",
        "role analyst",
        "consent of call co_1, by ada",
        "secrets token=env:T",
        "hosts a.example",
        "ports 8000",
        "runtime python 3.11.2",
        "policy sha256:aa",
        "risk high (declared high, assessed safe)",
        "wall 0.5 s, memory 1024 MiB, 16 processes",
        "namespaces user pid, 2 seccomp filters, landlock none, cgroup v2, no new privileges, capabilities left",
        "cut from 9 bytes",
        "artifact a.png: 1 bytes sha256:cc",
        "wrote work/a",
        "read nothing (what was seen; there may be more)",
        "reached h:443 (1 bytes out, 2 in, allow)",
        "fs.write path=a bytes=3",
        "calls 1, memory 1.0 MiB (measured by cgroup)",
    ],
)
def test_everything_a_person_asks_for_is_there(told: str) -> None:
    assert told in "\n".join(told_lines("ex_1", [BEGIN, END]))


def test_a_denial_says_who_refused_and_why() -> None:
    answers = [
        {"rule": "grant", "decision": "allow"},
        {"rule": "manifest", "decision": "deny", "code": "POLICY.DENY_TOOL", "reason": "manifest_mismatch"},
    ]
    denial = {**BEGIN, "type": "decision.denied", "outcome": "denied", "rule": "manifest", "answers": answers}
    lines = "\n".join(told_lines("ex_1", [denial]))
    assert "ex_1  denied" in lines
    assert "manifest: deny POLICY.DENY_TOOL manifest_mismatch" in lines
    assert "grant: allow" not in lines


def test_what_has_not_ended_says_so() -> None:
    assert "ex_1  has not ended" in next(told_lines("ex_1", [BEGIN]))


def test_records_that_are_gone_are_no_error() -> None:
    assert "its records are gone" in next(told_lines("ex_1", [{}]))


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda each: st.lists(each, max_size=2) | st.dictionaries(st.sampled_from(["paths", "b64", "x"]), each, max_size=2),
    max_leaves=5,
)


@settings(max_examples=100)
@given(
    st.dictionaries(st.sampled_from(sorted({*BEGIN, *END})), _ANY), st.dictionaries(st.sampled_from(sorted(END)), _ANY)
)
def test_a_record_that_somebody_forged_is_shown_and_never_stops_the_showing(one: Any, other: Any) -> None:
    assert [*told_lines("ex_1", [{**BEGIN, **one}, {**END, **other}])]


# --- a record and its hash ---


def sealed(**members: Any) -> Place:
    record, _ = Head("lg_1").seal({"type": "log.opened", "time_ms": 1, **members})
    return Place(1, "lg_1", record.seq, record.hash, record.text)


def test_a_record_is_held_against_its_hash() -> None:
    place = sealed(note="a")
    assert read_place(place).state == INTACT
    assert read_place(place._replace(text=place.text.replace('"a"', '"b"'))).state == ALTERED  # type: ignore[union-attr]
    assert read_place(place._replace(text="{")).state == ALTERED
    assert read_place(place._replace(text=None)).state == PRUNED
    assert read_place(place._replace(text=None, hash=b"")).state == MISSING


def test_a_whole_record_in_the_place_of_another_counts_as_altered() -> None:
    assert read_place(sealed()._replace(seq=1)).state == ALTERED
    assert read_place(sealed()._replace(log_id="lg_2")).state == ALTERED
