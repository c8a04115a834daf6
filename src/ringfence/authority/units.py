"""Times and sizes as people write them in a policy: `30s`, `512MB`; sizes count in 1024s, as container engines do."""

from __future__ import annotations

from ringfence.errors import InvalidRequest
from ringfence.pattern import pattern

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {
    unit: 1024**power
    for power, units in enumerate((("b",), ("kb", "kib", "k"), ("mb", "mib", "m"), ("gb", "gib", "g"), ("tb", "tib")))
    for unit in units
}
_WRITTEN = pattern(r"(?P<number>[0-9]{1,12}(?:\.[0-9]{1,6})?)(?P<unit>[A-Za-z]+)\Z")


def seconds(text: object) -> float:
    """Read a time such as `500ms`, `30s`, `2m` or `1h`.

    Raises:
        InvalidRequest: It is not a number with one of these units, or not above zero.
    """
    return _read(text, _SECONDS, "a time", "write it as 500ms, 30s, 2m or 1h")


def size(text: object) -> int:
    """Read a size such as `64KB`, `512MB` or `1.5GB`, in bytes.

    Raises:
        InvalidRequest: It is not a number with one of these units, or not above zero.
    """
    fix = "write it as 64KB, 512MB or 2GB"
    amount = int(_read(text, _BYTES, "a size", fix))
    if amount < 1:
        raise InvalidRequest(f"{str(text)[:50]!r} is less than a byte", reason="invalid_unit", fix=fix)
    return amount


def _read(text: object, units: dict[str, float] | dict[str, int], what: str, fix: str) -> float:
    found = _WRITTEN.match(text) if isinstance(text, str) else None
    factor = units.get(found["unit"].lower()) if found else None
    if found is None or factor is None:
        raise InvalidRequest(f"{str(text)[:50]!r} is not {what}", reason="invalid_unit", fix=fix)
    amount = float(found["number"]) * factor
    if amount <= 0:
        raise InvalidRequest(f"{str(text)[:50]!r} is not above zero", reason="invalid_unit", fix=fix)
    return amount
