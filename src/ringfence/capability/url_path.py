"""Which paths of a host a capability names: one exactly, or one with all below it; and what a path may look like then.

Where a rule is about paths, a path that two servers could read differently is under no rule at all: `..` and what is
escaped needlessly, empty parts, parameters behind `;`, backslashes and escaped slashes are refused, never cleaned up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ringfence.errors import InvalidRequest

ALL_BELOW: Final = "/**"
EVERY_PATH: Final = frozenset({ALL_BELOW})

_PART: Final = re.compile(r"[A-Za-z0-9._~!$&'()+=:@-]+\Z")
# an escape that needs none, of a slash, of a dot, of `;`, of another escape, or of something that cannot be seen
_NEEDLESS: Final = re.compile(r"%(?:[01].|7[Ff]|2[DdEeFf]|25|3[0-9BbFf]|23|4.|5[0-9AaCcFf]|6.|7[0-9AaEe])")
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


def path_pattern(pattern: object) -> str:
    """Return `/exactly/this` or `/this/and/below/**`, in its one spelling.

    Raises:
        InvalidRequest: It is anything else: wildcards elsewhere would have no exact meet.
    """
    if isinstance(pattern, str) and pattern.startswith("/"):
        place = pattern.removesuffix(ALL_BELOW)
        parts = place.split("/")[1:]
        ends_in_slash = place == pattern and parts[-1:] == [""]
        if all(_PART.match(part) and part not in (".", "..") for part in parts[: -1 if ends_in_slash else None]):
            return pattern
    raise InvalidRequest(
        f"{str(pattern)[:100]!a} is neither a path nor one with /** at its end",
        reason="invalid_value",
        fix="write /v1/models or /v1/**",
    )


def plain_paths(patterns: Iterable[str]) -> frozenset[str]:
    """Return the fewest patterns that mean the same: none of them covers another."""
    kept: set[str] = set()
    for pattern in sorted(set(patterns), key=_breadth):
        if not any(path_covers(wider, pattern) for wider in kept):
            kept.add(pattern)
    return frozenset(kept)


def path_covers(pattern: str, other: str) -> bool:
    """Whether every path of `other` is one of `pattern`."""
    if not pattern.endswith(ALL_BELOW):
        return pattern == other
    top = pattern.removesuffix(ALL_BELOW)
    return other == top or other.startswith(f"{top}/")


def paths_meet(ours: Iterable[str], theirs: Iterable[str]) -> frozenset[str]:
    """Return the paths that both name."""
    mine = tuple(ours)
    both = {
        other if path_covers(one, other) else one
        for other in theirs
        for one in mine
        if path_covers(one, other) or path_covers(other, one)
    }
    return plain_paths(both)


def paths_allow(patterns: frozenset[str], path: str) -> bool:
    """Whether a request's path, perhaps with a query, is one of them, and every server would read it so."""
    if patterns == EVERY_PATH:
        return True
    place = path.partition("?")[0]
    return not is_ambiguous(place) and any(path_covers(pattern, place) for pattern in patterns)


def is_ambiguous(place: str) -> bool:
    """Whether two servers could take a path, without its query, for two different ones."""
    parts = place.split("/")[1:]
    return (
        not place.startswith("/")
        or any(part in (".", "..") for part in parts)
        or "" in parts[:-1]
        or any(sign in place for sign in ";\\")
        or _NEEDLESS.search(place) is not None
        or _ESCAPE.search(place) is not None
        or not _is_text(place)
    )


def _is_text(place: str) -> bool:
    """Whether what is escaped is UTF-8: `%C0%AF` is no character, but a slash to decoders that look at bits alone."""
    from urllib.parse import unquote_to_bytes  # not at the top: few policies name paths

    try:
        unquote_to_bytes(place).decode()
    except UnicodeDecodeError:
        return False
    return True


def example_of(pattern: str) -> str:
    """Return one path that the pattern names."""
    return pattern.removesuffix(ALL_BELOW) or "/"


def _breadth(pattern: str) -> tuple[int, bool, str]:
    """Sort what covers before what is covered."""
    return len(example_of(pattern)), not pattern.endswith(ALL_BELOW), pattern
