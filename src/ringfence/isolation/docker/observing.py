"""What this machine's kernel says about a container: read by the host from `/proc`, never asked of the engine.

An engine may be on another machine, or in a virtual one. So a pid it names counts only when `/proc` here shows that
process in a cgroup, or with a host name, of that very container; otherwise nothing was observed, and that is said.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Mapping
from typing import Final

from ringfence.dataclass import dataclass, replace
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.docker import engine
from ringfence.isolation.linux import observe
from ringfence.isolation.linux.metering import children, read_proc
from ringfence.isolation.stream.parking import Hello
from ringfence.outcome import Layers

NOT_OBSERVED: Final = (
    "no cgroup of this machine is the container's, so nobody here saw the layers of this box: its engine is elsewhere, "
    "or makes none and bounds neither memory nor processes, or Ringfence has a pid namespace of its own; what was "
    "asked for is in `argv`"
)
NO_USER_NAMESPACE: Final = "the container shares this machine's user ids: its user 1000 is the machine's"
NAMESPACES_TOLD: Final = (
    "only root may look at another user's namespaces: which ones the container has, its engine says"
)
_MEMORY_V1: Final = re.compile(rb"^\d+:[a-z,]*\bmemory\b[a-z,]*:(/.+)$", re.MULTILINE)
_UNIFIED: Final = re.compile(rb"^0::(/.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sight:
    """One look at a container's first process and at its worker."""

    pids: tuple[int, int]
    """Of both, as this machine counts them."""
    init: observe.Observation
    worker: observe.Observation
    membership: bytes
    is_complete: bool
    """Whether the namespaces were seen; only root may look at those of others, and else they are the engine's word."""


def require_layers(sight: Sight, hello: Hello, host: Mapping[str, str]) -> Layers:
    """Return what this machine's kernel says about a container.

    Raises:
        IsolationUnavailable: The kernel does not report every layer that a container has to have, or says that it has.
    """
    missing = tuple(dict.fromkeys((*missing_layers(sight.init, host), *missing_layers(sight.worker, host))))
    if _filters(sight.worker) - _filters(sight.init) < hello.filters and "Seccomp_filters" in sight.worker.status:
        missing = (*missing, "the filters that it says it has")
    if missing:
        raise IsolationUnavailable(f"the container came up without {', '.join(missing)}; nothing ran in it")
    return describe(sight, hello, host)


def _filters(seen: observe.Observation) -> int:
    return int(seen.status.get("Seccomp_filters", 1))


def of_gvisor(container: engine.Container, hello: Hello, host: Mapping[str, str]) -> Layers:
    """Return what is seen of gVisor's kernel, where the guest's system calls end; how strong that is, others judge."""
    try:
        membership = observe.membership(container.pid)
        seen, _ = _look(container.pid, container)
        if container.id.encode() not in membership or membership != observe.membership(container.pid):
            return Layers(notes=(NOT_OBSERVED, *hello.notes))
    except (OSError, ValueError):
        return Layers(notes=(NOT_OBSERVED, *hello.notes))
    status = seen.status
    return Layers(
        namespaces=tuple(kind for kind, name in seen.namespaces.items() if name and name != host[kind]),
        capabilities_empty=all(int(value, 16) == 0 for name, value in status.items() if name.startswith("Cap")),
        no_new_privs=status.get("NoNewPrivs") == "1",
        seccomp_filters=int(status.get("Seccomp_filters", 1)) if status.get("Seccomp") == "2" else 0,
        landlock_abi=hello.landlock_abi,
        cgroup=_kind_of(membership),
        host_uid=int(status["Uid"].split("\t")[0]),
        memory_limit="cgroup" if _kind_of(membership) != "none" else "none",
        notes=hello.notes,
    )


def sight_of(container: engine.Container, worker_pid: int) -> Sight | None:
    """Look at the container's processes; None where they are none of this machine's."""
    if container.pid <= 0:
        return None
    try:
        membership = observe.membership(container.pid)
        if container.id.encode() not in membership:
            return None
        worker = next((pid for pid in children(container.pid) if _inner(pid) == worker_pid), None)
        if worker is None:
            return None
        (init, complete), (sealed, _) = _look(container.pid, container), _look(worker, container)
        # asked before and after: the pid must have been that container's all the while
        if membership != observe.membership(container.pid):
            return None
    except (OSError, ValueError):
        return None
    return Sight((container.pid, worker), init, sealed, membership, complete)


def _look(pid: int, container: engine.Container) -> tuple[observe.Observation, bool]:
    try:
        return observe.look(pid), True
    except PermissionError:
        told = {kind: "the engine's" if kind in container.own_namespaces else "" for kind in observe.NAMESPACES}
        return observe.Observation(observe.read_status(read_proc(pid, "status")), told), False


def _inner(pid: int) -> int:
    """Return the number that a process has in its own pid namespace."""
    found = re.search(rb"^NSpid:\t.*?(\d+)$", read_proc(pid, "status"), re.MULTILINE)
    return int(found[1]) if found else 0


def missing_layers(seen: observe.Observation, host: Mapping[str, str]) -> tuple[str, ...]:
    """Name every layer that a container must have and this one has not; an empty answer is the only good one.

    A user namespace is the operator's choice (a rootless engine, or one that remaps); with no capability left to be had
    and no filter that lets one be made, a container is one without it.
    """
    shared = ("user namespace", "cgroup namespace")
    own = {kind: "" if name == host[kind] else name for kind, name in seen.namespaces.items()}
    missing = observe.missing_layers(replace(seen, namespaces=own), dict.fromkeys(own, ""), filters=1)
    return tuple(each for each in missing if each not in shared)


def describe(sight: Sight, hello: Hello, host: Mapping[str, str]) -> Layers:
    """Put what was seen into the words of a result."""
    own = tuple(kind for kind, name in sight.worker.namespaces.items() if name and name != host[kind])
    notes = [] if "user" in own else [NO_USER_NAMESPACE]
    if not sight.is_complete:
        notes.append(NAMESPACES_TOLD)
    kind = _kind_of(sight.membership)
    return Layers(
        namespaces=own,
        capabilities_empty=True,
        no_new_privs=True,
        seccomp_filters=_filters(sight.worker),
        landlock_abi=hello.landlock_abi,
        cgroup=kind,
        host_uid=int(sight.worker.status["Uid"].split("\t")[0]),
        memory_limit="cgroup" if kind != "none" else "none",
        notes=(*notes, *hello.notes),
    )


def _kind_of(membership: bytes) -> str:
    return "v1" if _MEMORY_V1.search(membership) else "v2" if _UNIFIED.search(membership) else "none"


def open_process(container: engine.Container) -> int | None:
    """Return a descriptor by which the container's first process can be killed; None where that is not ours to do."""
    if container.pid <= 0:
        return None
    try:
        fd = os.pidfd_open(container.pid)
    except OSError:
        return None
    # only now, with the process held, is it certain whose pid it is
    with contextlib.suppress(OSError):
        if container.id.encode() in observe.membership(container.pid):
            signal.pidfd_send_signal(fd, 0)
            return fd
    os.close(fd)
    return None
