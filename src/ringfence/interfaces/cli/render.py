"""Results and errors as the command shows them: one JSON object, one line, one exit code."""

from __future__ import annotations

from typing import Any

from ringfence.errors import RingfenceError
from ringfence.outcome import ExecutionResult, Status

_EXIT_BY_STATUS = {
    Status.SUCCEEDED: 0,
    Status.FAILED: 1,
    Status.KILLED: 1,
    Status.CANCELLED: 1,
    Status.DENIED: 3,
    Status.TIMED_OUT: 6,
    Status.ERROR: 8,
}


def result_json(result: ExecutionResult) -> str:
    """Return the result as one line; non-ASCII is escaped, so nothing in it can drive a terminal."""
    from ringfence.outcome_form import result_fields  # a run without --json does not pay for it

    return _line_of_json(result_fields(result))


def result_exit_code(result: ExecutionResult, *, passthrough: bool) -> int:
    """Return the exit code of the command for `result`."""
    if passthrough and result.exit_code is not None and result.status in (Status.SUCCEEDED, Status.FAILED):
        # A guest ended by signal N counts as 128 + N, as a shell would report it.
        return result.exit_code if result.exit_code >= 0 else 128 - result.exit_code
    if result.status in (Status.KILLED, Status.ERROR) and result.error_code is not None:
        from ringfence.errors.table import answer  # a run that ends well does not pay for it

        return answer(result.error_code, result.reason or "").exit_code
    return _EXIT_BY_STATUS.get(result.status, 8)


def result_line(result: ExecutionResult) -> str | None:
    """Return the line that says why a run ended when its own output cannot; `None` when nothing is to be said."""
    if result.status in (Status.SUCCEEDED, Status.FAILED) and not result.error:
        return None
    code = f"{result.error_code} " if result.error_code else ""
    why = result.error or (f"ended by {result.killed_by}" if result.killed_by else str(result.status))
    return one_line(f"ringfence: {code}{result.reason or result.status}: {why}")


def truncation_line(result: ExecutionResult) -> str | None:
    """Return the line that says how much of the output is not in the result; who watched has seen it."""
    cut = [
        f"{left_out} of {total} bytes of {name}"
        for name, left_out, total in (
            ("stdout", result.stdout_left_out, result.stdout_bytes),
            ("stderr", result.stderr_left_out, result.stderr_bytes),
        )
        if left_out
    ]
    return one_line(f"ringfence: what is kept of this run leaves out {' and '.join(cut)}") if cut else None


def error_json(error: RingfenceError) -> str:
    """Return an error as one line of JSON, with the fields a result would have said it in."""
    fields: dict[str, Any] = {
        "success": False,
        "status": "denied" if error.answer.is_denial else "error",
        "exit_code": None,
        "error": str(error),
        "error_code": error.code,
        "reason": error.reason,
        "retryable": error.retryable,
        "fix": error.fix,
        "details": error.details,
    }
    return _line_of_json(fields)


def error_line(error: RingfenceError) -> str:
    """Return an error as one line: the code, the reason, what happened and the fix."""
    message = str(error).rstrip(".")
    fix = f" Fix: {error.fix}" if error.fix else ""
    return one_line(f"ringfence: {error.code} {error.reason}: {message}.{fix}")


def error_exit_code(error: RingfenceError) -> int:
    """Return the exit code of the command for a refusal or failure of ours."""
    return error.answer.exit_code


def _line_of_json(fields: dict[str, Any]) -> str:
    # Imported here: a run without --json does not pay for it.
    import json

    return json.dumps(fields) + "\n"


def one_line(text: str) -> str:
    """Messages may quote names a guest chose: keep them to one printable line."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text) + "\n"
