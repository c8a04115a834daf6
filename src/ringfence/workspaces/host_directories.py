"""Which directories of the host an operator may name in the configuration of a home, whatever for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ringfence.pattern import pattern
from ringfence.workspaces.home_config import wrong

_NAME: Final = pattern(r"[a-z0-9][a-z0-9_-]{0,62}\Z")
# what the kernel, the system's services and their sockets say to each other there is not for a guest
_NEVER: Final = ("/proc", "/sys", "/dev", "/run")


def checked_directory(key: str, name: str, path: object, home: Path) -> str:
    """Return the real path of a directory that the operator named under `key`.

    Raises:
        InvalidRequest: The name or the path cannot be one; the message has the key, not the path.
    """
    real = os.path.realpath(absolute_path(key, name, path))
    if not os.path.isdir(real):
        raise wrong(key, "this is no directory")
    own = os.path.realpath(home)
    # keys and evidence lie there, and the files of every project
    if _is_within(own, real) or _is_within(real, own):
        raise wrong(key, "this directory and the home of this installation lie within each other")
    if any(_is_within(real, never) for never in _NEVER):
        raise wrong(key, "this directory is the system's own")
    return real


def absolute_path(key: str, name: str, path: object) -> str:
    """Return what the operator wrote under `key`, where it could be a name and a path; the disk is not asked.

    Raises:
        InvalidRequest: It could not.
    """
    if not _NAME.match(name):
        raise wrong(key, "a name is 1 to 63 lower-case letters, digits, '-' or '_'")
    if not isinstance(path, str) or not path.startswith("/") or not path.isprintable():
        raise wrong(key, "must be an absolute path")
    return path


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
