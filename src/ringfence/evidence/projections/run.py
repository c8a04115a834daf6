"""One execution as its records tell it: a begin with its end, a begin that is still open, or a denial alone."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest

Record = Mapping[str, Any]

BEGIN: Final = "exec.begin"
END: Final = "exec.end"
DENIAL: Final = "decision.denied"

# A program that exits with 7 has no error of ours, but 001 wants a code for everything that is no success.
_CODE_OF_OUTCOME: Final = {
    "timed_out": "LLM.TIMEOUT",
    "denied": "SANDBOX.PERMISSION_DENY",
}


@dataclass(frozen=True, slots=True)
class Run:
    """The records of one execution; `end` is absent for a denial and while the execution is going on."""

    begin: Record
    end: Record | None = None

    def __post_init__(self) -> None:
        """Refuse records that do not belong together, so that no view mixes two executions."""
        kind = self.begin.get("type")
        if kind == DENIAL:
            if self.end is not None:
                raise InvalidRequest("a denial has no end", reason="not_one_run")
        elif kind != BEGIN:
            raise InvalidRequest("an execution starts with exec.begin or decision.denied", reason="not_one_run")
        elif self.end is not None and (
            self.end.get("type") != END or self.end.get("envelope_id") != self.begin.get("envelope_id")
        ):
            raise InvalidRequest("this end belongs to another begin", reason="not_one_run")

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will be recorded about it."""
        return self.end is not None or self.begin["type"] == DENIAL

    @property
    def outcome(self) -> str:
        """How it ended, in the words of `Status`; `running` while it has not."""
        return str(self.last.get("outcome", "running")) if self.is_finished else "running"

    @property
    def last(self) -> Record:
        """The record that says how it ended, which is the only one for a denial."""
        return self.begin if self.end is None else self.end

    @property
    def error_code(self) -> str | None:
        """The stable code of what went wrong; nothing for a success and for what is still running."""
        if self.outcome in ("succeeded", "running"):
            return None
        return str(self.last.get("error_code") or _CODE_OF_OUTCOME.get(self.outcome, "TOOL.EXECUTION_FAILED"))

    @property
    def started_ms(self) -> int:
        """When it was admitted, or when it was denied."""
        return int(self.begin.get("produced_at_ms", self.begin["time_ms"]))

    @property
    def ended_ms(self) -> int | None:
        """When it ended; a denial ends when it is made."""
        if not self.is_finished:
            return None
        return int(self.last.get("finished_at_ms", self.last["time_ms"]))

    def get(self, name: str) -> Any:
        """Return a member, as the end has it where both have it; nothing where neither has."""
        if self.end is not None and name in self.end:
            return self.end[name]
        return self.begin.get(name)

    def members(self) -> Record:
        """Return all members, as `get` would."""
        return self.begin if self.end is None else {**self.begin, **self.end}

    def operation(self, name: str) -> Any:
        """Return a member of the operation, which is recorded without its content."""
        return (self.begin.get("op") or {}).get(name)

    def require_finished(self) -> None:
        """Refuse a view of what has not ended.

        Raises:
            InvalidRequest: There is no end yet.
        """
        if not self.is_finished:
            raise InvalidRequest("this execution has not ended", reason="unfinished")


def rfc3339(time_ms: int) -> str:
    """Return a moment as RFC 3339 has it, in UTC and to the millisecond.

    Raises:
        InvalidRequest: No calendar has this moment.
    """
    try:
        moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        raise InvalidRequest(f"{time_ms} ms is no moment of the calendar", reason="bad_time") from None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def counted(value: Any) -> int:
    """Return a counter, which a record has as text where it is too large for a JSON number."""
    return int(value)


def sha256_hex(recorded: Any) -> str | None:
    """Return the hex form of a recorded `{algo, b64, size}` digest; nothing for none and for other algorithms.

    Raises:
        InvalidRequest: The digest is damaged.
    """
    if not isinstance(recorded, Mapping) or recorded.get("algo") != "sha256":
        return None
    try:
        raw = base64.b64decode(str(recorded.get("b64", "")), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 32:
        raise InvalidRequest("a recorded digest is damaged", reason="bad_digest")
    return raw.hex()
