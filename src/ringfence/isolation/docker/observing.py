"""What this machine's kernel says about a container: read by the host from `/proc`, never asked of the engine.

An engine may be on another machine, or in a virtual one. So a pid it names counts only when `/proc` here shows that
process in a cgroup, or with a host name, of that very container; otherwise nothing was observed, and that is said.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ringfence.isolation.docker.engine import Container
from ringfence.isolation.linux import observe
from ringfence.outcome import Layers

CONTAINER_NAMESPACES: Final = ("mnt", "pid", "net", "ipc", "uts")
NOT_OBSERVED: Final = (
    "the container engine is not on this machine, so nobody here saw the layers of this box; what was asked for is in "
    "`argv`"
)
NO_USER_NAMESPACE: Final = "the container shares this machine's user ids: its user 1000 is the machine's"
_MEMORY_V1: Final = re.compile(rb"^\d+:[a-z,]*\bmemory\b[a-z,]*:(/.+)$", re.MULTILINE)
_UNIFIED: Final = re.compile(rb"^0::(/.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sight:
    """One look at a container's first process."""

    seen: observe.Observation
    membership: bytes


def sight_of(container: Container) -> Sight | None:
    """Look at the container's first process; None where it is not a process of this machine."""
    if container.pid <= 0:
        return None
    with contextlib.suppress(OSError, KeyError, ValueError):
        membership = observe.membership(container.pid)
        # read before and after: the pid must have been that container's all the while
        if container.id.encode() not in membership:
            return None
        seen = observe.look(container.pid)
        if container.id.encode() in observe.membership(container.pid):
            return Sight(seen, membership)
    return None


def missing_layers(seen: observe.Observation, host: Mapping[str, str]) -> tuple[str, ...]:
    """Name every layer that a container must have and this one has not; an empty answer is the only good one.

    A user namespace is the operator's choice (a rootless engine, or one that remaps); with no capability left to be had
    and no filter that lets one be made, a container is one without it.
    """
    missing = observe.missing_layers(seen, host, filters=1)
    return tuple(each for each in missing if each not in ("user namespace", "cgroup namespace"))


def layers_of(sight: Sight, host: Mapping[str, str], *, landlock_abi: int, notes: tuple[str, ...]) -> Layers:
    """Put what was seen into the words of a result."""
    own = tuple(kind for kind in observe.NAMESPACES if sight.seen.namespaces[kind] != host[kind])
    shared = () if "user" in own else (NO_USER_NAMESPACE,)
    kind = "v1" if _MEMORY_V1.search(sight.membership) else "v2" if _UNIFIED.search(sight.membership) else "none"
    return Layers(
        namespaces=own,
        capabilities_empty=True,
        no_new_privs=True,
        seccomp_filters=int(sight.seen.status.get("Seccomp_filters", 1)),
        landlock_abi=landlock_abi,
        cgroup=kind,
        host_uid=int(sight.seen.status["Uid"].split("\t")[0]),
        memory_limit="cgroup" if kind != "none" else "none",
        notes=(*shared, *notes),
    )


def open_process(container: Container) -> int | None:
    """Return a descriptor by which the container's first process can be killed; None where it is not ours to see."""
    if container.pid <= 0:
        return None
    try:
        fd = os.pidfd_open(container.pid)
    except OSError:
        return None
    # only now, with the process held, is it certain whose pid it is
    with contextlib.suppress(OSError):
        if container.id.encode() in observe.membership(container.pid):
            return fd
    os.close(fd)
    return None
