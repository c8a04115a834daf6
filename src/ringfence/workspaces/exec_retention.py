"""Removes the files of old executions, in every project, by whatever time a person says."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ringfence.errors import PathTraversalError
from ringfence.workspaces.artifact_quota import count_again
from ringfence.workspaces.exec_files import open_in
from ringfence.workspaces.session import is_plain_name


def prune_exec_files(home: Path, before_ms: int, *, held: Callable[[str], bool] = lambda _: False) -> tuple[str, ...]:
    """Remove the files of executions written before a time, in every project; return the ids of those that are gone.

    `held` says of an execution's id that its files must stay. Drafts of a host that was killed, and what once lay in
    the way, go as they grow as old.
    """
    gone: list[str] = []
    tenants = [f"tenants/{name}/projects" for name in _names(home, "tenants")]
    for projects in ("projects", *tenants):
        for project in _names(home, projects):
            with suppress(PathTraversalError):
                artifacts = open_in(home, f"workspace/{projects}/{project}/artifacts")
                if artifacts is None:
                    continue
                try:
                    pruned = _prune(artifacts, before_ms, held)
                    if pruned:
                        _count_again(home, f"workspace/{projects}/{project}")
                    gone += pruned
                finally:
                    os.close(artifacts)
    return tuple(gone)


def _count_again(home: Path, project: str) -> None:
    fd = open_in(home, project)
    if fd is not None:
        try:
            count_again(fd)
        finally:
            os.close(fd)


def _names(home: Path, directory: str) -> list[str]:
    fd = None
    with suppress(PathTraversalError):
        fd = open_in(home, f"workspace/{directory}")
    if fd is None:
        return []
    try:
        return sorted(filter(is_plain_name, os.listdir(fd)))
    finally:
        os.close(fd)


def _prune(artifacts: int, before_ms: int, held: Callable[[str], bool]) -> list[str]:
    gone = []
    for name in sorted(os.listdir(artifacts)):
        with suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=artifacts, follow_symlinks=False)
            # of the directory itself: nobody but the host can write in it, or set its time
            if status.st_mtime_ns // 1_000_000 >= before_ms or held(_exec_id_of(name)):
                continue
            if stat.S_ISDIR(status.st_mode):
                shutil.rmtree(name, dir_fd=artifacts)  # by descriptors: follows no link
            else:
                os.unlink(name, dir_fd=artifacts)
            if not name.startswith("."):
                gone.append(name)
    return gone


def _exec_id_of(name: str) -> str:
    """Return whose files these are, also of a draft or of what was displaced."""
    if not name.startswith("."):
        return name
    return name.removeprefix(".displaced").removeprefix(".").rpartition(".")[0]
