"""A result tells what the guest did, in words and numbers that agree with each other."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.outcome import Artifact, Budget, ExecutionResult, Layers, Status

PROMISED = [
    "success",
    "status",
    "exit_code",
    "stdout",
    "stderr",
    "stdout_bytes",
    "stderr_bytes",
    "stdout_truncated",
    "stderr_truncated",
    "killed_by",
    "risk",
    "sandbox_id",
    "timed_out",
    "killed",
    "error",
    "error_code",
    "reason",
    "elapsed_ms",
    "cpu_ms",
    "memory_peak_bytes",
    "sandbox_type",
    "backend",
    "isolation",
    "artifacts",
    "files_written",
    "exec_id",
    "evidence_id",
    "out",
    "used",
]


@pytest.mark.parametrize("name", PROMISED)
def test_a_result_has_every_promised_field(name: str) -> None:
    assert hasattr(ExecutionResult(Status.SUCCEEDED), name)


def test_the_statuses_are_the_promised_ones() -> None:
    promised = "queued running succeeded failed timed_out killed cancelled denied error"
    assert " ".join(Status) == promised


@pytest.mark.parametrize("status", Status)
def test_only_a_run_that_succeeded_is_a_success_and_only_one_that_timed_out_timed_out(status: Status) -> None:
    result = ExecutionResult(status)
    assert (result.success, result.timed_out) == (status == "succeeded", status == "timed_out")


def test_a_run_is_killed_exactly_when_something_killed_it() -> None:
    assert not ExecutionResult(Status.FAILED, exit_code=137).killed
    assert ExecutionResult(Status.KILLED, killed_by="memory").killed


@given(st.binary())
def test_any_bytes_a_guest_prints_become_text(raw: bytes) -> None:
    result = ExecutionResult(Status.SUCCEEDED, stdout_raw=raw, stderr_raw=raw)
    assert result.stdout == result.stderr == raw.decode("utf-8", "replace")


@given(st.text())
def test_text_a_guest_prints_comes_back_unchanged(text: str) -> None:
    assert ExecutionResult(Status.SUCCEEDED, stdout_raw=text.encode()).stdout == text


def test_bytes_that_are_not_text_show_as_replacement_characters() -> None:
    assert ExecutionResult(Status.SUCCEEDED, stdout_raw=b"a\xffb").stdout == "a\N{REPLACEMENT CHARACTER}b"


@given(st.binary(max_size=2000), st.binary(max_size=2000))
def test_the_digest_view_identifies_the_output_without_holding_it(stdout: bytes, stderr: bytes) -> None:
    out = ExecutionResult(
        Status.SUCCEEDED,
        stdout_raw=stdout,
        stderr_raw=stderr,
        stdout_bytes=len(stdout),
        stderr_bytes=len(stderr),
    ).out
    assert out["stdout_sha256"] == hashlib.sha256(stdout).hexdigest()
    assert out["stderr_sha256"] == hashlib.sha256(stderr).hexdigest()
    assert (out["stdout_bytes"], out["stderr_bytes"]) == (len(stdout), len(stderr))
    assert len(out["preview"]) <= 200


def test_output_that_was_cut_is_counted_in_full() -> None:
    result = ExecutionResult(
        Status.SUCCEEDED, stdout_raw=b"x" * 10, stdout_bytes=5_000_000, stderr_bytes=7, stdout_truncated=True
    )
    assert (result.out["stdout_bytes"], result.used.bytes_out) == (5_000_000, 5_000_007)


def test_what_was_used_is_told_in_the_terms_of_a_budget() -> None:
    result = ExecutionResult(
        Status.SUCCEEDED,
        elapsed_ms=12.6,
        cpu_ms=9,
        memory_peak_bytes=4096,
        stdout_bytes=3,
        stderr_bytes=4,
        files_written=("work/a", "artifacts/b"),
    )
    assert result.used == Budget(
        calls=1, cpu_ms=9, wall_ms=13, memory_peak_bytes=4096, bytes_out=7, bytes_in=0, file_count=2
    )


def test_nothing_observed_is_no_isolation() -> None:
    nothing = Layers()
    assert (nothing.namespaces, nothing.seccomp_filters, nothing.cgroup) == ((), 0, "none")
    assert (nothing.capabilities_empty, nothing.no_new_privs) == (False, False)


def test_every_observed_layer_is_shown_as_plain_json() -> None:
    layers = Layers(("user", "pid"), True, True, 1, 5, "v2", 1000, "cgroup", ("a note",))
    shown = json.loads(json.dumps(layers.to_dict()))
    assert shown.keys() == {field.name for field in fields(Layers)}
    assert (shown["namespaces"], shown["landlock_abi"], shown["notes"]) == (["user", "pid"], 5, ["a note"])


def test_an_artifact_is_described_without_its_content_and_read_with_it() -> None:
    artifact = Artifact("plot.png", 3, hashlib.sha256(b"png").hexdigest(), b"png")
    assert artifact.to_dict() == {"path": "plot.png", "size": 3, "sha256": hashlib.sha256(b"png").hexdigest()}
    assert artifact.read() == b"png"


def test_the_content_of_a_run_is_kept_out_of_its_repr() -> None:
    result = ExecutionResult(
        Status.SUCCEEDED,
        stdout_raw=b"a password",
        stderr_raw=b"a password",
        artifacts=(Artifact("a", 10, "", b"a password"),),
    )
    assert "password" not in repr(result)
