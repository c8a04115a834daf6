"""The inputs and outputs of skills as JSON: read strictly, with a bound on everything a text can grow in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ringfence.authority import strict_json
from ringfence.errors import InvalidRequest

MAX_BYTES: Final = 1024 * 1024
MAX_DEPTH: Final = 64


def to_text(inputs: object) -> bytes:
    """Return the inputs of a call as JSON; what JSON does not have is refused, never turned into something else.

    Raises:
        InvalidRequest: They are no JSON object, or too large.
    """
    if not isinstance(inputs, Mapping):
        raise _refused("inputs must be an object")
    _check_plain(inputs)
    try:
        text = json.dumps(dict(inputs), allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(f"inputs are not JSON: {error}") from None
    if len(text) > MAX_BYTES:
        raise _refused(f"inputs are more than {MAX_BYTES} bytes")
    return text


def read(text: bytes) -> Any:
    """Return the value that `text` is, and nothing else.

    Raises:
        ValueError: It is no JSON, names a key twice, or is too large or too deep.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    try:
        value = strict_json.read(text)
    except RecursionError:
        raise ValueError(f"more than {MAX_DEPTH} levels deep") from None
    size_of(value)
    return value


def size_of(value: Any) -> int:
    """Return how many values there are in `value`, itself included.

    Raises:
        ValueError: They lie too deep.
    """
    count, waiting = 0, [(value, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} levels deep")
        count += 1
        if isinstance(value, dict):
            waiting.extend((inner, depth + 1) for inner in value.values())
        elif isinstance(value, list):
            waiting.extend((inner, depth + 1) for inner in value)
    return count


def _check_plain(value: object) -> None:
    """Refuse a key that is no text: JSON would write 1 and "1" alike."""
    waiting: list[tuple[object, int]] = [(value, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise _refused(f"inputs are more than {MAX_DEPTH} levels deep")
        if isinstance(value, Mapping):
            if not all(isinstance(name, str) for name in value):
                raise _refused("every name in inputs must be text")
            waiting.extend((inner, depth + 1) for inner in value.values())
        elif isinstance(value, list | tuple):
            waiting.extend((inner, depth + 1) for inner in value)


def _refused(problem: str) -> InvalidRequest:
    return InvalidRequest(problem, reason="input_invalid", fix="the skill's interface.inputs says what it takes")
