"""Globs over workspace paths and host names, matched in time that no pattern can blow up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from ringfence.errors import InvalidRequest
from ringfence.operation.path import WORKSPACE, is_beneath, workspace_path

_T = TypeVar("_T")
_WORK = f"{WORKSPACE}/work"
_PARTS = ("inputs", "work", "artifacts", "tmp")
_UNSUPPORTED = frozenset("[]{}!\\")


def path_glob(pattern: object) -> str:
    """Return a path glob in its one spelling; `*` and `?` stay within a name, `**` spans any number of them.

    Raises:
        InvalidRequest: It is no path below the workspace, or uses what only other glob languages have.
    """
    path = workspace_path(pattern)
    if not _UNSUPPORTED.isdisjoint(path) and is_glob(path):
        raise InvalidRequest(
            f"{path[:100]!a} uses more than '*', '?' and '**'", reason="invalid_glob", fix="write one glob per case"
        )
    if any("**" in name and name != "**" for name in path.split("/")):
        raise InvalidRequest(f"{path[:100]!a}: '**' must be a whole name", reason="invalid_glob")
    return path


def denied_glob(pattern: object) -> str:
    """Return a path glob that denies; what another glob language would read in it is no name here, and denies nothing.

    Raises:
        InvalidRequest: As `path_glob`; also for a set or a brace in a path without a wildcard.
    """
    path = path_glob(pattern)
    if not _UNSUPPORTED.isdisjoint(path):
        raise InvalidRequest(
            f"{path[:100]!a} uses more than '*', '?' and '**'",
            reason="invalid_glob",
            fix="write one glob per case, and '?' for a character that cannot be written",
        )
    return path


def change_glob(pattern: object) -> str:
    """Return a glob of what a run may not change, in its one spelling: relative to its work directory.

    Raises:
        InvalidRequest: As `path_glob`; also when it means another part of the workspace, which no run changes.
    """
    if isinstance(pattern, str) and not pattern.startswith("/"):
        pattern = f"work/{pattern}"
    glob = denied_glob(pattern)
    if not is_beneath(glob, _WORK) or glob == _WORK:
        raise InvalidRequest(
            f"{str(pattern)[:100]!a} is not below the work directory",
            reason="invalid_glob",
            fix="write '**' for all of it",
        )
    return glob


def matches_denied(glob: str, path: str) -> bool:
    """Whether what is denied is a path or a directory above it: in every part, and without regard to case.

    On some file systems `.ENV` is `.env`. A case is folded in two ways: `ß` is `ss`, and one character for a `?` too.
    """
    return any(
        any(matches_below(each, found) for each in in_every_part(wanted))
        for wanted, found in set(zip(_folded(glob), _folded(path), strict=True))
    )


@lru_cache(maxsize=1024)
def _folded(text: str) -> tuple[str, str]:
    letter_by_letter = (letter.casefold() for letter in text)
    kept = (fold if len(fold) == 1 else letter for fold, letter in zip(letter_by_letter, text, strict=True))
    return text.casefold(), text.lower() if text.isascii() else "".join(kept)


@lru_cache(maxsize=1024)
def in_every_part(glob: str) -> tuple[str, ...]:
    """Return a glob of what is denied together with what it means in a workspace that has parts.

    Policies are written for workspaces where files lie directly in `/workspace`. Here nothing does: what is in no part
    by its name is meant in each of them, or `/workspace/.env` would deny nothing.
    """
    _, workspace, *names = glob.split("/")
    if not names or names[0] == "**" or any(_matches_name(names[0], part) for part in _PARTS):
        return (glob,)
    return glob, "/".join(("", workspace, "*", *names)), "/".join(("", workspace, "tmp", "*", *names))


def is_glob(path: str) -> bool:
    """Whether a path has wildcards."""
    return "*" in path or "?" in path


def literal_root(glob: str) -> str:
    """Return the directory that every match of a path glob lies in."""
    names = glob.split("/")
    first = next((at for at, name in enumerate(names) if is_glob(name)), len(names))
    return "/".join(names[:first])


def matches_path(glob: str, path: str) -> bool:
    """Whether a path, in its one spelling, matches."""
    return _wild(glob.split("/"), path.split("/"), many="**", same=_matches_name)


def matches_below(glob: str, path: str) -> bool:
    """Whether a path or a directory above it matches: who may not touch a directory may not touch what is in it."""
    names = path.split("/")
    wanted = glob.split("/")
    return any(_wild(wanted, names[:end], many="**", same=_matches_name) for end in range(2, len(names) + 1))


def matches_text(glob: str, text: str) -> bool:
    """Whether a text matches, with `*` spanning anything: `10.*`, `*.internal.*`."""
    return _matches_name(glob, text)


def _matches_name(glob: str, name: str) -> bool:
    return _wild(glob, name, many="*", same=_same_character)


def _same_character(wanted: str, found: str) -> bool:
    return wanted in ("?", found)


def _wild(wanted: Sequence[_T], found: Sequence[_T], *, many: _T, same: Callable[[_T, _T], bool]) -> bool:
    """Match with one step back at most: quadratic at worst, where a regular expression could be exponential."""
    at = of = 0
    star, resume = -1, 0
    while of < len(found):
        if at < len(wanted) and wanted[at] == many:
            star, resume = at, of
            at += 1
        elif at < len(wanted) and same(wanted[at], found[of]):
            at += 1
            of += 1
        elif star >= 0:
            resume += 1
            at, of = star + 1, resume
        else:
            return False
    return all(item == many for item in wanted[at:])
