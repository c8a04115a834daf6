"""Keeps what nobody may change as it is when a whole work directory is put in the place of another."""

from __future__ import annotations

import os

from ringfence.capability.denials import Denials
from ringfence.workspaces.beneath import open_parent
from ringfence.workspaces.commit import MOST_ENTRIES, ChangeDenied, survey
from ringfence.workspaces.names import harmless_path
from ringfence.workspaces.survey import Kind, Step
from ringfence.workspaces.tree import open_readable

_CHUNK = 1024 * 1024


def require_held(work_fd: int, new_fd: int, denials: Denials) -> None:
    """Refuse a new work directory in which something that nobody may change is not what it is in the old one.

    Raises:
        ChangeDenied: Naming the paths.
    """
    if not denials.changes:
        return
    was, will = _entries(work_fd), _entries(new_fd)
    names = {os.fsdecode(path): path for path in was.keys() | will.keys()}
    held = (names[name] for name in denials.denied_changes(sorted(names)))
    changed = [path for path in held if not _is_same(work_fd, was.get(path), new_fd, will.get(path))]
    if changed:
        raise ChangeDenied(tuple(map(harmless_path, changed)))


def _entries(directory_fd: int) -> dict[bytes, Step]:
    return {step.path: step for step in survey(directory_fd, max_entries=MOST_ENTRIES, layered=False)}


def _is_same(work_fd: int, was: Step | None, new_fd: int, will: Step | None) -> bool:
    if was is None or will is None or (was.kind, was.size) != (will.kind, will.size):
        return False
    if was.mode & 0o777 != will.mode & 0o777:
        return False
    if was.kind is Kind.LINK:
        return _link(work_fd, was.path) == _link(new_fd, was.path)
    return was.kind is not Kind.FILE or _is_same_file(work_fd, new_fd, was.path)


def _link(root_fd: int, path: bytes) -> str | bytes:
    parent, name = open_parent(root_fd, path)
    try:
        return os.readlink(name, dir_fd=parent)
    finally:
        os.close(parent)


def _is_same_file(work_fd: int, new_fd: int, path: bytes) -> bool:
    with open(_file(work_fd, path), "rb") as old, open(_file(new_fd, path), "rb") as new:
        while chunk := old.read(_CHUNK):
            if chunk != new.read(len(chunk)):
                return False
        return not new.read(1)


def _file(root_fd: int, path: bytes) -> int:
    parent, name = open_parent(root_fd, path)
    try:
        return open_readable(parent, os.fsencode(name))
    finally:
        os.close(parent)
