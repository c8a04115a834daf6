"""The Landlock domain of a box: the mount policy said a second time, by another part of the kernel."""

from __future__ import annotations

import errno
import os
import signal

from ringfence.isolation.linux import kernel

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
_REFER, _IOCTL_DEV = 1 << 13, 1 << 15
# rights known to each version of the interface, as a count of the low bits
_RIGHTS_UP_TO = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1, 2

SIGNALS_SCOPED_SINCE = 6
"""The version of the interface from which a domain can keep its signals to itself."""

_CANARY = b"/proc/self/comm"


def handled(abi: int) -> int:
    """Return every file right that `abi` can deny."""
    return (1 << _RIGHTS_UP_TO[min(abi, 5)]) - 1


def enter(abi: int, writable: tuple[bytes, ...]) -> None:
    """Restrict this process: read and execute the box, write only in `writable` and to the device nodes."""
    everything = handled(abi)
    scopes = _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL if abi >= SIGNALS_SCOPED_SINCE else 0
    ruleset = kernel.landlock_ruleset(everything, scopes, abi)
    try:
        kernel.landlock_allow(ruleset, b"/", _EXECUTE | _READ_FILE | _READ_DIR)
        kernel.landlock_allow(ruleset, b"/dev", (_READ_FILE | _WRITE_FILE | _READ_DIR | _IOCTL_DEV) & everything)
        for path in writable:
            kernel.landlock_allow(ruleset, path, everything)
        kernel.landlock_restrict(ruleset)
    finally:
        os.close(ruleset)


def step_away_from(abi: int, pidfd: int) -> None:
    """Enter a domain within the present one, out of which this process can no longer signal or see the one left behind.

    Raises:
        PermissionError: It can still be signalled.
    """
    # the one file right that a domain denies unless told otherwise; which files, the outer domain says
    ruleset = kernel.landlock_ruleset(_REFER, _SCOPE_SIGNAL, abi)
    try:
        kernel.landlock_allow(ruleset, b"/", _REFER)
        kernel.landlock_restrict(ruleset)
    finally:
        os.close(ruleset)
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except PermissionError:
        return
    raise PermissionError(errno.EPERM, "Landlock let a process out of reach be signalled")


def prove() -> None:
    """Try what file modes and mounts allow and only Landlock forbids.

    Raises:
        PermissionError: Landlock did not hold.
    """
    try:
        fd = os.open(_CANARY, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EACCES:
            return
        raise
    os.close(fd)
    raise PermissionError(errno.EPERM, "Landlock let a forbidden file be opened for writing")
