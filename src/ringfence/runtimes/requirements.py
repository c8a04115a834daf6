"""Decide what may be asked for with `packages=[…]`: names and versions from the index, and nothing that acts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from ringfence.errors import InvalidRequest

MAX_REQUIREMENTS = 64
MAX_REQUIREMENT_LENGTH = 256
_FORMAT = 1  # a new layout of the environment on disk gets new keys

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_RELEASE = r"v?(?:[0-9]+!)?[0-9]+(?:\.[0-9]+)*"
_VERSION = (
    rf"{_RELEASE}"
    r"(?:[-_.]?(?:alpha|beta|preview|pre|rc|a|b|c)[-_.]?[0-9]*)?"
    r"(?:-[0-9]+|[-_.]?(?:post|rev|r)[-_.]?[0-9]*)?"
    r"(?:[-_.]?dev[-_.]?[0-9]*)?"
    r"(?:\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?"
)
_REQUIREMENT = re.compile(rf" *({_NAME}) *(?:\[([^\[\]]*)\])? *(.*)", re.ASCII)
_EXTRA = re.compile(rf" *({_NAME}) *", re.ASCII)
_SPECIFIER = re.compile(
    rf" *(?:(==|!=) *({_RELEASE}\.\*)|(~=|==|!=|<=|>=|<|>) *({_VERSION})) *", re.ASCII | re.IGNORECASE
)
# Both clients read a last part like these as a file to install, whatever stands before it.
_ARCHIVE = re.compile(r"\.(?:whl|zip|tar|tgz|tbz|txz|tlz|gz|bz2|xz|lz|lzma|egg)\Z")


def normalise(requirements: Sequence[str]) -> tuple[str, ...]:
    """Return `requirements` in one canonical spelling, sorted, each once.

    Raises:
        InvalidRequest: One is more than a name, extras and versions: a URL, a path, an option, a marker.
    """
    if isinstance(requirements, str):
        raise InvalidRequest("packages must be a list of requirements, not one string", reason="invalid_package")
    if len(requirements) > MAX_REQUIREMENTS:
        raise InvalidRequest(f"packages: more than {MAX_REQUIREMENTS} requirements", reason="invalid_package")
    return tuple(sorted({_canonical(requirement) for requirement in requirements}))


def environment_key(requirements: Sequence[str], python_tag: str) -> str:
    """Return the name of the environment that satisfies normalised `requirements` for one kind of interpreter."""
    identity = json.dumps([_FORMAT, sorted(set(requirements)), python_tag], separators=(",", ":"))
    return hashlib.sha256(identity.encode()).hexdigest()


def _canonical(requirement: object) -> str:
    if not isinstance(requirement, str) or len(requirement) > MAX_REQUIREMENT_LENGTH:
        raise _refusal(requirement, f"must be text of at most {MAX_REQUIREMENT_LENGTH} characters")
    parts = _REQUIREMENT.fullmatch(requirement)
    if parts is None:
        raise _refusal(requirement, "is not a package name with versions")
    name, extras, specifiers = parts.groups()
    versions = ",".join(sorted({_specifier(requirement, text) for text in specifiers.split(",")} if specifiers else ()))
    canonical = f"{_plain(name)}{_extras(requirement, extras)}{versions}"
    if _ARCHIVE.search(canonical):
        raise _refusal(requirement, "looks like a file")
    return canonical


def _extras(requirement: str, extras: str | None) -> str:
    if extras is None or not extras.strip(" "):
        return ""
    names = set()
    for text in extras.split(","):
        match = _EXTRA.fullmatch(text)
        if match is None:
            raise _refusal(requirement, "has an extra that is not a name")
        names.add(_plain(match[1]))
    return f"[{','.join(sorted(names))}]"


def _specifier(requirement: str, text: str) -> str:
    match = _SPECIFIER.fullmatch(text)
    if match is None:
        raise _refusal(requirement, "may have only a name, extras and versions: no URL, path, option or marker")
    operator, version = (match[1], match[2]) if match[1] else (match[3], match[4])
    return f"{operator}{version.lower()}"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _refusal(requirement: object, problem: str) -> InvalidRequest:
    return InvalidRequest(f"packages: {str(requirement)[:80]!r} {problem}", reason="invalid_package")
