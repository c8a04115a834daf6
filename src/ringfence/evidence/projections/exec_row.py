"""The execution record of 003: the row of `sandbox_execs`, and the two files by the artifacts, which agree with it."""

from __future__ import annotations

from typing import Any, Final

from ringfence.evidence.projections.run import Record, Run

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


def kept_in(begin: Record, end: Record) -> str | None:
    """Return where the session of an execution finds its files, if they were kept and it has one."""
    is_its_own = begin.get("project_id") is not None and begin["project_id"] == begin.get("session_id")
    return f"/workspace/artifacts/{begin['exec_id']}" if is_its_own and end.get("artifacts_path") else None


def exec_row(begin: Record, end: Record | None = None, *, policy: str | None = None) -> dict[str, Any]:
    """Return the row of one execution, open or ended, as the view in the store has it; times are in milliseconds.

    Args:
        begin: Its begin, or its denial.
        end: Its end, if it has ended.
        policy: The text of the policy in force; without it `policy_snapshot` is the digest that the store has it by.

    Raises:
        InvalidRequest: The records are not those of one execution.
    """
    run = Run(begin, end)
    return _row(run, run.members(), policy)


def _row(run: Run, told: Record, policy: str | None) -> dict[str, Any]:
    get = told.get
    values = (
        get("exec_id"),
        get("project_id"),
        get("task_id"),
        get("conversation_id"),
        get("skill_id"),
        get("image") or get("runtime"),
        get("cmd"),
        get("args"),
        get("cwd"),
        get("env_keys"),
        policy or (run.begin.get("documents") or {}).get("policy"),
        run.outcome,
        get("exit_code"),
        get("error_reason"),
        run.begin["time_ms"],
        run.ended_ms,
        get("duration_ms"),
        get("artifacts_path"),
        _truncated(run, "stdout"),
        _truncated(run, "stderr"),
    )
    return dict(zip(COLUMNS, values, strict=True))


def meta_json(begin: Record, end: Record | None = None, *, policy: str | None = None) -> dict[str, Any]:
    """Return what `meta.json` of an execution says: its row, and what helps to find one's way from the files.

    Raises:
        InvalidRequest: The records are not those of one execution.
    """
    run = Run(begin, end)
    told = run.members()
    return {
        **_row(run, told, policy),
        "docker_mounts": list(told.get("mounts") or ()),
        "docker_argv": list(told.get("argv") or ()),
        "image_digest": told.get("image_digest"),
        "error_code": run.error_code,
        "reason": told.get("reason"),
        "evidence_id": told.get("envelope_id"),
        "backend": told.get("backend"),
        "sandbox_id": told.get("sandbox_id"),
        "policy_version_hash": told.get("policy_version_hash"),
        "profile_hash": told.get("profile_hash"),
        "limits": told.get("limits"),
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


def _truncated(run: Run, stream: str) -> bool | None:
    told = (run.last.get(stream) or {}).get("truncated")
    return None if told is None else bool(told)
