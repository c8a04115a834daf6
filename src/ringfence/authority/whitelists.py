"""A profile as older programs and people look at it: lists of what is allowed, and where its files are."""

from __future__ import annotations

from typing import Any

from ringfence.capability.capabilities import Capabilities
from ringfence.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Whitelists:
    """What the capabilities allow, list by list, as people and older programs look at it."""

    domains: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    mime_allow: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mappings:
    """Where an operation's files are, as it sees them itself; where that lies on the host is nobody's to know."""

    root_fs: str = "/workspace"
    tmp_dir: str = "/tmp"  # noqa: S108  # the one inside


def whitelists(capabilities: Capabilities, mime_allow: frozenset[str] | None) -> Whitelists:
    """Return capabilities as the lists of domains, paths, tools and methods in them."""
    found: dict[str, set[str]] = {"domains": set(), "paths": set(), "tools": set(), "methods": set()}
    item: Any  # each kind has its own fields
    for item in capabilities:
        match item.name:
            case "net.http":
                found["domains"].add(item.host)
                found["methods"] |= item.methods
            case "fs.read" | "fs.write" | "fs.list":
                found["paths"].add(item.path)
            case "proc.exec":
                found["tools"].add(item.tool)
            case _:
                pass
    return Whitelists(
        **{name: tuple(sorted(values)) for name, values in found.items()}, mime_allow=tuple(sorted(mime_allow or ()))
    )
