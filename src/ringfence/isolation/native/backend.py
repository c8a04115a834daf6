"""The native backend: boxes from zygotes, with nothing between us and the kernel."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfence.authority.profile import Isolation
from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass
from ringfence.isolation.linux.outfit import Outfit, outfit_in
from ringfence.isolation.linux.parked import ParkedWorker
from ringfence.isolation.linux.view import GUEST_ID
from ringfence.isolation.linux.workshop import Box, HostEnds, Place, Workshop, open_ends, pid_of
from ringfence.isolation.native import identity
from ringfence.isolation.native.fork_server import ForkServer
from ringfence.operation import Language
from ringfence.outcome import SandboxType
from ringfence.ports import WorkerSpec
from ringfence.runtimes.node import NodeCommand, node_command
from ringfence.runtimes.python import PYTHON
from ringfence.workspaces.run_directory import RunDirectory, session_in

if TYPE_CHECKING:
    from ringfence.isolation.native.ahead import Ahead
    from ringfence.workspaces.session import SessionWorkspace


@dataclass(frozen=True, slots=True)
class Recycling:
    """When a zygote has served enough, so that siblings do not share a memory layout forever."""

    after_spawns: int = 1000
    after_seconds: float = 900.0


@dataclass(slots=True)
class _Generation:
    """One zygote and how much it has been used."""

    server: ForkServer
    born: float
    spawned: int = 0
    alive: int = 0


class NativeBackend:
    """Implements `ports.Backend` with namespaces, Landlock, seccomp and cgroups of this kernel."""

    name = Isolation.NATIVE.value
    fixes_limits = False
    shares_memory = True

    def __init__(
        self,
        outfit: Callable[[WorkerSpec, bool], Outfit],
        session: Callable[[str, str], SessionWorkspace],
        node_command: Callable[[Language], NodeCommand],
        *,
        limits: Limits,
        recycling: Recycling = Recycling(),  # noqa: B008  frozen
        ahead: Ahead | None = None,
    ) -> None:
        """Nothing starts before the first worker is asked for, unless it was started `ahead`."""
        self._outfit = outfit
        self._session = session
        self._node_command = node_command
        self._workshop = Workshop(limits, ahead.cgroups if ahead is not None else None)
        self._ahead = ahead
        self._recycling = recycling
        self._lock = threading.Lock()
        self._generations: dict[tuple[Any, ...], _Generation] = {}
        self._retired: list[_Generation] = []
        self._starting: dict[tuple[Any, ...], threading.Lock] = {}
        self._begun: tuple[WorkerSpec, Future[ParkedWorker]] | None = None
        # not from 0: the ids of another engine's runs on this machine start there too
        self._counter = itertools.count(int.from_bytes(os.urandom(8)) % identity.RANGE)

    def begin(self, spec: WorkerSpec) -> None:
        """Start a worker in a thread; the first who asks for one of `spec` gets it, or what went wrong."""
        coming: Future[ParkedWorker] = Future()
        self._begun = spec, coming

        def start() -> None:
            try:
                coming.set_result(self._start(spec))
            except BaseException as error:  # noqa: BLE001  whoever waits for it gets it
                coming.set_exception(error)

        threading.Thread(target=start, name="ringfence-begun", daemon=True).start()

    def start(self, spec: WorkerSpec) -> ParkedWorker:
        """Build, seal and observe one worker, or wait for the one that was begun."""
        with self._lock:
            if self._begun is None or self._begun[0] != spec:
                begun = None
            else:
                (_, begun), self._begun = self._begun, None
        return self._start(spec) if begun is None else begun.result()

    def _start(self, spec: WorkerSpec) -> ParkedWorker:
        node = None if spec.runtime is Language.PYTHON else self._node_command(spec.runtime)
        generation = self._take_generation(spec)
        try:
            place = self._workshop.reserve(f"rf-{os.urandom(6).hex()}")
            try:
                box = self._build(spec, node, generation.server, place)
            except BaseException:
                self._workshop.give_up(place)
                raise
            place.shut()
            return self._workshop.park(box, on_discard=lambda: self._give_back(generation))
        except BaseException:
            self._give_back(generation)
            raise

    def _build(self, spec: WorkerSpec, node: NodeCommand | None, server: ForkServer, place: Place) -> Box:
        session = self._session(spec.session_id, spec.tenant) if spec.session_id is not None else None
        argv = None if node is None else node.argv
        try:
            offset = self._offset(session, server)
            message = server.request(
                place.sandbox_id, spec, offset, argv=argv, entrances=len(place.entrances), layered=session is not None
            )
            parked_over = session.generation() if session is not None else 0
            ends, init = _spawn(server, message, place.entrances, session)
        except BaseException:
            if session is not None:
                session.close()
            raise
        directory = RunDirectory(server.owner(offset), session, parked_over)
        try:
            init_pid = pid_of(init)
        except BaseException:  # the box died at once, with its zygote for example
            ends.close()
            os.close(init)
            directory.close()
            raise
        return Box(
            backend=self.name,
            sandbox_type=SandboxType.NATIVE,
            spec=spec,
            ends=ends,
            place=place,
            init_pid=init_pid,
            pidfd=init,
            directory=directory,
            landlock_abi=server.landlock_abi,
            notes=server.notes,
            runtime=PYTHON if node is None else node.runtime,
        )

    def _offset(self, session: SessionWorkspace | None, server: ForkServer) -> int:
        if server.base_id is None:
            return GUEST_ID
        if session is not None and session.owner is not None:
            return identity.session_offset(session.owner[0])
        return identity.run_offset(next(self._counter))

    def _take_generation(self, spec: WorkerSpec) -> _Generation:
        key = (spec.packages, spec.preload)
        with self._lock:
            starting = self._starting.setdefault(key, threading.Lock())
        with starting:  # whoever comes while a zygote is started waits for that one
            with self._lock:
                current = self._generations.get(key)
                if current is not None and not self._worn(current):
                    current.spawned += 1
                    current.alive += 1
                    return current
            fresh = _Generation(self._new_server(spec), time.monotonic(), spawned=1, alive=1)
            with self._lock:
                replaced = self._generations.get(key)
                self._generations[key] = fresh
                if replaced is not None:
                    self._retired.append(replaced)
        self._close_unused()
        return fresh

    def _new_server(self, spec: WorkerSpec) -> ForkServer:
        with self._lock:
            usable = self._ahead is not None and (spec.packages, spec.preload) == (None, ())
            ahead, self._ahead = (self._ahead, None) if usable else (None, self._ahead)
        if ahead is not None:
            return ahead.server.result()
        return ForkServer(self._outfit(spec, self._workshop.counts_memory()))

    def _worn(self, generation: _Generation) -> bool:
        age = time.monotonic() - generation.born
        used_up = generation.spawned >= self._recycling.after_spawns or age > self._recycling.after_seconds
        return used_up or generation.server.broken

    def _give_back(self, generation: _Generation) -> None:
        with self._lock:
            generation.alive -= 1
        self._close_unused()

    def _close_unused(self) -> None:
        with self._lock:
            unused = [generation for generation in self._retired if generation.alive == 0]
            self._retired = [generation for generation in self._retired if generation.alive]
        for generation in unused:
            generation.server.close()

    def tidy(self) -> bool:
        """Remove what is left of runs that are over, and end zygotes that have served enough."""
        with self._lock:
            # also of kinds that nobody asks for again: whoever did would have found them worn
            worn = [key for key, generation in self._generations.items() if self._worn(generation)]
            self._retired += map(self._generations.pop, worn)
            for key in worn:
                self._starting.pop(key, None)
        self._close_unused()
        return self._workshop.tidy()

    def close(self) -> None:
        """End every zygote, and with it every run that is left."""
        with self._lock:
            begun, self._begun = self._begun, None
        if begun is not None and begun[1].exception() is None:  # waits until it is there
            begun[1].result().discard()
        with self._lock:
            servers = [*self._generations.values(), *self._retired]
            self._generations.clear()
            self._retired.clear()
            ahead, self._ahead = self._ahead, None
        for generation in servers:
            generation.server.close()
        if ahead is not None and ahead.server.exception() is None:
            ahead.server.result().close()
        self._workshop.close()


def backend_in(home: Path, files_home: Path, limits: Limits, ahead: Ahead | None = None) -> NativeBackend:
    """Return the backend of a home, over sessions whose files are in `files_home`."""
    return NativeBackend(
        partial(outfit_in, home),
        partial(session_in, files_home),
        partial(node_command, cache=home / "node.json"),
        limits=limits,
        ahead=ahead,
    )


def _spawn(
    server: ForkServer, message: dict[str, Any], entrances: tuple[int, ...], session: SessionWorkspace | None
) -> tuple[HostEnds, int]:
    """Have the zygote start a box that holds the inside ends; return ours and a pidfd of its init."""
    host, inside = open_ends()
    lower: list[int] = []
    try:
        if session is not None:
            lower.append(server.open_work_directory(session.work_fd))
        streams = (inside.stdin, inside.stdout, inside.stderr)
        init = server.spawn(message, (inside.status.fileno(), inside.job.fileno(), *streams, *lower, *entrances))
    except BaseException:
        host.close()
        raise
    finally:
        inside.close()
        for fd in lower:
            os.close(fd)
    return host, init
