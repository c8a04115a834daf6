"""JSON as everybody reads it alike: no key twice, no number that is none, nothing that is not UTF-8."""

from __future__ import annotations

import json
from typing import Any


def read(content: bytes) -> Any:
    """Return the value that `content` is.

    Raises:
        ValueError: It is no JSON, or names a key of an object twice.
        RecursionError: It is nested deeper than this interpreter goes.
    """
    return json.loads(content.decode(), object_pairs_hook=_once, parse_constant=_no_constant)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    form = dict(pairs)
    if len(form) != len(pairs):  # one reader takes the first of them, another the last
        raise ValueError("a key is written twice")
    return form


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
