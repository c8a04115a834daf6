"""Which process made a reservation, and whether it can still settle it; no clock that anybody can set is asked.

Whoever shares a file is on this machine, and a process is looked at. Who shares a server may be anywhere: there each
holds a lease that ends with it, and that is what tells.
"""

from __future__ import annotations

import os
import zlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ringfence.dataclass import dataclass

if TYPE_CHECKING:
    from ringfence.database.port import Cursor

_START_TIME = 19  # of the fields after the command name, which may itself hold blanks and parentheses


@dataclass(frozen=True, slots=True)
class Owner:
    """One process of one boot; its start, in ticks since the boot, tells it from a later one with the same pid."""

    boot_id: str
    pid_namespace: str
    pid: int
    started: int


def this_process() -> Owner:
    """Return who asks."""
    return _process(os.getpid())


@lru_cache(maxsize=1)
def _process(pid: int) -> Owner:
    return Owner(_boot_id(), _pid_namespace(), pid, _started(pid))


def announce(cursor: Cursor, owner: Owner) -> None:
    """Let others see, where they cannot look at processes, that this one lives."""
    cursor.keeps_lease(_lease(owner))


def is_over(cursor: Cursor, owner: Owner) -> bool:
    """Whether whoever reserved in this database is known to be over: nobody has its lease, nor is it seen alive here.

    Both, because a process may have closed one of several databases, and its lease with it.
    """
    if owner == this_process() or not cursor.lease(_lease(owner)):
        return False
    cursor.end_lease(_lease(owner))
    return is_gone(owner) or owner.pid_namespace != _pid_namespace()


def _lease(owner: Owner) -> int:
    """Return the number of a process's lease, below those of logs; two that share one count as alive longer."""
    name = f"{owner.boot_id} {owner.pid_namespace} {owner.pid} {owner.started}"
    return -1 - (zlib.crc32(name.encode()) & 0x7FFFFFFE)


def is_gone(owner: Owner) -> bool:
    """Whether the process is known to be over; one that cannot be looked at counts as alive.

    A pid says nothing in another pid namespace, so what another container on the same home reserved is left to it.
    """
    if owner.boot_id != _boot_id():
        return True
    if owner.pid_namespace != _pid_namespace():
        return False
    try:
        return _started(owner.pid) != owner.started
    except FileNotFoundError:
        # hidden by `hidepid`, perhaps: the kernel still tells whether there is such a process
        return not _exists(owner.pid)
    except ProcessLookupError:
        return True
    except OSError:
        return False


def _started(pid: int) -> int:
    """Return when a process started; a zombie is over, though it still has a number."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        raise ProcessLookupError(pid)
    return int(fields[_START_TIME])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@lru_cache(maxsize=1)
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())
