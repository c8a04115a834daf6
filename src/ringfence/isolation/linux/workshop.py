"""Turns a box that is being built into a parked worker: admitted to its cgroup, ready, and observed from outside."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass
from ringfence.errors import InternalError, IsolationUnavailable
from ringfence.isolation.ends import Streams
from ringfence.isolation.linux import cgroups, observe, streams
from ringfence.isolation.linux.anchor import Anchor, wait_until_at_rest
from ringfence.isolation.linux.cgroup_contract import CgroupHost, RunCgroup
from ringfence.isolation.linux.meter import Meter, memory_note, own_process_on_top
from ringfence.isolation.linux.parked import ParkedWorker, watch_ends
from ringfence.isolation.protocol import Decoder, Kind
from ringfence.outcome import Layers, SandboxType
from ringfence.ports import WorkerSpec
from ringfence.workspaces.run_directory import RunDirectory

_BUILD_SECONDS = 20.0
_FILTERS_PER_WORKER = 2
_LAST_BURIALS = 500
_CREDENTIALS = struct.Struct("3i")
_DESCRIPTOR = struct.Struct("i")
_ANCILLARY = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(3 * _DESCRIPTOR.size)
# plain numbers: the library's flags are combined by code of its own
_CLOEXEC, _CUT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)


@dataclass(slots=True)
class HostEnds:
    """The host's ends of everything that crosses into one box."""

    status: socket.socket
    job: socket.socket
    streams: Streams

    def close(self) -> None:
        """Close them; whatever waits on the other side ends."""
        self.status.close()
        self.job.close()
        self.streams.close()


@dataclass(slots=True)
class InsideEnds:
    """The box's ends, to be handed over and then closed here."""

    status: socket.socket
    job: socket.socket
    stdin: int
    stdout: int
    stderr: int

    def close(self) -> None:
        """Close the host's copies."""
        self.status.close()
        self.job.close()
        for fd in (self.stdin, self.stdout, self.stderr):
            os.close(fd)


def open_ends() -> tuple[HostEnds, InsideEnds]:
    """Make the channels and pipes of one box."""
    status, status_inside = streams.pair(socket.SOCK_SEQPACKET)
    job, job_inside = streams.pair()
    # the kernel then attaches the sender's pid, as this process sees it, to what the worker says
    job.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    (stdin_inside, stdin), (stdout, stdout_inside), (stderr, stderr_inside) = _pipes(3)
    os.set_blocking(stdout, False)
    os.set_blocking(stderr, False)
    for end in (status, job):
        end.settimeout(_BUILD_SECONDS)
    host = HostEnds(status, job, Streams(stdin, stdout, stderr))
    return host, InsideEnds(status_inside, job_inside, stdin_inside, stdout_inside, stderr_inside)


def _pipes(count: int) -> list[tuple[int, int]]:
    """Open so many pipes, or none: unlike sockets, nobody closes them when they are forgotten."""
    opened: list[tuple[int, int]] = []
    try:
        while len(opened) < count:
            opened.append(os.pipe())
    except OSError:
        for fd in itertools.chain.from_iterable(opened):
            os.close(fd)
        raise
    return opened


@dataclass(slots=True)
class Place:
    """Where a box that is being built will be counted, and the descriptors by which its first process moves in."""

    sandbox_id: str
    cgroup: RunCgroup | None = None
    entrances: tuple[int, ...] = ()

    def shut(self) -> None:
        """Close the entrances; whoever was to use them has copies."""
        for fd in self.entrances:
            os.close(fd)
        self.entrances = ()


@dataclass(frozen=True, slots=True)
class Box:
    """A box whose first process seals itself and becomes, or starts, the worker."""

    backend: str
    sandbox_type: SandboxType
    spec: WorkerSpec
    ends: HostEnds
    place: Place
    init_pid: int
    pidfd: int
    """Of pid 1: killing it kills everything in the box."""
    directory: RunDirectory
    landlock_abi: int
    notes: tuple[str, ...] = ()
    runtime: str = ""

    def abandon(self) -> None:
        """Kill a box that did not become a worker, wait until nothing of it is left, and let go of it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        # a worker that is still on its way into its cgroup must not arrive when the next run has it
        gone = select.poll()
        gone.register(self.pidfd, select.POLLIN)
        gone.poll(_BUILD_SECONDS * 1000)
        self.ends.close()
        os.close(self.pidfd)
        self.directory.close()


class Workshop:
    """Holds what the boxes of one backend share on the host: the cgroups, and the list of those still to be removed."""

    def __init__(self, limits: Limits, cgroups: Future[CgroupHost] | None = None) -> None:
        """Park every worker under `limits`; a run's own are put in force when it starts.

        `cgroups` is what somebody has begun to find out about this machine already.
        """
        streams.occupy()
        self._limits = limits
        self._lock = threading.Lock()
        self._cgroups = cgroups
        self._unburied: deque[Meter] = deque()
        self._held = 0
        self._closed = False
        self._host_namespaces = observe.own_namespaces()

    def counts_memory(self) -> bool:
        """Whether a cgroup counts the memory of runs here; waits until that is known."""
        return "memory" in self.look_around().result().report.controllers

    def reserve(self, sandbox_id: str, limits: Limits | None = None) -> Place:
        """Make the cgroup of a box that is going to be built; either `park` or `give_up` comes next.

        It is under the limits of every worker, or under `limits` where those are fixed when a box is started.
        """
        cgroups = self.look_around().result()
        place = Place(sandbox_id)
        if cgroups.report.kind != "none":
            place.cgroup = cgroups.create(sandbox_id, own_process_on_top(limits or self._limits))
        with self._lock:
            self._held += 1
        try:
            if place.cgroup is not None:
                place.entrances = place.cgroup.entrances()
        except BaseException:
            self.give_up(place)
            raise
        return place

    def give_up(self, place: Place) -> None:
        """Take back the place of a box that was not built."""
        place.shut()
        self._bury(Meter((), place.cgroup, frozenset()))

    def park(self, box: Box, on_discard: Callable[[], None]) -> ParkedWorker:
        """Wait for the worker of a box, and look at it; one that is not as it should be is gone when this raises.

        Raises:
            IsolationUnavailable: The kernel does not report every promised layer.
        """
        cgroups = self.look_around().result()
        meter = Meter((box.init_pid,), box.place.cgroup, cgroups.report.controllers, self._limits)
        heard = _Heard(box.ends)
        try:
            worker_pid = heard.sealed()
            meter.roots = (box.init_pid, worker_pid)
            box.directory.arrive(heard.take())
            anchor_fd, door = heard.rest(with_door=box.spec.egress)
            anchor = None
            if anchor_fd is not None:
                anchor = Anchor(anchor_fd)
                meter.anchor_pid = anchor.pid
            layers = self._observe(worker_pid, box, cgroups, door)
            heard.ready(worker_pid)
            meter.park()
            if anchor is not None:
                # not before: it comes to rest while the worker warms up, and has to before a guest has its memory
                wait_until_at_rest(anchor.pid)
            events = watch_ends(box.ends.streams, box.ends.status, box.ends.job, anchor, box.pidfd)
        except BaseException:
            heard.let_go()
            box.abandon()
            self._bury(meter)
            raise

        def discard() -> None:
            try:
                self._bury(meter)
            finally:
                on_discard()

        return ParkedWorker(
            sandbox_id=box.place.sandbox_id,
            backend=box.backend,
            sandbox_type=box.sandbox_type,
            spec=box.spec,
            layers=layers,
            init_pid=box.init_pid,
            worker_pid=worker_pid,
            pidfd=box.pidfd,
            status=box.ends.status,
            job=box.ends.job,
            streams=box.ends.streams,
            events=events,
            anchor=anchor,
            door=door,
            directory=box.directory,
            meter=meter,
            on_discard=discard,
        )

    def _observe(self, worker_pid: int, box: Box, cgroups: CgroupHost, door: int | None) -> Layers:
        seen = observe.look(worker_pid)
        observe.require_sealed(seen, self._host_namespaces, filters=_FILTERS_PER_WORKER)
        if door is not None:
            observe.require_door(door, seen.namespaces["net"])
        if box.place.cgroup is not None and not box.place.cgroup.holds(observe.membership(worker_pid)):
            raise IsolationUnavailable("the worker is not in its cgroup; nothing ran in it")
        controllers = cgroups.report.controllers
        missing = ", ".join(cgroups.report.missing)
        unheld = (f"no cgroup holds {missing}; `ringfence doctor` says why",) if missing else ()
        return Layers(
            namespaces=observe.NAMESPACES,
            capabilities_empty=True,
            no_new_privs=True,
            seccomp_filters=int(seen.status.get("Seccomp_filters", _FILTERS_PER_WORKER)),
            landlock_abi=box.landlock_abi,
            cgroup=cgroups.report.kind,
            host_uid=int(seen.status["Uid"].split("\t")[0]),
            memory_limit="cgroup" if "memory" in controllers else "sampled",
            notes=(*box.notes, *unheld, *memory_note(controllers, self._limits)),
            runtime=box.runtime,
        )

    def look_around(self) -> Future[CgroupHost]:
        """Begin to find out what cgroups this machine has; it takes as long as a zygote does to start."""
        with self._lock:
            if self._cgroups is None:
                self._cgroups = cgroups.look_around()
            return self._cgroups

    def _bury(self, meter: Meter) -> None:
        """Have a run's cgroup removed: after those of earlier runs, for it was only just killed and is still busy."""
        meter.let_go()
        with self._lock:
            earlier = len(self._unburied)
            self._unburied.append(meter)
        try:
            for _ in range(earlier):
                if not self._bury_oldest():
                    break
        finally:
            with self._lock:
                self._held -= 1
                last = self._closed and not self._held
            if last:
                self._finish()

    def _bury_oldest(self) -> bool:
        """Remove one cgroup that was still busy; one that still is comes last, and may wait as long as it likes."""
        with self._lock:
            if not self._unburied:
                return True
            oldest = self._unburied.popleft()
        gone = False
        try:
            gone = oldest.bury()
        finally:
            if not gone:
                with self._lock:
                    self._unburied.append(oldest)
        return gone

    def tidy(self) -> bool:
        """Try again to remove the cgroups of dead runs; True when none is left."""
        with self._lock:
            pending = len(self._unburied)
        for _ in range(pending):
            self._bury_oldest()
        with self._lock:
            return not self._unburied

    def close(self) -> None:
        """Remove what is left; a run that is still held may yet read its counters, so the last of them does it."""
        with self._lock:
            self._closed = True
            held = self._held
        if not held:
            self._finish()

    def _finish(self) -> None:
        for _ in range(_LAST_BURIALS):
            with self._lock:
                self._unburied = deque(meter for meter in self._unburied if not meter.bury())
                done = not self._unburied
            if done and (self._cgroups is None or self._cgroups.result().close()):
                return
            time.sleep(0.01)  # the kernel is still taking the last members apart
        import logging  # not at the top: it takes as long as what builds boxes, and seldom has anything to say

        logging.getLogger(__name__).warning("cgroups of runs that are over could not be removed; the next start will")


def pid_of(pidfd: int) -> int:
    """Return the pid, as this process sees it, of what the kernel says the descriptor stands for."""
    info = os.open(f"/proc/self/fdinfo/{pidfd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _, _, rest = os.read(info, 1024).partition(b"\nPid:")
    finally:
        os.close(info)
    pid = int(rest.partition(b"\n")[0] or b"-1")
    if pid <= 0:
        raise InternalError("a process of the box died at once")
    return pid


class _Heard:
    """What a box says until its worker is parked."""

    def __init__(self, ends: HostEnds) -> None:
        self._ends = ends
        self._decoder = Decoder(limit=4096)
        self._messages: list[tuple[Kind, int]] = []
        self.received: list[int] = []
        """Descriptors that came with the words: the run's own file system, then its anchor and its door, if any."""

    def sealed(self) -> int:
        """Wait until the worker is sealed; return its pid, as the kernel attached it."""
        return self._next(Kind.SEALED)

    def take(self) -> int:
        """Take over the first descriptor that came."""
        if not self.received:
            raise InternalError("a worker kept its file system to itself")
        return self.received.pop(0)

    def rest(self, *, with_door: bool) -> tuple[int | None, int | None]:
        """Return the anchor, if there is one, and the door, if there is to be one; they stay in this one's care."""
        if with_door and not self.received:
            raise InternalError("a worker that was to have a way out handed over none")
        others = self.received[:-1] if with_door else self.received
        return (others[0] if others else None), (self.received[-1] if with_door else None)

    def let_go(self) -> None:
        """Close what nobody took."""
        for fd in self.received:
            os.close(fd)
        self.received = []

    def ready(self, worker_pid: int) -> None:
        """Wait until that worker waits for its job."""
        if self._next(Kind.READY) != worker_pid:
            raise InternalError("another process than the sealed worker says that it is ready")

    def _next(self, due: Kind) -> int:
        while not self._messages:
            self._listen()
        kind, pid = self._messages.pop(0)
        if kind is not due:
            raise InternalError(f"a worker said {kind.name} where {due.name} was due")
        return pid

    def _listen(self) -> None:
        try:
            data, ancillary, flags, _ = self._ends.job.recvmsg(4096, _ANCILLARY, _CLOEXEC)
        except TimeoutError:
            raise InternalError("the worker did not become ready in time") from None
        except ConnectionError:
            data, ancillary, flags = b"", [], 0
        attached = {kind: payload for _, kind, payload in ancillary}
        self.received += [fd for (fd,) in _DESCRIPTOR.iter_unpack(attached.get(socket.SCM_RIGHTS, b""))]
        if flags & _CUT:
            # with its anchor unknown, nobody would have seen that come to rest
            raise InternalError("what a worker handed over did not arrive: there is no room for more descriptors")
        for kind, payload in self._decoder.feed(data):
            if kind is Kind.FAILED:
                raise InternalError(f"the worker could not be sealed: {payload.decode('utf-8', 'replace')}")
            self._messages.append((kind, _CREDENTIALS.unpack(attached[socket.SCM_CREDENTIALS])[0]))
        if not data:
            raise InternalError(f"the worker ended before it was ready: {_last_words(self._ends.status)}")


def _last_words(status: socket.socket) -> str:
    with contextlib.suppress(OSError):
        for kind, payload in Decoder(limit=4096).feed(status.recv(4096)):
            if kind is Kind.FAILED:
                return payload.decode("utf-8", "replace")
    return "no reason given"
