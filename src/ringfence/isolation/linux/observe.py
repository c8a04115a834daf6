"""What the kernel says about a sealed worker, read by the host from outside; the worker is never asked."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping

from ringfence.dataclass import dataclass
from ringfence.errors import IsolationUnavailable

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_SIOCGSKNS = 0x894C
_WANTED = {
    name: f"\n{name}:\t".encode()
    for name in (*_CAPABILITY_SETS, "Uid", "Gid", "NoNewPrivs", "Seccomp", "Seccomp_filters")
}


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at `/proc/<pid>` of a worker."""

    status: Mapping[str, str]
    """The lines of the status file that matter here."""
    namespaces: Mapping[str, str]


def look(pid: int) -> Observation:
    """Read the worker's status and namespaces."""
    fd = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, 16384)
    finally:
        os.close(fd)
    return Observation(read_status(text), own_namespaces(pid))


def membership(pid: int) -> bytes:
    """Read which cgroups the worker is in."""
    fd = os.open(f"/proc/{pid}/cgroup", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 16384)
    finally:
        os.close(fd)


def read_status(text: bytes) -> dict[str, str]:
    """Return the wanted lines of a status file; the name of the program, which a guest chooses, is not among them."""
    # the first line is the name, escaped by the kernel, so no later line can be made up in it
    found = ((name, text.partition(line)) for name, line in _WANTED.items())
    return {name: rest.partition(b"\n")[0].decode() for name, (_, line, rest) in found if line}


def own_namespaces(pid: int | str = "self") -> dict[str, str]:
    """Return the identity of each namespace of a process."""
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in NAMESPACES}


def missing_layers(seen: Observation, host: Mapping[str, str], *, filters: int) -> tuple[str, ...]:
    """Name every layer that should be there and is not; an empty answer is the only good one."""
    status = seen.status
    missing = [f"{kind} namespace" for kind in NAMESPACES if seen.namespaces[kind] == host[kind]]
    missing += [f"empty {name}" for name in _CAPABILITY_SETS if int(status[name], 16) != 0]
    if status.get("NoNewPrivs") != "1":
        missing.append("no_new_privs")
    if status.get("Seccomp") != "2" or int(status.get("Seccomp_filters", filters)) < filters:
        missing.append("seccomp")
    if "0" in (status["Uid"] + "\t" + status["Gid"]).split("\t"):
        missing.append("an id other than the host's 0")
    return tuple(missing)


def require_sealed(seen: Observation, host: Mapping[str, str], *, filters: int) -> None:
    """Refuse a worker that is not isolated as promised.

    Raises:
        IsolationUnavailable: Naming the layers the kernel did not report.
    """
    missing = missing_layers(seen, host, filters=filters)
    if missing:
        raise IsolationUnavailable(f"the worker came up without {', '.join(missing)}; nothing ran in it")


def require_door(door: int, network: str) -> None:
    """Refuse a way out that does not begin in `network`, the worker's own: whoever connects to it must be the guest.

    Raises:
        IsolationUnavailable: The socket listens in another network, or the kernel does not say in which.
    """
    try:
        found = fcntl.ioctl(door, _SIOCGSKNS)
    except OSError as error:
        raise IsolationUnavailable(f"the kernel does not say whose network a socket is in: {error.strerror}") from error
    try:
        if os.readlink(f"/proc/self/fd/{found}") != network:
            raise IsolationUnavailable("the worker's way out begins in another network than its own; nothing ran in it")
    finally:
        os.close(found)
