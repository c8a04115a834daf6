"""Touch a guest's files as the guest's own user, never with root's rights.

The private tmpfs of a run belongs to a user namespace that does not know host uid 0: root itself cannot create a file
there (EOVERFLOW). The filesystem ids of one thread can be changed alone, and with them root's power over files goes.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

Owner = tuple[int, int]
"""A host uid and gid."""

_libc = ctypes.CDLL(None, use_errno=True)
_ASK = ctypes.c_uint32(0xFFFFFFFF)  # an id nobody has: changes nothing and answers the present one


@contextmanager
def acting_as(owner: Owner | None) -> Iterator[None]:
    """Make this thread's file accesses those of `owner`; `None` (rootless) leaves the caller's own.

    Only the calling thread changes: do not await inside.

    Raises:
        OSError: The process lacks the capability to take these ids.
    """
    if owner is None:
        yield
        return
    uid, gid = _current()
    try:
        _libc.setfsgid(ctypes.c_uint32(owner[1]))  # first: without the uid's power it could not be changed
        _libc.setfsuid(ctypes.c_uint32(owner[0]))
        if _current() != owner:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), f"filesystem ids {owner}")
        yield
    finally:
        _libc.setfsuid(ctypes.c_uint32(uid))
        _libc.setfsgid(ctypes.c_uint32(gid))
        if _current() != (uid, gid):  # going on with a guest's ids would misplace every later file
            os.abort()


def _current() -> Owner:
    return _libc.setfsuid(_ASK) & 0xFFFFFFFF, _libc.setfsgid(_ASK) & 0xFFFFFFFF
