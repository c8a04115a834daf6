"""Files on their way into a container: a session's when it is parked, a caller's before its job."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ringfence.errors import InvalidRequest, PathTraversalError, QuotaExceeded
from ringfence.isolation.protocol import Kind, ProtocolError
from ringfence.isolation.stream import wire
from ringfence.isolation.stream.line import HungUp, Silence, Talk
from ringfence.ports import WorkerLost
from ringfence.workspaces.acting import acting_as
from ringfence.workspaces.changes import MAX_DEPTH
from ringfence.workspaces.place import check_names, place
from ringfence.workspaces.session import SessionWorkspace
from ringfence.workspaces.tree import Entry, Walk, open_readable

_PLAIN_FILE = 0o644


def send_session(talk: Talk, session: SessionWorkspace, deadline: float, *, inodes: int) -> int:
    """Send a session's work directory, and return which generation of it that was.

    Raises:
        Silence: The container did not take it in time.
    """
    with session.holding() as owner:
        generation = session.generation()
        with acting_as(owner):
            for entry in Walk(session.work_fd, max_entries=2 * inodes, max_depth=MAX_DEPTH):
                _send_entry(talk, entry, deadline)
    talk.say(Kind.PLACED)
    return generation


def _send_entry(talk: Talk, entry: Entry, deadline: float) -> None:
    status = entry.status
    mode, mtime = stat.S_IMODE(status.st_mode), status.st_mtime_ns
    if entry.is_directory:
        told = wire.Entry(wire.WORK, wire.DIRECTORY, 0, mode, mtime, 0, entry.path)
    elif entry.is_link:
        target = os.readlink(entry.name, dir_fd=entry.parent_fd)
        told = wire.Entry(wire.WORK, wire.LINK, 0, mode, mtime, len(target), entry.path, target)
    elif entry.is_file:
        fd = open_readable(entry.parent_fd, entry.name)
        try:
            size = os.fstat(fd).st_size
            told = wire.Entry(wire.WORK, wire.FILE, wire.HAS_CONTENT, mode, mtime, size, entry.path)
            talk.say(Kind.ENTRY, wire.pack(told))
            while size and (data := os.read(fd, min(wire.PIECE_BYTES, size))):
                size -= len(data)
                talk.say(Kind.PIECE, data)
                talk.flush(deadline)
        finally:
            os.close(fd)
        return
    else:
        return
    talk.say(Kind.ENTRY, wire.pack(told))
    talk.flush(deadline)


def send_files(talk: Talk, files: Mapping[str, bytes], inputs: Mapping[str, bytes], deadline: float) -> None:
    """Send a caller's files, all of whose names are checked before the first is sent.

    Raises:
        InvalidRequest: A name is unfit, given twice, or both a file and a directory.
        PathTraversalError: A name leads outside.
        QuotaExceeded: The files do not fit into the workspace of the run.
        WorkerLost: The container is gone.
    """
    for area, under, content in ((wire.WORK, "work", files), (wire.INPUTS, "inputs", inputs)):
        for path, data in zip(check_names(content, under=under), content.values(), strict=True):
            entry = wire.Entry(area, wire.FILE, wire.HAS_CONTENT, _PLAIN_FILE, 0, len(data), os.fsencode(str(path)))
            talk.say(Kind.ENTRY, wire.pack(entry))
            for start in range(0, len(data), wire.PIECE_BYTES):
                talk.say(Kind.PIECE, data[start : start + wire.PIECE_BYTES])
    talk.say(Kind.PLACED)
    try:
        kind, payload = talk.hear(deadline)
    except (Silence, HungUp, ProtocolError) as error:
        raise WorkerLost("the container did not take the files") from error
    if kind is not Kind.PLACED or not payload.isdigit():
        raise WorkerLost("the container did not take the files")
    _raise(int(payload[:6]))


def _raise(code: int) -> None:
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise QuotaExceeded("the input files do not fit into the workspace", reason="disk")
    if code in (errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG):
        raise InvalidRequest("an input file is in the way of another", reason="invalid_path")
    if code == errno.ELOOP:
        raise PathTraversalError("a link lies in the way of an input file")
    if code:
        raise WorkerLost(f"the files could not be put into the container: {os.strerror(code)}")


def place_inputs(directory: Path, inputs: Mapping[str, bytes]) -> None:
    """Write `inputs` into the directory of the host that the container shows as its inputs."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        place(fd, inputs, owner=None, under="inputs")
    finally:
        os.close(fd)
