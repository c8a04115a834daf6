"""What the executions of one project may keep together: counted in one small file, so that no run looks at all of them.

Nothing is removed to make room: artifacts lie beside evidence, and a person says when they may go (`ringfence evidence
prune`). A run that finds no room keeps its result and its evidence, and both say that its files were not kept.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from ringfence.capability.limits import MIB
from ringfence.errors import QuotaExceeded
from ringfence.workspaces.beneath import open_beneath
from ringfence.workspaces.tree import Walk

MOST_PROJECT_BYTES: Final = 8192 * MIB
MOST_PROJECT_FILES: Final = 1_000_000
_NAME = "artifacts-usage"
_MOST_COUNTED = 2 * MOST_PROJECT_FILES
_MAX_DEPTH = 64


@contextmanager
def reserved(project_fd: int, artifacts_fd: int, size: int, files: int) -> Iterator[None]:
    """Take room for one execution's files, and give it back if they are not written after all.

    A host that dies in between leaves the room taken until the project is counted again, which pruning brings about.

    Raises:
        QuotaExceeded: The project would keep more than it may.
    """
    _add(project_fd, artifacts_fd, size, files, check=True)
    try:
        yield
    except BaseException:
        _add(project_fd, artifacts_fd, -size, -files, check=False)
        raise


def count_again(project_fd: int) -> None:
    """Have the next execution count what there is: something was removed."""
    with suppress(FileNotFoundError):
        os.unlink(_NAME, dir_fd=project_fd)


def _add(project_fd: int, artifacts_fd: int, size: int, files: int, *, check: bool) -> None:
    fd = open_beneath(project_fd, _NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        present = _read(fd) or _measured(artifacts_fd)
        after = (max(0, present[0] + size), max(0, present[1] + files))
        if check and (after[0] > MOST_PROJECT_BYTES or after[1] > MOST_PROJECT_FILES):
            raise QuotaExceeded(
                "the artifacts of this project would outgrow their quota",
                reason="project_artifacts",
                fix="remove old ones with 'ringfence evidence prune'",
                bytes=after[0],
                max_bytes=MOST_PROJECT_BYTES,
                files=after[1],
                max_files=MOST_PROJECT_FILES,
            )
        os.pwrite(fd, b"%020d %020d" % after, 0)
    finally:
        os.close(fd)


def _read(fd: int) -> tuple[int, int] | None:
    """Return what was counted; nothing where nobody has, or where it cannot be believed."""
    parts = os.pread(fd, 64, 0).split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        return None
    return int(parts[0]), int(parts[1])


def _measured(artifacts_fd: int) -> tuple[int, int]:
    size = files = 0
    for entry in Walk(artifacts_fd, max_entries=_MOST_COUNTED, max_depth=_MAX_DEPTH):
        files += 1
        size += entry.status.st_size if entry.is_file else 0
    return size, files
