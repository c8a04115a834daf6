"""Which hosts a capability names: one exactly, all below a suffix, or (written as `*`) every name."""

from __future__ import annotations

from collections.abc import Iterator

from ringfence.errors import InvalidRequest
from ringfence.operation.target import host_name, is_address

ANY = "*"


def host_pattern(pattern: object) -> str:
    """Return `name`, `*.suffix` or `*` in its one spelling.

    Raises:
        InvalidRequest: It is anything else: wildcards elsewhere would have no exact meet.
    """
    if pattern == ANY:
        return ANY
    if isinstance(pattern, str) and pattern.startswith("*."):
        suffix = host_name(pattern[2:])
        if not is_address(suffix):
            return f"*.{suffix}"
    elif isinstance(pattern, str) and "*" not in pattern:
        return host_name(pattern)
    raise InvalidRequest(
        f"{str(pattern)[:100]!a} is neither the name of a host nor '*.' and a suffix",
        reason="invalid_host",
        fix="write example.com or *.example.com",
    )


def covers(pattern: str, other: str) -> bool:
    """Whether every host of `other` is one of `pattern`; an address is only ever named exactly."""
    if pattern == other:
        return True
    if pattern == ANY:
        return not is_address(other)
    return pattern.startswith("*.") and other.endswith(pattern[1:])


def meet(one: str, other: str) -> str | None:
    """Return the narrower of two nested patterns."""
    if covers(one, other):
        return other
    return one if covers(other, one) else None


def above(pattern: str) -> Iterator[str]:
    """List every pattern that covers this one: itself, then ever shorter suffixes."""
    yield pattern
    if pattern == ANY or is_address(pattern):
        return
    rest = pattern.removeprefix("*.") if pattern.startswith("*.") else pattern
    while "." in rest:
        rest = rest.partition(".")[2]
        yield f"*.{rest}"
    yield ANY
