"""A kept connection is looked at before it is used again, whatever number its descriptor has."""

from __future__ import annotations

import fcntl
import os
import resource
import socket

import pytest

from ringfence.wire.patience import PatientSocket

BEYOND_SELECT = 1500


def test_a_connection_with_a_large_number_is_looked_at_as_any_other() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= BEYOND_SELECT:
        pytest.skip("this process may not have so many descriptors")
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, BEYOND_SELECT)) as high:
        kept = PatientSocket(high)
        assert kept.is_quiet()
        theirs.send(b"x")
        assert not kept.is_quiet()
        os.read(high.fileno(), 1)
        assert kept.is_quiet()
        theirs.close()
        assert not kept.is_quiet()
