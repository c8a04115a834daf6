"""001's audit lines say what 001's example says, for every way an execution can end."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import jsonschema
import pytest
from tests.unit.evidence.told import CODE, RUNS, SECRETS, begin, digest, end

from ringfence.errors import InvalidRequest
from ringfence.evidence.projections.audit_json import FIELDS, RESULTS, audit_entry, audit_line

# The example of 001, section 6.1, with its hash written out.
EXAMPLE: dict[str, Any] = {
    "timestamp": "2025-11-16T05:00:01.123Z",
    "event_type": "sandbox_execution",
    "session_id": "sess_abc123",
    "agent_id": "agent_456",
    "org_id": "org_789",
    "sandbox_id": "sandbox_xyz",
    "tool": "code_run",
    "language": "python",
    "code_hash": "sha256:" + hashlib.sha256(CODE).hexdigest(),
    "execution_time_ms": 1234,
    "exit_code": 0,
    "memory_used_mb": 128,
    "cpu_time_ms": 500,
    "network_bytes_sent": 100,
    "network_bytes_recv": 9007199254741993,
    "files_read": ["/workspace/inputs/input.txt"],
    "files_written": ["/workspace/work/output.txt"],
    "result": "success",
    "error": None,
}
NULLABLE_TEXT = {"type": ["string", "null"]}
NULLABLE_COUNT = {"type": ["integer", "null"], "minimum": 0}
NULLABLE_PATHS = {"type": ["array", "null"], "items": {"type": "string", "pattern": "^/"}}
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": list(EXAMPLE),
    "properties": dict.fromkeys(("session_id", "agent_id", "org_id", "sandbox_id", "tool", "language"), NULLABLE_TEXT)
    | dict.fromkeys(("execution_time_ms", "memory_used_mb", "cpu_time_ms"), NULLABLE_COUNT)
    | dict.fromkeys(("network_bytes_sent", "network_bytes_recv"), NULLABLE_COUNT)
    | dict.fromkeys(("files_read", "files_written"), NULLABLE_PATHS)
    | {
        "timestamp": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"},
        "event_type": {"const": "sandbox_execution"},
        "code_hash": {"type": ["string", "null"], "pattern": "^sha256:[0-9a-f]{64}$"},
        "exit_code": {"type": ["integer", "null"]},
        "result": {"enum": ["success", "error", "denied", "timeout"]},
        "error": {"type": ["string", "null"], "pattern": r"^[A-Z]+\.[A-Z_]+$"},
    },
    "if": {"properties": {"result": {"const": "success"}}},
    "then": {"properties": {"error": {"type": "null"}}},
    "else": {"properties": {"error": {"type": "string"}}},
}


def test_the_line_of_a_success_is_the_example_of_001() -> None:
    line = audit_line(*RUNS["succeeded"])
    assert json.loads(line) == EXAMPLE
    assert list(json.loads(line)) == list(EXAMPLE) == list(FIELDS)
    assert "\n" not in line


@pytest.mark.parametrize("name", RUNS)
def test_every_field_is_in_every_line(name: str) -> None:
    jsonschema.validate(json.loads(audit_line(*RUNS[name])), SCHEMA)


@pytest.mark.parametrize(
    ("name", "result", "error"),
    [
        ("succeeded", "success", None),
        ("failed", "error", "TOOL.EXECUTION_FAILED"),
        ("timed_out", "timeout", "LLM.TIMEOUT"),
        ("killed", "error", "QUOTA.BUDGET_EXCEEDED"),
        ("cancelled", "error", "TOOL.EXECUTION_FAILED"),
        ("orphaned", "error", "TOOL.EXECUTION_FAILED"),
        ("denied", "denied", "POLICY.DENY_TOOL"),
        ("denied late", "denied", "QUOTA.BUDGET_EXCEEDED"),
    ],
)
def test_the_result_is_one_of_the_four_words(name: str, result: str, error: str | None) -> None:
    entry = audit_entry(*RUNS[name])
    assert (entry["result"], entry["error"]) == (result, error)
    assert result in RESULTS


def test_a_denial_has_nulls_for_what_never_happened() -> None:
    entry = audit_entry(*RUNS["denied"])
    unknown = [name for name, value in entry.items() if value is None]
    measured = ["execution_time_ms", "exit_code", "memory_used_mb", "cpu_time_ms"]
    assert unknown == [
        "sandbox_id",
        *measured,
        "network_bytes_sent",
        "network_bytes_recv",
        "files_read",
        "files_written",
    ]


def test_a_shell_has_no_language_but_a_hash_of_its_script() -> None:
    entry = audit_entry(*RUNS["shell"])
    assert entry["language"] is None
    assert entry["code_hash"] == EXAMPLE["code_hash"]


def test_what_is_no_program_has_no_code_hash() -> None:
    assert audit_entry(*RUNS["file"])["code_hash"] is None
    assert audit_entry(*RUNS["request"])["code_hash"] is None


def test_what_has_not_ended_has_no_line() -> None:
    with pytest.raises(InvalidRequest) as refused:
        audit_entry(begin())
    assert refused.value.reason == "unfinished"


def test_a_begin_and_the_end_of_another_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="another begin"):
        audit_entry(begin(), end(envelope_id="ev-78"))
    with pytest.raises(InvalidRequest, match="starts with"):
        audit_entry(end())
    with pytest.raises(InvalidRequest, match="no end"):
        audit_entry(RUNS["denied"][0], end())


def test_a_damaged_digest_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        audit_entry(begin(inputs_digest=digest(b"") | {"b64": "AAAA"}), end())
    assert refused.value.reason == "bad_digest"


@pytest.mark.parametrize("name", RUNS)
def test_no_line_holds_a_secret(name: str) -> None:
    line = audit_line(*RUNS[name])
    assert [secret for secret in SECRETS if secret in line] == []
