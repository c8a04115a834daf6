"""What the kernel says about a sealed worker, read by the host from outside; the worker is never asked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ringfence.errors import IsolationUnavailable

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at `/proc/<pid>` of a worker."""

    status: Mapping[str, str]
    namespaces: Mapping[str, str]


def look(pid: int) -> Observation:
    """Read the worker's status and namespaces."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        status = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
    return Observation(status, own_namespaces(pid))


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
