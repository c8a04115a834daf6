"""JSON as everybody reads it alike: no key twice, no number that is none, nothing that is not UTF-8."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import islice
from typing import Any, Final

from ringfence.pattern import pattern

_TEXTS_FOR_A_MEMBER: Final = 2
"""A key is a text, and what stands behind it may be another."""
_TEXT: Final = pattern(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class KeyTwice(ValueError):
    """An object has a key twice: one reader takes the first of them, another the last."""

    def __init__(self, key: str) -> None:
        """Say which one."""
        super().__init__("a key is written twice")
        self.key = key


class TooManyMembers(ValueError):
    """There are more objects, keys and texts than whoever reads it looks at."""


def read(content: bytes, *, most_members: int | None = None) -> Any:
    """Return the value that `content` is.

    Raises:
        KeyTwice: It names a key of an object twice.
        TooManyMembers: Its objects and their keys are more than `most_members`, or its texts more than twice as many.
        ValueError: It is no JSON.
        RecursionError: It is nested deeper than this interpreter goes.
    """
    text = content.decode()
    hook = _once
    if most_members is not None:
        _require_few_texts(text, _TEXTS_FOR_A_MEMBER * most_members)
        hook = _Counting(most_members).once
    return json.loads(text, object_pairs_hook=hook, parse_constant=_no_constant)


def _require_few_texts(text: str, most: int) -> None:
    """Refuse millions of texts before they are read: one object of them is seen when it is whole, and not before."""
    if text.count('"') > 2 * most and sum(1 for _ in islice(_TEXT.finditer(text), most + 1)) > most:
        raise TooManyMembers("there are too many texts")


class _Counting:
    def __init__(self, most: int) -> None:
        self._left = most

    def once(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._left -= 1 + len(pairs)
        if self._left < 0:
            raise TooManyMembers("there are too many objects and keys")
        return _once(pairs)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    form = dict(pairs)
    if len(form) != len(pairs):
        raise KeyTwice(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return form


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
