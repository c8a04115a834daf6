"""A parked native worker as the host holds it: sockets, pipes, a pidfd, a directory and a cgroup."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ringfence.capability.limits import Limits
from ringfence.isolation.capture import Capture, Listener
from ringfence.isolation.linux.anchor import Anchor
from ringfence.isolation.linux.meter import SAMPLE_SECONDS, Meter
from ringfence.isolation.protocol import Decoder, Kind, ProtocolError, encode
from ringfence.outcome import Layers, OnOutput, SandboxType
from ringfence.ports import KEEP_ALL, Begin, Ending, Harvest, Job, Keeping, WorkerLost, WorkerSpec
from ringfence.workspaces.run_directory import RunDirectory

_CHUNK = 1 << 16
_open_streams: weakref.WeakSet[Streams] = weakref.WeakSet()


@dataclass(slots=True, weakref_slot=True, eq=False)
class Streams:
    """The host's ends of the guest's standard streams."""

    stdin: int
    stdout: int
    stderr: int

    def __post_init__(self) -> None:
        """Be known to the one who has to close all of them."""
        _open_streams.add(self)

    def close(self) -> None:
        """Close what is still open."""
        for fd in (self.stdin, self.stdout, self.stderr):
            if fd >= 0:
                os.close(fd)
        self.stdin = self.stdout = self.stderr = -1


@dataclass(slots=True)
class ParkedWorker:
    """Implements `ports.Worker` for boxes that share this kernel."""

    sandbox_id: str
    backend: str
    sandbox_type: SandboxType
    spec: WorkerSpec
    layers: Layers
    init_pid: int
    worker_pid: int
    pidfd: int
    status: socket.socket
    job: socket.socket
    streams: Streams
    events: select.epoll
    """Readable when there is output, or when the end of the guest is told."""
    anchor: Anchor | None
    directory: RunDirectory
    meter: Meter
    on_discard: Callable[[], None]
    _used: bool = field(default=False, init=False)
    _killed_by: str | None = field(default=None, init=False)

    def place(self, files: Mapping[str, bytes], inputs: Mapping[str, bytes]) -> None:
        """Put `files` into the work directory and `inputs` into the read-only one."""
        self.directory.place(files, inputs)

    def kill(self, why: str) -> None:
        """Kill pid 1 of the box, and with it, in the kernel, everything in it."""
        if self._killed_by is None:
            self._killed_by = why
        self.bury()

    @property
    def was_killed(self) -> bool:
        """Whether the host ended the run."""
        return self._killed_by is not None

    def bury(self) -> None:
        """End what is left in the box, whoever it was that ended the guest."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    async def run(self, job: Job, on_output: OnOutput | None, begin: Begin | None = None) -> Ending:
        """Hand over the job and stay with it until every process of the guest is gone."""
        loop = asyncio.get_running_loop()
        if self._used:
            raise WorkerLost("a worker serves one run")
        self._used = True
        self.meter.begin(job.limits)
        # First of all, and all but its last byte: the worker wakes up on its core while everything to watch it with is
        # made on this one, and while the disk takes down that it begins. Until that byte comes there is no job.
        message = self._message(job)
        withheld = 0 if begin is None else 1
        unsent = self._offer(message[: len(message) - withheld])
        listener = None if on_output is None else Listener(on_output, self.kill)
        captures = (
            Capture("stdout", job.limits.stdout_bytes, listener),
            Capture("stderr", job.limits.stderr_bytes, listener),
        )
        watch = _Watch(self, loop, captures, job.limits)
        feed = _Feed(self.streams, loop, job.stdin)
        if begin is not None:
            await begin()
        started = time.perf_counter()
        watch.begin()
        try:
            if unsent:
                await self._send(loop, unsent)
            if withheld and self._offer(message[-1:]):
                await self._send(loop, message[-1:])
            feed.begin()
            await watch.until_over()
        except asyncio.CancelledError:
            self.kill("cancelled")
            await watch.until_over_whatever_comes()
            raise
        finally:
            feed.end()
            watch.end()
        elapsed = time.perf_counter() - started
        watch.drain()
        if listener is not None and listener.error is not None:
            raise listener.error
        return self._ending(watch.farewell, captures, elapsed)

    def _message(self, job: Job) -> memoryview:
        message = {
            "language": job.language,
            "code": job.code,
            "args": job.args,
            "env": dict(job.env),
            "cpu_seconds": max(1, int(job.limits.cpu_seconds)),
            "data_bytes": self.meter.data_limit(job.limits),
        }
        return memoryview(encode(Kind.START, json.dumps(message).encode()))

    def _offer(self, data: memoryview) -> memoryview:
        """Hand over as much as the channel takes at once, and return the rest."""
        try:
            return data[self.job.send(data) :]
        except BlockingIOError:
            return data
        except OSError as error:
            raise WorkerLost(f"the worker did not take its job: {error}") from error

    async def _send(self, loop: asyncio.AbstractEventLoop, data: memoryview) -> None:
        try:
            await loop.sock_sendall(self.job, data)
        except OSError as error:
            raise WorkerLost(f"the worker did not take its job: {error}") from error

    def _ending(self, farewell: Farewell | None, captures: tuple[Capture, Capture], elapsed: float) -> Ending:
        """Put together what init, the cgroup and the pipes say; none of them was ever in the guest's hands.

        Raises:
            WorkerLost: The guest never started, so another worker may take the job.
        """
        if self._killed_by is None and _said(self.job, Kind.STARTED) is None:
            raise WorkerLost("the worker ended before it started the job")
        usage = self.meter.finish()
        killed_by = self._killed_by
        exit_code = signal_number = None
        if farewell is not None:
            if os.WIFSIGNALED(farewell.wait_status):
                signal_number = os.WTERMSIG(farewell.wait_status)
            else:
                exit_code = os.WEXITSTATUS(farewell.wait_status)
        if killed_by is None:
            if (farewell is None or signal_number == signal.SIGKILL) and self.meter.ran_out_of_memory():
                killed_by = "memory"
            elif signal_number == signal.SIGXCPU:
                killed_by = "cpu_timeout"
            elif farewell is None:
                killed_by = "unknown"
        (stdout, stdout_left_out), (stderr, stderr_left_out) = (capture.finish() for capture in captures)
        cpu_ms, peak = usage.cpu_ms, usage.memory_peak_bytes
        if farewell is not None:
            cpu_ms = round(farewell.cpu_us / 1000) if cpu_ms is None else cpu_ms
            peak = peak or farewell.peak_kib * 1024
        return Ending(
            exit_code=exit_code,
            signal=signal_number,
            killed_by=killed_by,
            stdout=stdout,
            stderr=stderr,
            stdout_bytes=captures[0].seen,
            stderr_bytes=captures[1].seen,
            stdout_left_out=stdout_left_out,
            stderr_left_out=stderr_left_out,
            elapsed_seconds=elapsed,
            cpu_ms=cpu_ms or 0,
            memory_peak_bytes=peak,
            tasks_peak=usage.tasks_peak,
        )

    def is_fresh(self) -> bool:
        """Whether the session's files are still what this worker was parked over."""
        return self.directory.is_fresh()

    def left_files(self) -> bool:
        """Whether there is anything to harvest."""
        return self.directory.has_files()

    def harvest(self, limits: Limits, keeping: Keeping = KEEP_ALL) -> Harvest:
        """Read what the dead guest left, and keep a session's changes, or propose or only show them."""
        return self.directory.harvest(limits, keeping)

    def discard(self) -> None:
        """Kill whatever is left and free everything."""
        self.bury()
        self.events.close()
        if self.anchor is not None:
            self.anchor.close()
        self.streams.close()
        self.status.close()
        self.job.close()
        os.close(self.pidfd)
        self.directory.close()
        self.on_discard()


@dataclass(frozen=True, slots=True)
class Farewell:
    """What the guest's parent saw: how it ended and what it used."""

    wait_status: int
    cpu_us: int
    peak_kib: int


class _Watch:
    """Feeds the captures from the pipes and notices when no process of the guest is left."""

    def __init__(
        self,
        worker: ParkedWorker,
        loop: asyncio.AbstractEventLoop,
        captures: tuple[Capture, Capture],
        limits: Limits,
    ) -> None:
        self._loop = loop
        self._worker = worker
        self._limits = limits
        self._deadline = 0.0
        self._meter = worker.meter
        self._kill = worker.kill
        self._pipes = dict(zip((worker.streams.stdout, worker.streams.stderr), captures, strict=True))
        self._status = worker.status
        self._pidfd = worker.pidfd
        self._events = worker.events
        self._anchor = worker.anchor
        self._bury = worker.bury
        self.farewell: Farewell | None = None
        """What was said of the guest's end; None when nobody was left to say it."""
        self._over = False
        self._waiter: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Start watching; the loop sees one descriptor, which was set up when the worker was parked."""
        self._deadline = self._loop.time() + self._limits.wall_seconds
        self._loop.add_reader(self._events.fileno(), self._look)
        self._look_again_later()

    def end(self) -> None:
        """Stop watching."""
        self._timer.cancel()
        self._loop.remove_reader(self._events.fileno())

    async def until_over(self) -> None:
        """Wait until no process of the guest is left."""
        while not self._over:
            # one for each wait: a cancelled caller cancels its waiter, and that must not look like the end
            self._waiter = self._loop.create_future()
            await self._waiter

    async def until_over_whatever_comes(self) -> None:
        """Wait for the end, however often the caller is cancelled meanwhile."""
        while not self._over:
            with contextlib.suppress(asyncio.CancelledError):
                await self.until_over()

    def _look_again_later(self) -> None:
        self._timer = self._loop.call_at(min(self._deadline, self._loop.time() + SAMPLE_SECONDS), self._check_limits)

    def _check_limits(self) -> None:
        """Look at what no cgroup bounds: the time, the cpu time of the whole box, memory where there is no cgroup."""
        over = "wall_timeout" if self._loop.time() >= self._deadline else self._meter.exceeded(self._limits)
        if over is None:
            self._look_again_later()
        else:
            self._kill(over)

    def drain(self) -> None:
        """Take what is left in the pipes; their writers are dead, so every read returns at once."""
        for fd in self._pipes:
            while self._take(fd):
                pass

    def _look(self) -> None:
        told = False
        for fd, _ in self._events.poll(0):
            if fd in self._pipes:
                if not self._take(fd):
                    self._events.unregister(fd)
            elif fd == self._pidfd:
                # a pidfd of pid 1 is readable only after the whole namespace is dead
                self._finish()
            elif self._anchor is not None and fd == self._anchor.pidfd:
                self._events.unregister(fd)
                self._anchor = None  # dead: its number may be another's by now
            else:
                told = True
        if told:  # after what else there was: whether the anchor lives decides about the end
            self._end_was_told()

    def _take(self, fd: int) -> bool:
        """Move one chunk; False when the pipe is at its end, or empty with nobody left to fill it."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return not self._over
        if not data:
            return False
        self._pipes[fd].add(data)
        return True

    def _end_was_told(self) -> None:
        """The guest has ended; it is over when nothing of it is left, at the latest when its namespace is dead."""
        words = _said(self._status, Kind.EXIT)
        if words is not None:
            self.farewell = Farewell(*map(int, words.split()[:3]))
            left = words.split()[3:]
            # nobody is in a hurry about a run that was killed, and its caller may count on an empty box
            if not self._worker.was_killed and self._is_alone(left):
                self._finish()
                return
        self._events.unregister(self._status)
        self._bury()
        self._events.modify(self._pidfd, select.EPOLLIN)

    def _is_alone(self, left: list[bytes]) -> bool:
        return not left or (self._anchor is not None and self._anchor.is_all_of(left))

    def _finish(self) -> None:
        self._over = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Feed:
    """Writes standard input as fast as the guest reads it."""

    def __init__(self, streams: Streams, loop: asyncio.AbstractEventLoop, data: bytes) -> None:
        self._streams = streams
        self._loop = loop
        self._left = memoryview(data)
        self._watched = False

    def begin(self) -> None:
        if not self._left:
            self.end()
            return
        os.set_blocking(self._streams.stdin, False)
        self._write()
        if self._streams.stdin >= 0:
            self._watched = True
            self._loop.add_writer(self._streams.stdin, self._write)

    def end(self) -> None:
        """Close the stream; a guest that ended early leaves the rest unread."""
        if self._streams.stdin < 0:
            return
        if self._watched:
            # before the number is free for something else
            self._loop.remove_writer(self._streams.stdin)
        os.close(self._streams.stdin)
        self._streams.stdin = -1

    def _write(self) -> None:
        try:
            self._left = self._left[os.write(self._streams.stdin, self._left) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._left = self._left[:0]
        if not self._left:
            self.end()


def watch_ends(
    streams: Streams, status: socket.socket, job: socket.socket, anchor: Anchor | None, pidfd: int
) -> select.epoll:
    """Return the descriptor an event loop has to watch for a worker, ready before anybody waits."""
    status.setblocking(False)
    job.setblocking(False)
    events = select.epoll()
    for end in (streams.stdout, streams.stderr, status.fileno()):
        events.register(end, select.EPOLLIN)
    if anchor is not None:
        events.register(anchor.pidfd, select.EPOLLIN)
    # of interest only when the end was told, and in its place now: a guest can use up what its user may watch
    events.register(pidfd, 0)
    return events


def _said(end: socket.socket, kind: Kind) -> bytes | None:
    """Return the payload of the one message that is waiting, if there is one and it is of that kind."""
    try:
        messages = Decoder(limit=_CHUNK).feed(end.recv(_CHUNK))
    except (BlockingIOError, ConnectionError, ProtocolError):
        return None
    return messages[0][1] if messages and messages[0][0] is kind else None


def _close_in_child() -> None:
    """Close a forked child's copies: while it holds one, no guest of the parent would see its input end."""
    for streams in tuple(_open_streams):
        with contextlib.suppress(OSError):  # another thread of the parent was just closing them
            streams.close()


os.register_at_fork(after_in_child=_close_in_child)
