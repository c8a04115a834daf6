"""The limits by the names that manifests, requests and policies use for them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from ringfence.capability.limits import MIB, Limits
from ringfence.dataclass import fields
from ringfence.errors import InvalidRequest

Stated = Mapping[str, float]
NOTHING_STATED: Final[Stated] = MappingProxyType({})
FIELDS: Final = {field.name: type(field.default) for field in fields(Limits)}


def nothing() -> Mapping[str, Any]:
    """Return the mapping that says nothing, as a default of fields."""
    return NOTHING_STATED


# name in a manifest or a request → (limit, what one unit of it is)
_BY_NAME: Final[dict[str, tuple[str, float]]] = {
    "timeout_ms": ("wall_seconds", 0.001),
    "cpu_ms": ("cpu_seconds", 0.001),
    "cpu_cores": ("cpus", 1),
    "memory_mb": ("memory_bytes", MIB),
    "disk_mb": ("disk_bytes", MIB),
    "pids": ("pids", 1),
    "max_stdout_bytes": ("stdout_bytes", 1),
    "max_stderr_bytes": ("stderr_bytes", 1),
    "max_artifacts_bytes_total": ("artifact_bytes", 1),
    "max_bytes_in": ("max_bytes_in", 1),
    "max_bytes_out": ("max_bytes_out", 1),
    "max_files": ("max_files", 1),
    "max_depth": ("max_depth", 1),
    "max_concurrency": ("max_concurrency", 1),
    "max_changed_paths": ("changed_paths", 1),
    "max_changed_bytes": ("changed_bytes", 1),
}
NAMES: Final = tuple(_BY_NAME)
_BEYOND: Final = 2**53
"""From here on not every reader of JSON tells two numbers apart; the manifests' schema has it too."""


def read_limit(name: str, value: object) -> tuple[str, float]:
    """Return the limit that a manifest or a request calls `name`, and its value.

    Raises:
        InvalidRequest: There is no such limit, or the value is not a number above zero, or beyond all that is read.
    """
    if name not in _BY_NAME:
        raise InvalidRequest(
            f"{name[:100]!r} is not a limit", reason="invalid_limit", fix=f"use one of {', '.join(NAMES)}"
        )
    limit, unit = _BY_NAME[name]
    whole = FIELDS[limit] is int
    kind = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not value > 0:
        raise InvalidRequest(f"{name} must be {kind} above 0, not {value!r}", reason="invalid_limit")
    if value >= _BEYOND:
        fix = f"write {kind} above 0 and below {_BEYOND}"
        raise InvalidRequest(f"{name} must be below {_BEYOND}", reason="invalid_limit", fix=fix)
    return limit, stated(limit, value * unit)


def check_stated(limits: Mapping[str, Any]) -> None:
    """Refuse limits that are unknown, no numbers, or not above zero; not-a-number would compare as within any ceiling.

    Raises:
        InvalidRequest: Naming the limit.
    """
    for name, value in limits.items():
        if name not in FIELDS:
            raise InvalidRequest(f"{str(name)[:100]!r} is not a limit", reason="invalid_limit")
        kinds = (int,) if FIELDS[name] is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
            raise InvalidRequest(f"{name} must be a number above 0, not {value!r}", reason="invalid_limit")


def stated(limit: str, value: float) -> float:
    """Return a value in the type its limit has."""
    return int(value) if FIELDS[limit] is int else float(value)


def shown(setting: str, value: Any) -> str:
    """Return one value with its unit; what is not stated is a dash."""
    if value is None:
        return "—"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if isinstance(value, str):
        return value
    if setting.endswith("_seconds"):
        return f"{value:g} s"
    if "bytes" in setting and value % MIB == 0:
        return f"{value // MIB} MB"
    return f"{value:g}" if isinstance(value, float) else str(value)
