"""Where run cgroups could be made, decided from the text of /proc/self/mountinfo and /proc/self/cgroup alone."""

from __future__ import annotations

import posixpath
import re
from typing import Final

from ringfence.dataclass import dataclass
from ringfence.isolation.linux.cgroup_contract import WANTED

V1_USED: Final = WANTED | {"cpuacct"}
HOST_LEAF: Final = "ringfence-host"
"""Where our own process goes when it must leave an inner v2 cgroup; never killed by a sweep."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One cgroup file system as this process sees it."""

    point: str
    root: str
    controllers: frozenset[str]
    unified: bool
    read_only: bool


@dataclass(frozen=True, slots=True)
class V1Place:
    """Our own cgroup in one v1 hierarchy; runs go below it, so that its limits keep holding."""

    own: str
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to try, best first, and what can be ruled out by reading alone."""

    v1: tuple[V1Place, ...]
    v2: tuple[str, ...]
    obstacles: tuple[str, ...]


def plan(mountinfo: str, self_cgroup: str) -> Plan:
    """Decide which directories are worth a probe."""
    mounts = parse_mounts(mountinfo)
    v1_own, v2_own = parse_membership(self_cgroup)
    obstacles: list[str] = []
    if not mounts:
        obstacles.append("no cgroup file system is mounted")
    places: list[V1Place] = []
    for mount in mounts:
        used = mount.controllers & V1_USED
        if mount.unified or not used:
            continue
        own = locate(mount, next((v1_own[name] for name in sorted(used) if name in v1_own), None))
        if own is None:
            obstacles.append(f"our own cgroup is not visible below {mount.point}")
        elif mount.read_only:
            obstacles.append(f"{mount.point} is mounted read-only")
        elif not any(place.controllers & used for place in places):
            places.append(V1Place(own, used))
    v2: tuple[str, ...] = ()
    for mount in mounts:
        if not mount.unified or v2:
            continue
        own = locate(mount, v2_own)
        if own is None:
            obstacles.append(f"our own cgroup is not visible below {mount.point}")
        elif mount.read_only:
            obstacles.append(f"{mount.point} is mounted read-only")
        else:
            v2 = ancestors(mount.point, own)
    return Plan(tuple(places), v2, tuple(obstacles))


def parse_mounts(mountinfo: str) -> tuple[Mount, ...]:
    """Return the cgroup mounts; a mount hidden under a later one at the same point is left out."""
    found: dict[str, Mount] = {}
    for line in mountinfo.splitlines():
        left, dash, right = line.partition(" - ")
        head, tail = left.split(" "), right.split(" ")
        if not dash or len(head) < 6 or len(tail) < 3:
            continue
        point = unescape(head[4])
        found.pop(point, None)
        if tail[0] not in ("cgroup", "cgroup2"):
            continue
        options = frozenset(tail[2].split(","))
        found[point] = Mount(
            point=point,
            root=unescape(head[3]),
            controllers=options if tail[0] == "cgroup" else frozenset(),
            unified=tail[0] == "cgroup2",
            read_only="ro" in head[5].split(",") or "ro" in options,
        )
    return tuple(found.values())


def parse_membership(self_cgroup: str) -> tuple[dict[str, str], str | None]:
    """Return our path per v1 controller and our path in the v2 tree."""
    v1: dict[str, str] = {}
    v2: str | None = None
    for line in self_cgroup.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            v2 = path
        else:
            v1.update(dict.fromkeys(controllers.split(","), path))
    return v1, v2


def locate(mount: Mount, own: str | None) -> str | None:
    """Return our own cgroup's directory under a mount, or None when the mount shows another part of the tree."""
    if own is None or "/.." in own or "/.." in mount.root:
        return None
    relative = posixpath.relpath(own, mount.root)
    if relative == ".":
        return mount.point
    return None if relative.startswith("..") else posixpath.join(mount.point, relative)


def ancestors(top: str, own: str) -> tuple[str, ...]:
    """Return our own cgroup and every one above it up to the mount point, nearest first.

    A process started from a host leaf belongs to the cgroup above it, which already has what we would ask for.
    """
    chain = [own]
    while chain[-1] != top:
        chain.append(posixpath.dirname(chain[-1]))
    return tuple(chain[1:] if posixpath.basename(own) == HOST_LEAF else chain)


def enabling(present: frozenset[str], enabled: frozenset[str], *, own: bool) -> frozenset[str]:
    """Return the controllers we may switch on for children.

    Only in our own cgroup: in an ancestor it would change how strangers' cgroups share the machine.
    """
    return (present - enabled) & WANTED if own else frozenset()


def may_leave(members: tuple[int, ...], own_pid: int) -> bool:
    """Whether our process may move to a leaf so that its cgroup can have children with controllers.

    Only when it is the sole member: a pid of 0 is a process of a foreign pid namespace, and strangers are never moved.
    """
    return members == (own_pid,)


def fix_for(plan_: Plan, *, root: bool) -> str:
    """Return the exact commands that would give this process cgroups of its own."""
    read_only = any(text.endswith("read-only") for text in plan_.obstacles)
    if read_only:
        return (
            "this is a container with a read-only cgroup tree: start it with "
            "`--cgroupns private --security-opt writable-cgroups=true` (Docker 28+, rootful) "
            "and with this program as its only process"
        )
    if plan_.v2:
        if root:
            return "run it as a service with `Delegate=yes`, or: systemd-run --scope -p Delegate=yes ringfence ..."
        return "systemd-run --user --scope -p Delegate=yes ringfence ..."
    if plan_.v1:
        made = " ".join(posixpath.join(place.own, "ringfence") for place in plan_.v1)
        return f"as root: mkdir -p {made} && chown -R $USER {made}"
    return "mount a cgroup tree, as root: mount -t cgroup2 none /sys/fs/cgroup"


def unescape(field: str) -> str:
    """Undo the octal escapes mountinfo uses for blanks, tabs, newlines and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
