"""The Landlock domain of a box: the mount policy said a second time, by another part of the kernel."""

from __future__ import annotations

import ctypes
import errno
import os

from ringfence.isolation.linux.steps import AT_FDCWD, Steps

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
_REFER, _IOCTL_DEV = 1 << 13, 1 << 15
# rights known to each version of the interface, as a count of the low bits
_RIGHTS_UP_TO = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1, 2
_PATH_BENEATH = 1

SIGNALS_SCOPED_SINCE = 6
"""The version of the interface from which a domain can keep its signals to itself."""

_CANARY = b"/proc/self/comm"


class _RulesetAttr(ctypes.Structure):
    _fields_ = (("handled_fs", ctypes.c_uint64), ("handled_net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def handled(abi: int) -> int:
    """Return every file right that `abi` can deny."""
    return (1 << _RIGHTS_UP_TO[min(abi, 5)]) - 1


def enter(steps: Steps, abi: int, writable: tuple[bytes, ...], free: tuple[int, int]) -> None:
    """Restrict the process: read and execute the box, write only in `writable` and to the device nodes.

    `free` are the two lowest free descriptors.
    """
    everything = handled(abi)
    scopes = _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL if abi >= SIGNALS_SCOPED_SINCE else 0
    allowed = [
        (b"/", _EXECUTE | _READ_FILE | _READ_DIR),
        (b"/dev", (_READ_FILE | _WRITE_FILE | _READ_DIR | _IOCTL_DEV) & everything),
        *((path, everything) for path in writable),
    ]
    _restrict(steps, _RulesetAttr(everything, 0, scopes), abi, allowed, free)
    prove(steps)


def prove(steps: Steps) -> None:
    """Try what file modes and mounts allow and only Landlock forbids."""
    steps.add("openat", AT_FDCWD, _CANARY, os.O_WRONLY | os.O_CLOEXEC, expect=-errno.EACCES)


def step_away_from(steps: Steps, abi: int, pidfd: int, free: tuple[int, int]) -> None:
    """Enter a domain within the present one, out of which the process can no longer signal or see the one left behind.

    Then try to signal it.
    """
    # the one file right that a domain denies unless told otherwise; which files, the outer domain says
    _restrict(steps, _RulesetAttr(_REFER, 0, _SCOPE_SIGNAL), abi, [(b"/", _REFER)], free)
    steps.add("pidfd_send_signal", pidfd, 0, 0, 0, expect=-errno.EPERM)


def _restrict(
    steps: Steps, attr: _RulesetAttr, abi: int, allowed: list[tuple[bytes, int]], free: tuple[int, int]
) -> None:
    ruleset, opened = free
    # an older kernel refuses a structure that is longer than the one it knows
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    steps.add("landlock_create_ruleset", attr, size, 0, expect=ruleset)
    for path, rights in allowed:
        steps.add("openat", AT_FDCWD, path, os.O_PATH | os.O_CLOEXEC, expect=opened)
        steps.add("landlock_add_rule", ruleset, _PATH_BENEATH, _PathBeneath(rights, opened), 0)
        steps.add("close", opened)
    steps.add("landlock_restrict_self", ruleset, 0)
    steps.add("close", ruleset)
