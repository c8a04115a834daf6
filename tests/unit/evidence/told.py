"""Records of executions as the pipeline writes them, each with a secret planted wherever one could have slipped in."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

CODE = b"print('hunter2-in-the-code')"
SECRETS = ("hunter2", "value-of-A", "top-secret-token", "query-secret", "user-secret")
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
LOG = "lg-1a2b3c"


def digest(content: bytes) -> dict[str, Any]:
    raw = hashlib.sha256(content).digest()
    return {"algo": "sha256", "b64": base64.b64encode(raw).decode(), "size": len(content)}


def record(kind: str, seq: int = 4, **members: Any) -> dict[str, Any]:
    return {
        "v": 1,
        "type": kind,
        "log_id": LOG,
        "seq": seq,
        "prev_hash": "0" * 64,
        "envelope_id": "ev-77",
        "time_ms": 1_763_269_201_123,
        "tenant": "org_789",
        "subject_id": "agent_456",
        "session_id": "sess_abc123",
        "conversation_id": "conv-1",
        "task_id": "task-1",
        "project_id": "proj-1",
        "skill_id": "shell.run",
        "tool_name": "code_run",
        "call_id": "call-1",
        "exec_id": "ex-5",
    } | members


def begin(**members: Any) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "produced_at_ms": 1_763_269_201_123,
        "role": "data_analyst",
        "grant_id": "gr-1",
        "policy_version_hash": "sha256:" + "a" * 64,
        "profile_hash": "sha256:" + "b" * 64,
        "documents": {"policy": "sha256:" + "a" * 64, "request": "sha256:" + "d" * 64},
        "capability": "code.run:python",
        "op": {"kind": "code_run", "language": "python", "arg_count": 1, "stdin_bytes": 0},
        "domain": "code",
        "side_effect": "process",
        "risk": {"effective": "high", "declared": "high", "assessed": "safe"},
        "isolation": "container",
        "language": "python",
        "cmd": "python",
        "args": ["[12 bytes]"],
        "cwd": "/workspace/work",
        "env_keys": ["A"],
        "inputs_digest": digest(CODE),
        "mounts": [{"source": "projects/proj-1/inputs", "target": "/workspace/inputs", "mode": "ro"}],
        "limits": {"wall_ms": 60000, "memory_bytes": 1 << 30},
    }
    return record("exec.begin", **(shape | members))


def end(**members: Any) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "seq": 5,
        "time_ms": 1_763_269_202_400,
        "status": "ok",
        "outcome": "succeeded",
        "exit_code": 0,
        "backend": "native",
        "sandbox_id": "sandbox_xyz",
        "stdout": {"digest": digest(b"hunter2\n"), "bytes": 8, "truncated": True},
        "stderr": {"digest": digest(b""), "bytes": 0, "truncated": False},
        "artifacts": [{"path": "out.csv", "size": 3, "sha256": hashlib.sha256(b"a,b").hexdigest()}],
        "artifacts_path": "projects/proj-1/artifacts/ex-5",
        "files_written": {"paths": ["work/output.txt"], "complete": True},
        "files_read": {"paths": ["inputs/input.txt"], "complete": False},
        "network": {
            "destinations": [
                {
                    "host": "a.example",
                    "port": 443,
                    "method": "GET",
                    "bytes_in": 1000,
                    "bytes_out": 70,
                    "decision": "allow",
                },
                {
                    "host": "b.example",
                    "port": 443,
                    "bytes_in": "9007199254740993",
                    "bytes_out": 30,
                    "decision": "allow",
                },
            ],
            "complete": True,
        },
        "memory_used_bytes": 128 << 20,
        "cpu_ms": 500,
        "duration_ms": 1234,
        "duration_us": 1_234_567,
        "finished_at_ms": 1_763_269_202_357,
    }
    return record("exec.end", **(shape | members))


def denial(**members: Any) -> dict[str, Any]:
    shape = begin() | {
        "type": "decision.denied",
        "status": "denied",
        "outcome": "denied",
        "error_code": "POLICY.DENY_TOOL",
        "reason": "tool_denied",
        "rule": "role_has_tool",
        "answers": [{"rule": "role_has_tool", "decision": "deny", "code": "POLICY.DENY_TOOL", "reason": "tool_denied"}],
    }
    return shape | members


def file_written() -> tuple[dict[str, Any], dict[str, Any]]:
    started = begin(
        tool_name="file_write",
        capability="fs.write:work/notes/a.txt",
        op={"kind": "fs_write", "path": "work/notes/a.txt", "content_bytes": 7},
        inputs_digest=digest(b"hunter2"),
    )
    del started["language"], started["cmd"], started["args"]
    return started, end(tool_name="file_write")


def request_sent() -> tuple[dict[str, Any], dict[str, Any]]:
    started = begin(
        tool_name="http_get",
        capability="net.http:GET:https://a.example/path",
        op={"kind": "net_http", "method": "GET", "url": "https://user-secret@a.example:8443/path?key=query-secret#x"},
    )
    del started["language"], started["cmd"], started["args"]
    return started, end(tool_name="http_get")


RUNS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "succeeded": (begin(), end()),
    "failed": (begin(), end(outcome="failed", status="error", exit_code=7)),
    "timed_out": (
        begin(traceparent=TRACEPARENT),
        end(outcome="timed_out", status="error", exit_code=None, error_code="LLM.TIMEOUT", reason="wall_timeout"),
    ),
    "killed": (
        begin(user_id="u-1"),
        end(outcome="killed", status="error", killed_by="memory", reason="memory", error_code="QUOTA.BUDGET_EXCEEDED"),
    ),
    "cancelled": (begin(), end(outcome="cancelled", status="error")),
    "orphaned": (
        begin(),
        record(
            "exec.end", seq=9, status="error", outcome="error", reason="orphaned", error_code="TOOL.EXECUTION_FAILED"
        ),
    ),
    "denied": (denial(), None),
    "denied late": (
        begin(),
        record(
            "exec.end", seq=5, status="denied", outcome="denied", reason="calls", error_code="QUOTA.BUDGET_EXCEEDED"
        ),
    ),
    "shell": (begin(language="bash", cmd="bash", op={"kind": "code_run", "language": "bash"}), end()),
    "file": file_written(),
    "request": request_sent(),
    "tmp": (begin(capability="tmp.alloc:10", op={"kind": "tmp_alloc", "size_bytes": 10}), end()),
}

OTHER_TYPES = (
    *("consent.requested", "consent.granted", "consent.denied", "consent.expired"),
    *("grant.issued", "grant.attenuated", "grant.revoked", "policy.loaded", "secret.leased", "secret.revoked"),
    *("process.started", "process.ended", "workspace.reset", "workspace.snapshot", "workspace.restored"),
    *("pool.started", "pool.ended", "admin.pruned", "admin.held", "admin.released", "admin.recovered"),
    *("log.opened", "log.closed"),
)
