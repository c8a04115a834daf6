"""Whose work a call is part of: the names by which its caller will ask for the evidence again."""

from __future__ import annotations

from ringfence.dataclass import dataclass, fields
from ringfence.errors import InvalidRequest

_MOST_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Correlation:
    """The caller's own ids; they say nothing about what is allowed, and each may be left out."""

    user_id: str | None = None
    space_id: str | None = None
    conversation_id: str | None = None
    turn_id: str | None = None
    task_id: str | None = None
    project_id: str | None = None
    skill_id: str | None = None
    request_id: str | None = None
    traceparent: str | None = None

    def __post_init__(self) -> None:
        for name in NAMES:
            value: object = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, str) or not 0 < len(value) <= _MOST_CHARACTERS or not value.isprintable():
                raise InvalidRequest(
                    f"{name} must be 1 to {_MOST_CHARACTERS} printable characters", reason="invalid_name", field=name
                )

    def members(self) -> dict[str, str]:
        """Return what is known, as records name it."""
        return {name: value for name in NAMES if (value := getattr(self, name)) is not None}


NAMES = tuple(field.name for field in fields(Correlation))
UNKNOWN = Correlation()
