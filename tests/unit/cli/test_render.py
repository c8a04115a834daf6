from __future__ import annotations

import json
import re

import pytest

from ringfence import errors
from ringfence.errors import InternalError, InvalidRequest, IsolationUnavailable, QuotaExceeded, RingfenceError
from ringfence.interfaces.cli.render import (
    error_exit_code,
    error_json,
    error_line,
    result_exit_code,
    result_json,
    result_line,
    truncation_line,
)
from ringfence.outcome import Artifact, ExecutionResult, Status

PROMISED = re.findall(
    r"\w+",
    """success, status, exit_code, stdout, stderr, stdout_bytes, stderr_bytes, stdout_truncated, stderr_truncated,
    killed_by, risk, sandbox_id, timed_out, killed, error, error_code, reason, elapsed_ms, cpu_ms, memory_peak_bytes,
    sandbox_type, backend, isolation, artifacts, files_written, exec_id, evidence_id, out, used""",
)


def test_every_promised_field_is_in_the_json() -> None:
    result = ExecutionResult(
        status=Status.SUCCEEDED, exit_code=0, stdout_raw=b"1\n\xff", artifacts=(Artifact("a", 1, "00", b"x"),)
    )
    fields = json.loads(result_json(result))
    assert set(PROMISED) <= set(fields)
    assert fields["stdout"] == "1\n\ufffd"
    assert fields["artifacts"] == [{"path": "a", "size": 1, "sha256": "00"}]


def test_the_json_of_a_hostile_program_is_one_printable_line() -> None:
    text = result_json(ExecutionResult(status=Status.FAILED, stdout_raw=b"\x1b]0;x\x07\n\xc2\x9b\r"))
    assert text.endswith("\n")
    assert text[:-1].isprintable()


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (ExecutionResult(status=Status.SUCCEEDED, exit_code=0), 0),
        (ExecutionResult(status=Status.FAILED, exit_code=7), 1),
        (ExecutionResult(status=Status.KILLED, killed_by="oom"), 1),
        (ExecutionResult(status=Status.KILLED, killed_by="budget", error_code="QUOTA.BUDGET_EXCEEDED"), 5),
        (ExecutionResult(status=Status.CANCELLED), 1),
        (ExecutionResult(status=Status.DENIED), 3),
        (ExecutionResult(status=Status.TIMED_OUT), 6),
        (ExecutionResult(status=Status.ERROR), 8),
    ],
)
def test_each_ending_has_its_exit_code(result: ExecutionResult, code: int) -> None:
    assert result_exit_code(result, passthrough=False) == code


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (ExecutionResult(status=Status.FAILED, exit_code=77), 77),
        (ExecutionResult(status=Status.FAILED, exit_code=-9), 137),
        (ExecutionResult(status=Status.SUCCEEDED, exit_code=0), 0),
        (ExecutionResult(status=Status.TIMED_OUT, exit_code=-9), 6),
        (ExecutionResult(status=Status.FAILED), 1),
    ],
)
def test_passthrough_gives_the_programs_own_code_when_it_has_one(result: ExecutionResult, code: int) -> None:
    assert result_exit_code(result, passthrough=True) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("x"), 2),
        (RingfenceError("x", reason="consent_required"), 4),
        (QuotaExceeded("x"), 5),
        (IsolationUnavailable("x"), 7),
        (InternalError("x"), 8),
    ],
)
def test_each_error_has_its_exit_code(error: RingfenceError, code: int) -> None:
    assert error_exit_code(error) == code


def test_every_error_class_has_an_exit_code_other_than_the_programs() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, RingfenceError)]
    assert len(classes) > 5
    assert all(error_exit_code(error("x")) in range(2, 9) for error in classes)


def test_an_error_is_one_line_with_code_reason_and_fix() -> None:
    error = IsolationUnavailable("no user namespaces.", fix="run 'ringfence doctor'")
    assert error_line(error) == (
        "ringfence: PROVIDER.UNAVAILABLE isolation_unavailable: no user namespaces. Fix: run 'ringfence doctor'\n"
    )


def test_an_error_that_quotes_a_hostile_name_stays_one_printable_line() -> None:
    assert error_line(InvalidRequest("bad \x1b[2J\nname \u202e"))[:-1].isprintable()


def test_an_error_in_json_says_the_same() -> None:
    assert json.loads(error_json(InvalidRequest("wrong", fix="right", field="code"))) == {
        "success": False,
        "status": "error",
        "exit_code": None,
        "error": "wrong",
        "error_code": "SCHEMA.VALIDATION_FAILED",
        "reason": "invalid_request",
        "retryable": False,
        "fix": "right",
        "details": {"field": "code"},
    }


def test_a_timeout_is_explained_and_a_plain_failure_speaks_for_itself() -> None:
    assert result_line(ExecutionResult(status=Status.FAILED, exit_code=1)) is None
    assert result_line(ExecutionResult(status=Status.TIMED_OUT, killed_by="timeout")) == (
        "ringfence: timed_out: ended by timeout\n"
    )


def test_cut_output_is_said_with_its_numbers() -> None:
    result = ExecutionResult(status=Status.SUCCEEDED, stdout_bytes=9, stdout_truncated=True, stdout_left_out=7)
    assert truncation_line(result) == "ringfence: what is kept of this run leaves out 7 of 9 bytes of stdout\n"
