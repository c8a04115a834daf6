"""Results and refusals as a model reads them: structured, with a text beside it, and never longer than promised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from mcp_types import CallToolResult, ContentBlock, TextContent

if TYPE_CHECKING:
    from ringfence.errors import RingfenceError
    from ringfence.outcome import ExecutionResult

MOST_OUTPUT: Final = 24 << 10
"""Characters of one stream that a result carries: the first half of them and the last."""
MOST_LISTED: Final = 100
_MOST_MESSAGE: Final = 2000
_FIXES: Final = {"path_traversal": "name a file below work/, inputs/ or artifacts/"}


def answer(fields: Mapping[str, Any], text: str) -> CallToolResult:
    """Return a result that says the same to programs and to models."""
    return CallToolResult(content=[TextContent(text=text)], structured_content=dict(fields))


ERROR_META: Final = "ringfence/error"
"""Under which member of `_meta` an error is told of that has no place in the structured content."""


def refusal(error: RingfenceError, needs: str | None = None, *, in_structure: bool = True) -> CallToolResult:
    """Return a tool error that says what would be needed: code, reason, message, fix, and what has to be allowed."""
    message = one_line(str(error))
    fix = error.fix or _FIXES.get(error.reason)
    fields = {
        "code": error.code,
        "reason": error.reason,
        "message": message,
        "fix": fix,
        "needs": needs if error.answer.is_denial else None,
        "retryable": error.retryable,
        "details": dict(error.details),
    }
    text = f"{error.code} {error.reason}: {message.rstrip('.')}."
    if fields["needs"]:
        text += f" Nothing was done: it needs a policy or a grant that allows {one_line(str(needs))}."
    if fix:
        text += f" Fix: {fix}"
    content: list[ContentBlock] = [TextContent(text=text)]
    if not in_structure:
        return CallToolResult(content=content, is_error=True, _meta={ERROR_META: fields})
    return CallToolResult(content=content, structured_content={"error": fields}, is_error=True)


def run_fields(result: ExecutionResult) -> dict[str, Any]:
    """Return what a run amounts to as `schemas.RAN` has it."""
    stdout, stdout_cut = head_and_tail(result.stdout, MOST_OUTPUT)
    stderr, stderr_cut = head_and_tail(result.stderr, MOST_OUTPUT)
    return {
        "success": result.success,
        "status": str(result.status),
        "exit_code": result.exit_code,
        "stdout": stdout,
        "stderr": stderr,
        "stdout_bytes": result.stdout_bytes,
        "stderr_bytes": result.stderr_bytes,
        "stdout_truncated": stdout_cut or result.stdout_truncated,
        "stderr_truncated": stderr_cut or result.stderr_truncated,
        "killed_by": result.killed_by,
        "ended": result.error or result.reason,
        "elapsed_ms": round(result.elapsed_ms, 1),
        # by the names that `read_file` takes
        "files_written": [f"work/{name}" for name in result.files_written[:MOST_LISTED]],
        "artifacts": [
            {"path": f"artifacts/{result.exec_id}/{each.path}", "size": each.size, "sha256": each.sha256}
            for each in result.artifacts[:MOST_LISTED]
        ],
        "lists_truncated": max(len(result.files_written), len(result.artifacts)) > MOST_LISTED,
        "exec_id": result.exec_id,
        "evidence_id": result.evidence_id,
    }


def of_run(result: ExecutionResult) -> CallToolResult:
    """Return the result of a run; that its program failed is a result too, and no error of the tool."""
    fields = run_fields(result)
    return answer(fields, run_text(fields))


def run_text(fields: Mapping[str, Any]) -> str:
    """Return what a model is shown of a run: its output, and how it ended."""
    ended = f"[{fields['status']}"
    if fields["exit_code"] is not None:
        ended += f", exit code {fields['exit_code']}"
    if fields["status"] not in ("succeeded", "failed") and fields["ended"]:
        ended += f": {one_line(fields['ended'])}"
    cut = [name for name in ("stdout", "stderr") if fields[f"{name}_truncated"]]
    if cut:
        ended += f"; {' and '.join(cut)} truncated"
    parts = [fields["stdout"].rstrip("\n")] if fields["stdout"] else []
    if fields["stderr"]:
        parts.append(f"[stderr]\n{fields['stderr'].rstrip(chr(10))}")
    return "\n".join([*parts, f"{ended}]"])


def head_and_tail(text: str, most: int) -> tuple[str, bool]:
    """Return the text, or its first and its last part with a line between them that says how much is left out."""
    if len(text) <= most:
        return text, False
    half = most // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[... {left_out} characters left out ...]\n{text[-half:]}", True


def named(kinds: Sequence[Mapping[str, Any]]) -> str:
    """Return entries of a directory as lines."""
    return "\n".join(f"{each['kind']:9} {each['size']:>10} {each['name']}" for each in kinds)


def one_line(text: str) -> str:
    """Keep a message, which may quote names that a guest chose, to one short printable line."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return shown if len(shown) <= _MOST_MESSAGE else f"{shown[:_MOST_MESSAGE]} …"
