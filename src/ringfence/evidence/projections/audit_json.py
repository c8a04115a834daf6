"""The audit log of 001: one flat JSON line for each execution, every field in every line, in the order 001 prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ringfence.evidence.projections.run import Record, Run, counted, rfc3339, sha256_hex

RESULTS: Final = ("success", "error", "denied", "timeout")

FIELDS: Final = (
    "timestamp",
    "event_type",
    "session_id",
    "agent_id",
    "org_id",
    "sandbox_id",
    "tool",
    "language",
    "code_hash",
    "execution_time_ms",
    "exit_code",
    "memory_used_mb",
    "cpu_time_ms",
    "network_bytes_sent",
    "network_bytes_recv",
    "files_read",
    "files_written",
    "result",
    "error",
)

_RESULT_OF_OUTCOME: Final = {"succeeded": "success", "denied": "denied", "timed_out": "timeout"}
_SHELLS: Final = frozenset({"bash", "sh", "shell"})
_MIB: Final = 1024 * 1024


def audit_line(begin: Record, end: Record | None = None) -> str:
    """Return the line of the log, without its line end; raises what `audit_entry` raises."""
    return json.dumps(audit_entry(begin, end), ensure_ascii=False, separators=(",", ":"))


def audit_entry(begin: Record, end: Record | None = None) -> dict[str, Any]:
    """Return what 001 logs about one execution or one denial; what does not apply is null.

    Raises:
        InvalidRequest: The records are not those of one execution, or it has not ended.
    """
    run = Run(begin, end)
    run.require_finished()
    network = run.get("network")
    values = (
        rfc3339(run.started_ms),
        "sandbox_execution",
        run.get("session_id"),
        run.get("subject_id"),
        run.get("tenant"),
        run.get("sandbox_id"),
        run.get("tool_name"),
        _language(run),
        _code_hash(run),
        run.get("duration_ms"),
        run.get("exit_code"),
        _mib(run.get("memory_used_bytes")),
        run.get("cpu_ms"),
        _bytes(network, "bytes_out"),
        _bytes(network, "bytes_in"),
        _paths(run.get("files_read")),
        _paths(run.get("files_written")),
        _RESULT_OF_OUTCOME.get(run.outcome, "error"),
        run.error_code,
    )
    return dict(zip(FIELDS, values, strict=True))


def _language(run: Run) -> Any:
    """Return the language; 001 knows none for a shell."""
    language = run.get("language")
    return None if language in _SHELLS else language


def _code_hash(run: Run) -> str | None:
    """Return the hash of the program; what is no program has none, though its inputs have a digest too."""
    if run.operation("kind") != "code_run":
        return None
    found = sha256_hex(run.get("inputs_digest"))
    return None if found is None else f"sha256:{found}"


def _mib(size: Any) -> int | None:
    return None if size is None else (counted(size) + _MIB // 2) // _MIB


def _bytes(network: Any, direction: str) -> int | None:
    if not isinstance(network, Mapping):
        return None
    return sum(counted(place.get(direction, 0)) for place in network.get("destinations", ()))


def _paths(files: Any) -> list[str] | None:
    """Return the paths as the guest saw them; whether the list is complete is only in the evidence itself."""
    if not isinstance(files, Mapping):
        return None
    return [path if path.startswith("/") else f"/workspace/{path}" for path in files.get("paths", ())]
