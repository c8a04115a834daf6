"""One byte string for one value, so that two parties who hash the same capability get the same hash."""

from __future__ import annotations

import json
from typing import Any

from ringfence.errors import InvalidRequest

_MOST = 2**53
_WRITER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def canonical(value: Any) -> bytes:
    """Return `value` as canonical JSON (RFC 8785, for the values we write).

    Raises:
        InvalidRequest: A number is not exact in JSON, or a text is not Unicode.
    """
    try:
        return _WRITER.encode(_plain(value)).encode()
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"this has no canonical form: {error}", reason="not_canonical") from None


def digest(value: Any) -> str:
    """Return `sha256:` and the hash of the canonical form of `value`."""
    return digest_of(canonical(value))


def digest_of(content: bytes) -> str:
    """Return `sha256:` and the hash of `content`."""
    import hashlib  # loads OpenSSL, which a run that is not recorded does not need

    return "sha256:" + hashlib.sha256(content).hexdigest()


def _plain(value: Any) -> Any:
    if type(value) is str:  # most are, and nothing is to be done for them
        return value
    match value:
        case bool() | None:
            return value
        case str():
            return str(value)
        case int():
            if abs(value) > _MOST:
                raise ValueError(f"{value} is not exact in JSON")
            return int(value)
        case float():
            # 1.0 and 1 are one number in JSON, and must be one text
            return int(value) if value.is_integer() and abs(value) <= _MOST else value
        case dict():
            if not all(isinstance(key, str) for key in value):
                raise TypeError("a key is not text")
            return {key: _plain(value[key]) for key in sorted(value, key=lambda key: key.encode("utf-16-be"))}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            raise TypeError(f"{type(value).__name__} is not JSON")
