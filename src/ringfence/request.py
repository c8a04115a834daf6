"""What a caller asks to have run, in the caller's own words, before anybody has looked at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ringfence.capability.limits import Limits

Content = bytes | str
_NOTHING: Mapping[str, Content] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ExecutionRequest:
    """One thing to run, in the words of its caller."""

    code: str | bytes
    language: str = "python"
    timeout: float | None = None
    args: Iterable[str] = ()
    stdin: Content = b""
    files: Mapping[str, Content] = field(default_factory=lambda: _NOTHING)
    inputs: Mapping[str, Content] = field(default_factory=lambda: _NOTHING)
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    packages: Iterable[str] = ()
    preload: Iterable[str] = ()
    limits: Limits | None = None
