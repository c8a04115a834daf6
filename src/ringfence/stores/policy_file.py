"""A policy file on disk, looked at with one `stat` per call, so that a change counts from the next call on."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import threading
import time
from collections.abc import Hashable
from pathlib import Path

from ringfence.authority.yaml_tree import MAX_BYTES

# A file that was changed twice within one tick of its file system's clock looks the same both times; until its last
# change is older than this, its very bytes are compared.
_SETTLED_NS = 2_000_000_000


class PolicyFile:
    """Implements `authority.policy_source.PolicyText`."""

    def __init__(self, path: Path | str) -> None:
        """Nothing is opened yet; where a relative path leads to is settled now, whoever changes directory later."""
        self._path = Path(path).absolute()
        self.name = str(path)
        self.alone = threading.Lock()

    def stamp(self) -> Hashable:
        """Return what the file system says about the file, and for a moment after a change its bytes."""
        seen = self._path.stat()
        stamp = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
        now = time.time_ns()
        # whoever writes the file can set the one to any time he likes, and not the other
        if min(abs(now - seen.st_mtime_ns), abs(now - seen.st_ctime_ns)) < _SETTLED_NS:
            return (*stamp, self.read())
        return stamp

    def read(self) -> bytes:
        """Return the content, and no more of it than a policy may have.

        Raises:
            OSError: It cannot be read, or is no plain file.
        """
        fd = self._open()
        try:
            # a device in its place reads as an empty policy, or as one without end
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "it is not a plain file")
            with open(fd, "rb", closefd=False) as file:
                return file.read(MAX_BYTES + 1)
        finally:
            os.close(fd)

    def is_being_written(self) -> bool:
        """Whether somebody has the file open for writing, as far as the file system tells its owner and root.

        The first half of a policy is often a policy too, without what the second half denies. The kernel leases a file
        to a reader only while nobody can write it; the lease is given back at once.

        Raises:
            OSError: It is not there any more.
        """
        fd = self._open()
        try:
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # told to let go meanwhile, a process would die of SIGIO
            try:
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            except OSError as error:
                return error.errno == errno.EAGAIN
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            return False
        finally:
            os.close(fd)

    def _open(self) -> int:
        # without waiting: a fifo in its place would hold up every call
        return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
