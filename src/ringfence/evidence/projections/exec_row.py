"""The execution record of 003: the row of `sandbox_execs`, and the two files by the artifacts, which agree with it."""

from __future__ import annotations

from typing import Any, Final

from ringfence.evidence.projections.run import Record, Run, rfc3339

COLUMNS: Final = (
    "exec_id",
    "project_id",
    "task_id",
    "conversation_id",
    "skill_id",
    "image",
    "cmd",
    "args",
    "cwd",
    "env_keys",
    "policy_snapshot",
    "status",
    "exit_code",
    "error_reason",
    "started_at",
    "ended_at",
    "duration_ms",
    "artifacts_path",
    "stdout_truncated",
    "stderr_truncated",
)


def exec_row(begin: Record, end: Record | None = None) -> dict[str, Any]:
    """Return the row of one execution, open or ended; `args` are as the record has them, redacted.

    `policy_snapshot` is the content address of the policy in force, under which the document store has its text.

    Raises:
        InvalidRequest: The records are not those of one execution.
    """
    run = Run(begin, end)
    values = (
        run.get("exec_id"),
        run.get("project_id"),
        run.get("task_id"),
        run.get("conversation_id"),
        run.get("skill_id"),
        run.get("image"),
        run.get("cmd"),
        list(run.get("args") or ()),
        run.get("cwd"),
        list(run.get("env_keys") or ()),
        _policy_snapshot(run),
        run.outcome,
        run.get("exit_code"),
        _error_reason(run),
        rfc3339(run.started_ms),
        None if run.ended_ms is None else rfc3339(run.ended_ms),
        run.get("duration_ms"),
        run.get("artifacts_path"),
        _truncated(run, "stdout"),
        _truncated(run, "stderr"),
    )
    return dict(zip(COLUMNS, values, strict=True))


def meta_json(begin: Record, end: Record | None = None) -> dict[str, Any]:
    """Return what `meta.json` of an execution says: its row, and what helps to find one's way from the files.

    Raises:
        InvalidRequest: The records are not those of one execution.
    """
    run = Run(begin, end)
    return {
        **exec_row(begin, end),
        "docker_mounts": list(run.get("mounts") or ()),
        "error_code": run.error_code,
        "reason": run.get("reason"),
        "evidence_id": run.get("envelope_id"),
        "backend": run.get("backend"),
        "sandbox_id": run.get("sandbox_id"),
        "policy_version_hash": run.get("policy_version_hash"),
        "profile_hash": run.get("profile_hash"),
        "limits": run.get("limits"),
    }


def manifest_json(begin: Record, end: Record | None = None) -> dict[str, Any]:
    """Return what `manifest.json` of an execution says: its artifacts with path, size and SHA-256.

    Raises:
        InvalidRequest: The records are not those of one execution.
    """
    run = Run(begin, end)
    artifacts = [
        {"path": artifact["path"], "size": artifact["size"], "sha256": artifact["sha256"]}
        for artifact in run.get("artifacts") or ()
    ]
    return {"exec_id": run.get("exec_id"), "artifacts": artifacts}


def _policy_snapshot(run: Run) -> Any:
    return (run.begin.get("documents") or {}).get("policy") or run.get("policy_version_hash")


def _error_reason(run: Run) -> Any:
    if run.outcome in ("succeeded", "running"):
        return None
    return run.last.get("error_reason") or run.last.get("reason") or run.error_code


def _truncated(run: Run, stream: str) -> bool:
    return bool((run.last.get(stream) or {}).get("truncated", False))
