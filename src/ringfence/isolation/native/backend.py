"""The native backend: starts sealed workers from zygotes and looks at each one before it may serve."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringfence.authority.profile import Isolation
from ringfence.capability.limits import Limits
from ringfence.errors import InternalError, IsolationUnavailable
from ringfence.isolation.native import channel, identity, observe
from ringfence.isolation.native.cgroup_contract import CgroupHost, RunCgroup
from ringfence.isolation.native.cgroups import detect
from ringfence.isolation.native.fork_server import ForkServer, ServerConfig
from ringfence.isolation.native.init import GUEST_ID
from ringfence.isolation.native.meter import Meter, memory_note
from ringfence.isolation.native.parked import ParkedWorker, Streams
from ringfence.isolation.protocol import Decoder, Kind
from ringfence.operation import Language
from ringfence.outcome import Layers, SandboxType
from ringfence.ports import WorkerSpec
from ringfence.workspaces.run_directory import RunDirectory
from ringfence.workspaces.session import SessionWorkspace

_BUILD_SECONDS = 20.0
_RECYCLE_AFTER_SPAWNS = 1000
_RECYCLE_AFTER_SECONDS = 900.0
_FILTERS_PER_WORKER = 2
_REMOVE_TRIES = 50


@dataclass(slots=True)
class _Generation:
    """One zygote and how much it has been used; recycled so that siblings do not share a layout forever."""

    server: ForkServer
    born: float
    spawned: int = 0
    alive: int = 0
    retired: bool = False


@dataclass(slots=True)
class _HostEnds:
    """The host's descriptors of a worker that is being built; freed together when it fails."""

    status: socket.socket
    job: socket.socket
    streams: Streams
    fds: list[int] = field(default_factory=list)
    cgroup: RunCgroup | None = None

    def free(self) -> None:
        self.status.close()
        self.job.close()
        self.streams.close()
        for fd in self.fds:
            os.close(fd)


class NativeBackend:
    """Implements `ports.Backend` with namespaces, Landlock, seccomp and cgroups of this kernel."""

    name = Isolation.NATIVE.value

    def __init__(
        self,
        configure: Callable[[WorkerSpec], ServerConfig],
        session: Callable[[str], SessionWorkspace],
        node_command: Callable[[], list[str]],
        *,
        limits: Limits,
    ) -> None:
        """Nothing starts before the first worker is asked for."""
        self._configure = configure
        self._session = session
        self._node_command = node_command
        self._limits = limits
        self._lock = threading.Lock()
        self._generations: dict[tuple[Any, ...], _Generation] = {}
        self._retired: list[_Generation] = []
        self._buried_later: list[Meter] = []
        self._counter = itertools.count()
        self._cgroups: CgroupHost | None = None
        self._host_namespaces = observe.own_namespaces()

    def start(self, spec: WorkerSpec) -> ParkedWorker:
        """Build, seal and observe one worker."""
        generation = self._take_generation(spec)
        try:
            return self._start(spec, generation)
        except BaseException:
            self._give_back(generation)
            raise

    def _start(self, spec: WorkerSpec, generation: _Generation) -> ParkedWorker:
        sandbox_id = f"rf-{secrets.token_hex(6)}"
        offset = self._offset(spec, generation.server)
        cgroups = self._cgroup_host()
        session = self._session(spec.session_id) if spec.session_id is not None else None
        ends = _HostEnds(*self._spawn(spec, sandbox_id, offset, session, generation.server))
        meter = Meter(-1, None, frozenset())
        try:
            meter = self._admit(ends, sandbox_id, cgroups)
            worker_pid = _await_ready(ends.job, ends.status)
            layers = self._observe(worker_pid, generation.server, cgroups)
            meter.park()
        except BaseException:
            ends.free()
            self._bury(meter)
            raise
        owner = self._owner(generation.server, offset)
        return ParkedWorker(
            sandbox_id=sandbox_id,
            backend=self.name,
            sandbox_type=SandboxType.NATIVE,
            spec=spec,
            layers=layers,
            init_pid=meter.init_pid,
            worker_pid=worker_pid,
            pidfd=ends.fds[0],
            status=ends.status,
            job=ends.job,
            streams=ends.streams,
            directory=RunDirectory(ends.fds[1], owner, session),
            meter=meter,
            on_discard=lambda: (self._bury(meter), self._give_back(generation)) and None,
            notes=memory_note(cgroups.report.controllers, self._limits),
        )

    def _spawn(
        self, spec: WorkerSpec, sandbox_id: str, offset: int, session: SessionWorkspace | None, server: ForkServer
    ) -> tuple[socket.socket, socket.socket, Streams, list[int]]:
        status, status_inside = channel.pair()
        job, job_inside = socket.socketpair()
        # the kernel then attaches the sender's pid, as this process sees it, to what the worker says
        job.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        (stdin_inside, stdin), (stdout, stdout_inside), (stderr, stderr_inside) = os.pipe(), os.pipe(), os.pipe()
        os.set_blocking(stdout, False)
        os.set_blocking(stderr, False)
        inside = [stdin_inside, stdout_inside, stderr_inside]
        message = {
            "id": sandbox_id,
            "hostname": sandbox_id,
            "uid": offset,
            "disk_bytes": spec.disk_bytes,
            "inodes": spec.inodes,
            "open_files": spec.open_files,
            "file_bytes": spec.file_bytes,
            "pids": spec.pids,
            "exec": None if spec.runtime is Language.PYTHON else self._node_command(),
        }
        streams = Streams(stdin, stdout, stderr)
        try:
            if session is not None:
                inside.append(server.open_work_directory(session.work_path))
            fds = server.spawn(message, (status_inside.fileno(), job_inside.fileno(), *inside))
        except BaseException:
            _HostEnds(status, job, streams).free()
            raise
        finally:
            status_inside.close()
            job_inside.close()
            for fd in inside:
                os.close(fd)
        for end in (status, job):
            end.settimeout(_BUILD_SECONDS)
        return status, job, streams, fds

    def _admit(self, ends: _HostEnds, sandbox_id: str, cgroups: CgroupHost) -> Meter:
        """Put the init into its cgroup while it is alone in its box, then let it fork the worker."""
        init_pid = _pid_of(ends.fds[0])
        cgroup = cgroups.create(sandbox_id, self._limits) if cgroups.report.kind != "none" else None
        meter = Meter(init_pid, cgroup, cgroups.report.controllers)
        try:
            if cgroup is not None:
                cgroup.attach(init_pid)
            ends.status.send(b"g")
        except BaseException:
            self._bury(meter)
            raise
        return meter

    def _observe(self, worker_pid: int, server: ForkServer, cgroups: CgroupHost) -> Layers:
        seen = observe.look(worker_pid)
        observe.require_sealed(seen, self._host_namespaces, filters=_FILTERS_PER_WORKER)
        controllers = cgroups.report.controllers
        return Layers(
            namespaces=observe.NAMESPACES,
            capabilities_empty=True,
            no_new_privs=True,
            seccomp_filters=int(seen.status.get("Seccomp_filters", _FILTERS_PER_WORKER)),
            landlock_abi=server.landlock_abi,
            cgroup=cgroups.report.kind,
            host_uid=int(seen.status["Uid"].split("\t")[0]),
            memory_limit="cgroup" if "memory" in controllers else "sampled",
            notes=tuple(f"no {missing} cgroup: {cgroups.report.reason}" for missing in cgroups.report.missing),
        )

    def _offset(self, spec: WorkerSpec, server: ForkServer) -> int:
        if server.base_id is None:
            return GUEST_ID
        if spec.session_id is not None:
            return identity.session_offset(spec.session_id)
        return identity.run_offset(next(self._counter))

    def _owner(self, server: ForkServer, offset: int) -> tuple[int, int] | None:
        if server.base_id is None:
            return None
        return server.base_id + offset, server.base_id + offset

    def _cgroup_host(self) -> CgroupHost:
        with self._lock:
            if self._cgroups is None:
                self._cgroups = detect()
                self._cgroups.sweep()
            return self._cgroups

    def _take_generation(self, spec: WorkerSpec) -> _Generation:
        key = (spec.packages, spec.preload)
        with self._lock:
            current = self._generations.get(key)
            if current is not None and not _worn(current):
                current.spawned += 1
                current.alive += 1
                return current
        # started outside the lock: others go on with the old one meanwhile
        fresh = _Generation(ForkServer(self._configure(spec)), time.monotonic(), spawned=1, alive=1)
        with self._lock:
            replaced = self._generations.get(key)
            self._generations[key] = fresh
            if replaced is not None:
                replaced.retired = True
                self._retired.append(replaced)
        self._close_unused()
        return fresh

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

    def _bury(self, meter: Meter) -> None:
        """Remove a run's cgroup, and with it any that were still busy before."""
        with self._lock:
            pending, self._buried_later = [*self._buried_later, meter], []
        still_busy = [each for each in pending if not each.bury()]
        if still_busy:
            with self._lock:
                self._buried_later += still_busy

    def close(self) -> None:
        """End every zygote, and with it every run that is left."""
        with self._lock:
            servers = [*self._generations.values(), *self._retired]
            self._generations.clear()
            self._retired.clear()
        for generation in servers:
            generation.server.close()
        for _ in range(_REMOVE_TRIES):
            with self._lock:
                self._buried_later = [meter for meter in self._buried_later if not meter.bury()]
                if not self._buried_later:
                    break
            time.sleep(0.01)  # the kernel is still burying the last members
        if self._cgroups is not None:
            self._cgroups.close()


def _worn(generation: _Generation) -> bool:
    age = time.monotonic() - generation.born
    return generation.spawned >= _RECYCLE_AFTER_SPAWNS or age > _RECYCLE_AFTER_SECONDS


def _pid_of(pidfd: int) -> int:
    """Return the pid, as this process sees it, of what the kernel says the descriptor stands for."""
    text = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    found = re.search(r"^Pid:\s+(\d+)$", text, re.MULTILINE)
    if found is None:
        raise InternalError("the init of the box died at once")
    return int(found[1])


def _await_ready(job: socket.socket, status: socket.socket) -> int:
    """Wait until the worker is parked and return its pid, as the kernel attached it to the message."""
    decoder = Decoder(limit=64)
    credentials = struct.Struct("3i")
    while True:
        try:
            data, ancillary, _, _ = job.recvmsg(64, socket.CMSG_SPACE(credentials.size))
        except TimeoutError:
            raise InternalError("the worker did not become ready in time") from None
        if not data:
            raise IsolationUnavailable(f"the worker ended before it was ready: {_failure(status)}")
        pid = next((credentials.unpack(payload)[0] for _, kind, payload in ancillary if kind == socket.SCM_CREDENTIALS), 0)
        if (Kind.READY, b"") in decoder.feed(data) and pid:
            return int(pid)


def _failure(status: socket.socket) -> str:
    with contextlib.suppress(OSError):
        return status.recv(4096)[5:].decode("utf-8", "replace")
    return "no reason given"
