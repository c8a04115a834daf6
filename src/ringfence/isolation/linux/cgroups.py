"""Finds out, by doing it with a throwaway process, how this machine lets us hold a run to memory, pids and cpu."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import Future

from ringfence.capability.limits import Limits
from ringfence.errors import InternalError, IsolationUnavailable
from ringfence.isolation.linux.cgroup_contract import (
    WANTED,
    CgroupHost,
    CgroupReport,
    RunCgroup,
    Usage,
)
from ringfence.isolation.linux.cgroup_plan import Plan, V1Place, fix_for, plan
from ringfence.isolation.linux.cgroups_v1 import Hierarchy, V1Host
from ringfence.isolation.linux.cgroups_v2 import V2Host, prepare

__all__ = ["CgroupHost", "CgroupReport", "NoHost", "RunCgroup", "Usage", "detect", "look_around"]

PROBE_LIMITS = Limits()


class NoHost:
    """Stands where no cgroup can be had: it has the report and makes nothing."""

    def __init__(self, report: CgroupReport) -> None:
        """Keep why."""
        self.report = report

    def create(self, name: str, limits: Limits) -> RunCgroup:  # noqa: ARG002 - the signature of every host
        """Refuse: the caller asks `report.kind` first and states the weaker limit in the result."""
        raise IsolationUnavailable(f"no cgroup for {name}: {self.report.reason}", fix=self.report.fix)

    def sweep(self) -> tuple[str, ...]:
        """Return nothing: nothing was ever made here."""
        return ()

    def close(self) -> bool:
        """Return True: nothing is held."""
        return True


def detect() -> CgroupHost:
    """Return the best cgroup host of this machine, proved with a throwaway process.

    It leaves nothing behind, with one exception: alone in a v2 cgroup, our process moves to a leaf of it and stays.
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mountinfo = file.read()
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        self_cgroup = file.read()
    return choose(plan(mountinfo, self_cgroup))


def look_around() -> Future[CgroupHost]:
    """Begin to find it out, and to remove what dead owners left; it takes as long as a zygote does to start."""
    found: Future[CgroupHost] = Future()
    threading.Thread(target=_look, args=(found,), name="ringfence-cgroups", daemon=True).start()
    return found


def _look(found: Future[CgroupHost]) -> None:
    try:
        host = detect()
        host.sweep()
    except BaseException as error:  # noqa: BLE001  whoever waits for it gets it
        found.set_exception(error)
    else:
        found.set_result(host)


def choose(found: Plan) -> CgroupHost:
    """Probe what the plan names and take the interface that holds more of the wanted controllers, v2 on a tie."""
    root = os.geteuid() == 0
    fix = fix_for(found, root=root)
    refusals: list[str] = list(found.obstacles)
    v2 = probe_v2(found.v2, refusals, fix)
    if v2 is not None and v2.report.controllers == WANTED:
        return v2
    v1 = probe_v1(found.v1, refusals, fix)
    hosts: list[CgroupHost] = [host for host in (v2, v1) if host is not None]
    if not hosts:
        return NoHost(CgroupReport("none", frozenset(), "; ".join(refusals) or "no usable controller", fix))
    return max(hosts, key=lambda host: len(host.report.controllers))


def probe_v2(candidates: tuple[str, ...], refusals: list[str], fix: str) -> V2Host | None:
    """Try our own v2 cgroup, then those above it; the first that holds everything, or the one that holds most."""
    best: V2Host | None = None
    for number, parent in enumerate(candidates):
        try:
            controllers = prepare(parent, own=number == 0)
        except OSError as error:
            refusals.append(f"{parent}: {error.strerror}")
            continue
        if not controllers or (best is not None and controllers <= best.controllers):
            refusals.append(f"{parent}: gives its children no {', '.join(sorted(WANTED - controllers))}")
            continue
        host = V2Host(parent, controllers, v2_report(parent, controllers, fix, above=number > 0))
        failure = failed_probe(host)
        if failure is not None:
            refusals.append(f"{parent}: {failure}")
            continue
        best = host
        if controllers == WANTED:
            break
    return best


def probe_v1(places: tuple[V1Place, ...], refusals: list[str], fix: str) -> V1Host | None:
    """Try the v1 trees together; where that fails each alone, so that one does not take the others with it."""
    if not places:
        return None
    trees = tuple(Hierarchy(_v1_parent(place), place.controllers) for place in places)
    held = trees if failed_probe(v1_host(trees, fix)) is None else ()
    for tree in () if held else trees:
        failure = failed_probe(v1_host((tree,), fix))
        if failure is None:
            held += (tree,)
        else:
            refusals.append(f"{tree.parent}: {failure}")
    return v1_host(held, fix) if any(tree.controllers & WANTED for tree in held) else None


def _v1_parent(place: V1Place) -> str:
    prepared = f"{place.own}/ringfence"  # what an administrator makes and gives to an ordinary user
    return prepared if os.geteuid() != 0 and os.access(prepared, os.W_OK) else place.own


_GO_IN_AND_LOOK = (
    'for fd; do echo 0 >&"$fd" || exit 1; done; while IFS= read -r line; do echo "$line"; done </proc/self/cgroup'
)


def failed_probe(host: CgroupHost) -> str | None:
    """Make a cgroup, limit it, put a process in, read the counters, remove it; return what went wrong, if anything."""
    try:
        run = host.create("probe", PROBE_LIMITS)
        try:
            membership = seen_from_inside(run)
            if not run.holds(membership):
                return f"a process that went in is not in: {membership.decode('utf-8', 'replace')!r}"
            run.usage()
        finally:
            run.remove()
    except (OSError, InternalError) as error:
        return str(error)
    finally:
        closed = host.close()
    return None if closed else "the probe's cgroup could not be removed"


def seen_from_inside(run: RunCgroup) -> bytes:
    """Have a throwaway shell go in, and return what it then reads in its own /proc/self/cgroup."""
    reader, writer = os.pipe()
    entrances = run.entrances()
    try:
        inside = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((writer, *entrances), start=1)]
        numbers = [str(number) for _, _, number in inside[1:]]
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", _GO_IN_AND_LOOK, "sh", *numbers], {}, file_actions=inside)
    except BaseException:
        os.close(reader)
        raise
    finally:
        for fd in (writer, *entrances):
            os.close(fd)
    with open(reader, "rb") as output:
        seen = output.read()
    status = 0
    with contextlib.suppress(ChildProcessError):  # the application ignores SIGCHLD, or waits for everybody's children
        status = os.waitpid(pid, 0)[1]
    if status:
        raise OSError(
            f"a process cannot move itself in: {seen.decode('utf-8', 'replace').strip() or 'no reason given'}"
        )
    return seen


def v2_report(parent: str, controllers: frozenset[str], fix: str, *, above: bool) -> CgroupReport:
    """Say what holds on v2, and what it means when runs live beside our own cgroup instead of below it."""
    notes: tuple[str, ...] = ()
    if above:
        notes = (
            f"runs live below {parent}, outside our own cgroup: a limit set on our own cgroup does not cover them",
        )
    return CgroupReport("v2", controllers, describe(controllers), None if controllers == WANTED else fix, notes)


def v1_host(trees: tuple[Hierarchy, ...], fix: str) -> V1Host:
    """Return what makes cgroups in all of `trees`."""
    return V1Host(trees, v1_report(frozenset[str]().union(*(tree.controllers for tree in trees)), fix))


def v1_report(controllers: frozenset[str], fix: str) -> CgroupReport:
    """Say what holds on v1."""
    held = controllers & WANTED
    return CgroupReport("v1", held, describe(held), None if held == WANTED else fix)


def describe(controllers: frozenset[str]) -> str:
    """Name what holds and what does not."""
    missing = WANTED - controllers
    text = f"{', '.join(sorted(controllers))} proved with a throwaway process"
    return f"{text}; {', '.join(sorted(missing))} cannot be had" if missing else text
