"""Where a path of an AIO client lies in a project: below `/workspace`, by any of its names, and nowhere else."""

from __future__ import annotations

from typing import Final

from ringfence.operation import WORKING_DIRECTORY
from ringfence.operation.path import WORKSPACE, is_beneath, workspace_path

_PARTS: Final = tuple(f"{WORKSPACE}/{name}" for name in ("work", "inputs", "artifacts", "tmp"))


def guest_path(path: str) -> str:
    """Return the one spelling of a path; what is relative, or `/workspace` itself, means the project's work.

    A name right below `/workspace` is one of the work too: a program in the box cannot write there, so nothing else
    could be meant.

    Raises:
        PathTraversalError: It climbs with `..`, or is absolute and not below `/workspace`.
        InvalidRequest: It cannot be a path at all.
    """
    if not path.startswith("/"):
        return workspace_path(f"{WORKING_DIRECTORY}/{path}" if path else WORKING_DIRECTORY)
    found = workspace_path(path)
    if any(is_beneath(found, part) for part in _PARTS):
        return found
    return workspace_path(WORKING_DIRECTORY + found[len(WORKSPACE) :])


def guest_directory(path: str | None, usual: str = WORKING_DIRECTORY) -> str:
    """Return the directory that is meant, or the usual one where none is; see `guest_path`."""
    return usual if not path else guest_path(path)
