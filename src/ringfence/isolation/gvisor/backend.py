"""The gVisor backend: every box a kernel of its own, driven through `runsc` without any engine."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ringfence.authority.profile import Isolation
from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass, replace
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.gvisor import observing, runsc
from ringfence.isolation.gvisor.bundle import (
    ROOTFS,
    RUNSC,
    SHOWN,
    WRITABLE,
    Plan,
    command_of,
    config_of,
    host_memory,
    host_tasks,
    mount_points_of,
    mounts_of,
)
from ringfence.isolation.gvisor.inputs import Inputs
from ringfence.isolation.gvisor.launching import Launcher
from ringfence.isolation.gvisor.rootfs import Rootfs, hold
from ringfence.isolation.linux import observe, streams
from ringfence.isolation.linux.cgroup_contract import CgroupReport
from ringfence.isolation.linux.meter import Meter, RunUsage
from ringfence.isolation.linux.workshop import Place, Workshop, pid_of
from ringfence.isolation.stream.boot import COMMAND
from ringfence.isolation.stream.line import Line
from ringfence.isolation.stream.parking import Hello, park
from ringfence.outcome import Container, Layers, SandboxType
from ringfence.ports import WorkerSpec
from ringfence.runtimes.places import BOX_PACKAGES

if TYPE_CHECKING:
    from ringfence.isolation.stream.host import StreamWorker
    from ringfence.workspaces.session import SessionWorkspace

_INPUTS: Final = "/inputs"
_NEEDED: Final = frozenset({"memory", "pids"})

DOES_NOT_KEEP: Final[Mapping[str, str]] = MappingProxyType(
    {
        "G1 bare view": "the image's own /etc, /root and /dev are seen, and /proc and /sys as gVisor makes them up",
        "G4 shut init": "/proc/1 tells a guest the environment, maps and descriptors of its worker's init, and /proc "
        "numbers the anchor of its memory; the memory of either and the stream to the host cannot be opened, and "
        "neither can be signalled",
        "G6 Linux's own interface": "what a guest meets is gVisor's kernel: it lacks calls and files of Linux, gives "
        "every guest terminals and devices of its own and lets it set what counts inside alone",
        "G7 inherited limits": "limits of the application are those of gVisor, not of the guest in it; where they are "
        "too low for gVisor no box starts",
        "G12 guests are processes of this machine": "the host sees gVisor's kernel, which holds two capabilities in a "
        "user namespace of its own and one filter, and asks it, not Linux, what lives inside",
    }
)
"""What of the guarantees a gVisor box does not keep, by guarantee and promise, and why; docs/limitations has it too."""


@dataclass(frozen=True, slots=True)
class _Box:
    """A started `runsc`: by whose death everything in the box dies."""

    pidfd: int
    meter: Meter

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def died_of(self) -> str | None:
        return "memory" if self.meter.ran_out_of_memory() else None

    def usage(self) -> RunUsage:
        used = self.meter.finish()
        return RunUsage(used.cpu_ms, used.memory_peak_bytes, None)  # the host's tasks are not the guest's


class GvisorBackend:
    """Implements `ports.Backend` with gVisor's kernel between the guest and this one."""

    name = Isolation.GVISOR.value
    fixes_limits = True
    shares_memory = False
    does_not_keep = DOES_NOT_KEEP

    def __init__(
        self,
        *,
        home: Path,
        rootfs: Callable[[], Rootfs],
        session: Callable[[str, str], SessionWorkspace],
        limits: Limits,
        shown: Callable[[], tuple[tuple[str, str], ...]] = tuple,
        program: str | None = None,
    ) -> None:
        """Start nothing before the first worker is asked for; `program` is a `runsc` other than the machine's."""
        self._home = home
        self._rootfs = rootfs
        self._session = session
        self._limits = limits
        self._shown = shown
        self._program = program
        self._workshop = Workshop(limits)
        self._lock = threading.Lock()
        self._inputs: Inputs | None = None
        self._launchers: dict[tuple[Path, tuple[tuple[str, str], ...]], Launcher] = {}
        self._held: dict[Path, int] = {}
        """The images that boxes were made from, and what keeps each of them there."""
        self._host_namespaces = observe.own_namespaces()

    def start(self, spec: WorkerSpec) -> StreamWorker:
        """Start, seal and observe one box."""
        program = runsc.find(self._program)
        self._require_cgroups(self._workshop.look_around().result().report)
        shown = self._shown()
        if spec.packages is not None:
            shown += ((spec.packages, str(BOX_PACKAGES)),)
        image = self._rootfs()
        launcher, inputs = self._place(program, image, shown)
        plan = Plan(
            name=f"rf-{secrets.token_hex(6)}",
            spec=spec,
            memory_bytes=spec.memory_bytes or self._limits.memory_bytes,
            cpus=spec.cpus or self._limits.cpus,
            program=COMMAND,
            owns_ids=launcher.owns_ids,
            shown=shown,
        )
        limits = replace(
            self._limits,
            memory_bytes=host_memory(plan.memory_bytes),
            pids=host_tasks(spec.pids),
            cpus=plan.cpus,
        )
        place = self._workshop.reserve(plan.name, limits)
        session: SessionWorkspace | None = None
        try:
            if spec.session_id is not None:
                session = self._session(spec.session_id, spec.tenant)
            path = inputs.make(plan.name)
            command = command_of(plan, program)
            box, ends = self._launch(launcher, plan, command, place)
        except BaseException:
            inputs.remove(plan.name)
            self._workshop.give_up(place)
            if session is not None:
                session.close()
            raise

        def give_back() -> None:
            box.kill()
            os.close(box.pidfd)
            inputs.remove(plan.name)
            self._workshop.give_up(place)

        def look(hello: Hello) -> Layers:
            made_from = Container(image.name, image.digest, command, mounts_of(plan))
            return replace(self._observe(hello, box, plan, place), container=made_from)

        try:
            worker = park(
                Line(*ends, kill=box.kill, died_of=box.died_of, usage=box.usage),
                spec,
                sandbox_id=plan.name,
                backend=self.name,
                sandbox_type=SandboxType.GVISOR,
                limits=self._limits,
                inputs=path,
                session=session,
                observe=look,
                on_discard=give_back,
                guest_id=plan.guest_id if plan.owns_ids else None,
            )
        except BaseException:
            give_back()
            raise
        try:
            box.meter.park()
            worker.init_pid = pid_of(box.pidfd)
            worker.worker_pid = observing.part_of(worker.init_pid, observing.SENTRY)
        except BaseException:  # it died at once
            worker.discard()
            raise
        return worker

    def _require_cgroups(self, report: CgroupReport) -> None:
        if not report.controllers >= _NEEDED:
            missing = " and ".join(sorted(_NEEDED - report.controllers))
            raise IsolationUnavailable(
                f"gVisor turns each process of a guest into several of this machine's, and no cgroup holds {missing}: "
                f"{report.reason}",
                fix=report.fix,
            )

    def _place(
        self, program: runsc.Runsc, image: Rootfs, shown: tuple[tuple[str, str], ...]
    ) -> tuple[Launcher, Inputs]:
        """Return the launcher whose root shows what is to be shown, and where inputs are put for its boxes."""
        with self._lock:
            if self._inputs is None:
                self._inputs = Inputs(self._home)
            if image.path not in self._held:
                self._held[image.path] = hold(image)
            wanted = image.path, shown  # by the image too: after another was built, boxes are made from that
            launcher = self._launchers.get(wanted)
            if launcher is not None and launcher.is_gone:
                launcher.close()
                launcher = None
            if launcher is None:
                trees = [(program.path, RUNSC), (str(image.path), ROOTFS), (str(self._inputs.path), _INPUTS)]
                trees += [(source, f"{SHOWN}/{number}") for number, (source, _) in enumerate(shown)]
                launcher = self._launchers[wanted] = Launcher(trees, mount_points_of(shown))
            return launcher, self._inputs

    def _launch(
        self, launcher: Launcher, plan: Plan, command: tuple[str, ...], place: Place
    ) -> tuple[_Box, tuple[int, int, int]]:
        """Start a box at the end of three sockets: unlike a pipe, nobody inside can open one again through `/proc`."""
        with contextlib.ExitStack() as inner, contextlib.ExitStack() as ours:
            pairs = [streams.pair() for _ in range(3)]
            for outer, within in pairs:
                ours.enter_context(outer)
                inner.enter_context(within)
            wanted = {
                "id": plan.name,
                "command": command,
                "config": config_of(plan),
                "guest_id": plan.guest_id,
                "disk_bytes": plan.spec.disk_bytes,
                "inodes": plan.spec.inodes,
                "directories": sorted({name for name, _ in WRITABLE}),
            }
            pidfd = launcher.start(wanted, (*(within.fileno() for _, within in pairs), *place.entrances))
            place.shut()
            stdin, stdout, stderr = (outer.detach() for outer, _ in pairs)
        controllers = self._workshop.look_around().result().report.controllers
        return _Box(pidfd, Meter((), place.cgroup, controllers)), (stdin, stdout, stderr)

    def _observe(self, hello: Hello, box: _Box, plan: Plan, place: Place) -> Layers:
        pid = pid_of(box.pidfd)
        for role in (observing.SENTRY, observing.GOFER):
            membership = observe.membership(observing.part_of(pid, role))
            if place.cgroup is None or not place.cgroup.holds(membership):
                raise IsolationUnavailable("gVisor is not in the cgroup of its box; nothing ran in it")
        ours = ".".join(map(str, sys.version_info[:2]))
        if plan.spec.packages is not None and not hello.python.startswith(f"{ours}."):
            raise IsolationUnavailable(
                f"packages are installed for Python {ours}, and the image has {hello.python}",
                fix=f"use an image with Python {ours}, or put the packages into the image",
            )
        kind = self._workshop.look_around().result().report.kind
        return observing.layers_of(pid, hello, self._host_namespaces, cgroup=kind, owns_ids=plan.owns_ids)

    def tidy(self) -> bool:
        """Remove what is left of runs that are over."""
        return self._workshop.tidy()

    def close(self) -> None:
        """End every box that is left, and remove what they had."""
        with self._lock:
            launchers, self._launchers = list(self._launchers.values()), {}
            inputs, self._inputs = self._inputs, None
            held, self._held = list(self._held.values()), {}
        for launcher in launchers:
            launcher.close()
        for fd in held:
            os.close(fd)
        self._workshop.close()
        if inputs is not None:
            inputs.close()
