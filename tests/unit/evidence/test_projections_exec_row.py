"""The row of 003 has its twenty columns, and the files beside the artifacts never disagree with it."""

from __future__ import annotations

import json

import pytest
from tests.unit.evidence.told import RUNS, SECRETS, begin, end

from ringfence.evidence.projections.exec_row import COLUMNS, exec_row, manifest_json, meta_json

# 003, section 6, as it is printed there.
PRINTED = [
    *("exec_id", "project_id", "task_id", "conversation_id", "skill_id", "image", "cmd", "args", "cwd", "env_keys"),
    *("policy_snapshot", "status", "exit_code", "error_reason", "started_at", "ended_at", "duration_ms"),
    *("artifacts_path", "stdout_truncated", "stderr_truncated"),
]


@pytest.mark.parametrize("name", RUNS)
def test_every_row_has_the_twenty_columns_of_003(name: str) -> None:
    assert list(exec_row(*RUNS[name])) == PRINTED == list(COLUMNS)
    assert len(PRINTED) == 20


def test_a_row_says_what_the_records_say() -> None:
    assert exec_row(*RUNS["succeeded"]) == {
        "exec_id": "ex-5",
        "project_id": "proj-1",
        "task_id": "task-1",
        "conversation_id": "conv-1",
        "skill_id": "shell.run",
        "image": None,
        "cmd": "python",
        "args": ["[12 bytes]"],
        "cwd": "/workspace/work",
        "env_keys": ["A"],
        "policy_snapshot": "sha256:" + "a" * 64,
        "status": "succeeded",
        "exit_code": 0,
        "error_reason": None,
        "started_at": 1_763_269_201_123,
        "ended_at": 1_763_269_202_357,
        "duration_ms": 1234,
        "artifacts_path": "projects/proj-1/artifacts/ex-5",
        "stdout_truncated": True,
        "stderr_truncated": False,
    }


def test_an_execution_that_goes_on_is_a_row_without_an_end() -> None:
    row = exec_row(begin())
    assert (row["status"], row["ended_at"], row["exit_code"], row["error_reason"]) == ("running", None, None, None)


def test_what_went_wrong_is_told_where_the_record_tells_it() -> None:
    row = exec_row(begin(), end(outcome="timed_out", status="error", error_reason="stopped after 60 s"))
    assert (row["status"], row["error_reason"]) == ("timed_out", "stopped after 60 s")
    meta = meta_json(*RUNS["orphaned"])
    assert (meta["status"], meta["reason"], meta["error_code"]) == ("error", "orphaned", "TOOL.EXECUTION_FAILED")


def test_a_denial_has_no_streams_and_ends_when_it_is_made() -> None:
    row = exec_row(*RUNS["denied"])
    assert (row["stdout_truncated"], row["stderr_truncated"]) == (None, None)
    assert row["ended_at"] == row["started_at"]


def test_the_policy_is_in_it_as_its_text_where_that_is_at_hand() -> None:
    assert exec_row(begin(), end(), policy="tools: []")["policy_snapshot"] == "tools: []"
    assert meta_json(begin(), end(), policy="tools: []")["policy_snapshot"] == "tools: []"


def test_without_an_image_the_runtime_is_named() -> None:
    assert exec_row(begin(), end(runtime="python3.12"))["image"] == "python3.12"


@pytest.mark.parametrize("name", RUNS)
def test_meta_json_agrees_with_the_row_and_names_the_mounts(name: str) -> None:
    row, meta = exec_row(*RUNS[name]), meta_json(*RUNS[name])
    assert {column: meta[column] for column in COLUMNS} == row
    assert meta["docker_mounts"] == RUNS[name][0]["mounts"]
    assert meta["evidence_id"] == "ev-77"


def test_manifest_json_lists_artifacts_with_hash_size_and_path() -> None:
    begun, ended = RUNS["succeeded"]
    assert ended is not None
    assert manifest_json(begun, ended) == {"exec_id": "ex-5", "artifacts": ended["artifacts"]}
    assert manifest_json(*RUNS["denied"])["artifacts"] == []


@pytest.mark.parametrize("name", RUNS)
def test_no_row_and_no_file_holds_a_secret(name: str) -> None:
    text = json.dumps([meta_json(*RUNS[name]), manifest_json(*RUNS[name])])
    assert [secret for secret in SECRETS if secret in text] == []
