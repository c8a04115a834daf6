"""Put a caller's files into a run's workspace before the guest starts, each one new and beneath the given directory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from ringfence.errors import InvalidRequest, QuotaExceeded
from ringfence.workspaces.acting import Owner, acting_as
from ringfence.workspaces.beneath import make_parents, open_beneath
from ringfence.workspaces.names import check_input_path

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def place(root_fd: int, files: Mapping[str, bytes], *, owner: Owner | None, under: str = "work") -> None:
    """Create `files` below `root_fd`, which is seen inside as `/workspace/<under>`.

    `owner` is the guest's host uid and gid in root mode. Every name is checked before the first file is made; a
    failure after that leaves a partly filled directory, whose run must not be started.

    Raises:
        InvalidRequest: A name is unfit, given twice, or both a file and a directory.
        PathTraversalError: A name leads outside, or a link lies in its way.
        QuotaExceeded: The files do not fit into the workspace of the run.
    """
    checked = check_names(files, under=under)
    try:
        with acting_as(owner):
            for path, content in zip(checked, files.values(), strict=True):
                _write_new(root_fd, path, content)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise QuotaExceeded("the input files do not fit into the workspace", reason="disk") from error
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            raise InvalidRequest("an input file is in the way of another", reason="invalid_path") from error
        raise


def check_names(names: Iterable[str], *, under: str = "work") -> tuple[PurePosixPath, ...]:
    """Return every name as a path, or refuse them all; needs no workspace, so it can run before anything is leased.

    Raises:
        InvalidRequest: A name is unfit, given twice, or both a file and a directory.
    """
    checked = tuple(check_input_path(name, under=under) for name in names)
    distinct = set(checked)
    if len(distinct) != len(checked):
        raise InvalidRequest("two input files have the same path", reason="invalid_path")
    for path in checked:
        if not distinct.isdisjoint(path.parents):
            raise InvalidRequest(f"{str(path)[:100]!a} lies below another input file", reason="invalid_path")
    return checked


def _write_new(root_fd: int, path: PurePosixPath, content: bytes) -> None:
    parent = make_parents(root_fd, str(path))
    try:
        fd = open_beneath(parent, path.name, _NEW_FILE, 0o644)
    finally:
        os.close(parent)
    try:
        os.fchmod(fd, 0o644)  # whatever the umask of the host application
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
    finally:
        os.close(fd)
