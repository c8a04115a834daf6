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
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass, field
from ringfence.interrupted import Interrupted
from ringfence.isolation.capture import Capture, Listener, mask
from ringfence.isolation.ending import seen_by_the_kernel, told, until_over, used_up_its_time, whole_cpu_seconds
from ringfence.isolation.ends import Streams
from ringfence.isolation.linux.anchor import Anchor
from ringfence.isolation.linux.meter import Meter
from ringfence.isolation.linux.watching import Farewell, Feed, Watch, said
from ringfence.isolation.protocol import Kind, encode
from ringfence.outcome import Layers, OnOutput, SandboxType
from ringfence.ports import EVERYTHING, Begin, Ending, Harvest, Job, Keeping, WorkerLost, WorkerSpec
from ringfence.workspaces.run_directory import RunDirectory

if TYPE_CHECKING:
    from ringfence.attachment import Attachment
    from ringfence.isolation.linux.attached import Attached


_START = encode(Kind.START)
_NO_SIGNAL = int(socket.MSG_NOSIGNAL)


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
    door: int | None
    """Where the proxy accepts what the guest connects to, if there is a way out."""
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
    def anchor_pid(self) -> int | None:
        """The process that only shares the worker's memory."""
        return self.meter.anchor_pid

    @property
    def was_killed(self) -> bool:
        """Whether the host ended the run."""
        return self._killed_by is not None

    def bury(self) -> None:
        """End what is left in the box, whoever it was that ended the guest."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    async def run(
        self,
        job: Job,
        on_output: OnOutput | None,
        begin: Begin | None = None,
        attached: Attachment | None = None,
    ) -> Ending:
        """Hand over the job and stay with it until every process of the guest is gone."""
        if attached is not None:
            from ringfence.isolation.linux.attached import Attached  # not at the top: most runs have nobody

            with Attached(self, asyncio.get_running_loop(), attached) as controls:
                return await self._run(job, on_output, begin, controls)
        return await self._run(job, on_output, begin)

    async def _run(
        self, job: Job, on_output: OnOutput | None, begin: Begin | None, attached: Attached | None = None
    ) -> Ending:
        loop = asyncio.get_running_loop()
        if self._used:
            raise WorkerLost("a worker serves one run")
        self._used = True
        self.meter.begin(job.limits)
        # First of all: the worker gets ready for it on its core while it is written down on this one that it begins.
        unsent = self._offer(self._message(job, attached))
        if begin is not None:
            await begin()
        if attached is not None:
            await attached.announce(job.stdin)
        started = time.perf_counter()
        try:
            unsent, was_told = self._offer(memoryview(bytes(unsent) + _START)), True
        except WorkerLost:  # how it ended is told next, and by that whose doing it was
            unsent, was_told = unsent[:0], False
        # What it is watched with is made while it runs: nothing that it says before is lost.
        listener = None if on_output is None else Listener(on_output, self.kill)
        capture: Callable[[str, int, OnOutput | None], Capture] = Capture if attached is None else attached.capture
        captures = (
            capture("stdout", job.limits.stdout_bytes, listener),
            capture("stderr", job.limits.stderr_bytes, listener),
        )
        mask(captures, job.masks)
        watch = Watch(self, loop, captures, job, attached)
        feed = Feed(self.streams, loop, job.stdin) if attached is None else attached.feed
        try:
            watch.begin()
            if unsent:
                await self._send(loop, unsent)
            feed.begin()
            await watch.over.wait()
        except asyncio.CancelledError:
            self.kill("cancelled")
            await until_over(watch.over)
            watch.drain()
            elapsed = time.perf_counter() - started
            raise Interrupted(self._ending(watch.farewell, captures, elapsed, job.limits, has_started=True)) from None
        finally:
            feed.end()
            watch.end()
        elapsed = time.perf_counter() - started
        watch.drain()
        if listener is not None and listener.error is not None:
            raise listener.error
        has_started = said(self.job, Kind.STARTED) is not None if attached is None else attached.has_started()
        has_started = has_started and (was_told or self._fell_over_its_text(watch.farewell))
        return self._ending(watch.farewell, captures, elapsed, job.limits, has_started=has_started)

    def _fell_over_its_text(self, farewell: Farewell | None) -> bool:
        """Whether a worker that was never told to start ended by what it had to read, and by nobody's hand."""
        if farewell is None:
            return False
        _, signal_number = seen_by_the_kernel(farewell.wait_status)
        return signal_number != signal.SIGKILL or self.meter.ran_out_of_memory()

    def _message(self, job: Job, attached: Attached | None) -> memoryview:
        message = {
            "language": job.language,
            "code": job.code,
            "args": job.args,
            "env": dict(job.env),
            "cpu_seconds": whole_cpu_seconds(job.limits),
            "data_bytes": self.meter.data_limit(job.limits),
        }
        if job.cwd is not None:
            message["cwd"] = job.cwd
        if attached is not None:
            message["attached"] = {"terminal": attached.terminal}
        return memoryview(encode(Kind.JOB, json.dumps(message).encode()))

    def _offer(self, data: memoryview) -> memoryview:
        """Hand over as much as the channel takes at once, and return the rest."""
        try:
            return data[self.job.send(data, _NO_SIGNAL) :]
        except BlockingIOError:
            return data
        except OSError as error:
            raise WorkerLost(f"the worker did not take its job: {error}") from error

    async def _send(self, loop: asyncio.AbstractEventLoop, data: memoryview) -> None:
        """Hand over the rest as fast as the worker reads it; not by the loop, which would raise SIGPIPE."""
        while data := self._offer(data):
            has_room = asyncio.Event()
            loop.add_writer(self.job, has_room.set)
            try:
                await has_room.wait()
            finally:
                loop.remove_writer(self.job)

    def _ending(
        self,
        farewell: Farewell | None,
        captures: tuple[Capture, Capture],
        elapsed: float,
        limits: Limits,
        *,
        has_started: bool,
    ) -> Ending:
        """Put together what init, the cgroup and the pipes say; none of them was ever in the guest's hands.

        Raises:
            WorkerLost: The guest never started, so another worker may take the job.
        """
        if self._killed_by is None and not has_started:
            raise WorkerLost("the worker ended before it started the job")
        usage = self.meter.finish()
        killed_by = self._killed_by
        exit_code, signal_number = seen_by_the_kernel(None if farewell is None else farewell.wait_status)
        if killed_by is None:
            if (farewell is None or signal_number == signal.SIGKILL) and self.meter.ran_out_of_memory():
                killed_by = "memory"
            elif farewell is None:
                killed_by = "unknown"
            elif used_up_its_time(signal_number, farewell.cpu_us, limits):
                killed_by = "cpu_timeout"
        cpu_ms, peak = usage.cpu_ms, usage.memory_peak_bytes
        if farewell is not None:
            peak = peak or farewell.peak_kib * 1024
        if cpu_ms is None:
            # the farewell is of the worker and of whom it waited for, a look is of everybody who was there
            cpu_ms = max(usage.seen_cpu_ms, 0 if farewell is None else round(farewell.cpu_us / 1000))
        return told(
            captures,
            exit_code=exit_code,
            signal=signal_number,
            killed_by=killed_by,
            elapsed_seconds=elapsed,
            cpu_ms=cpu_ms,
            memory_peak_bytes=peak,
            tasks_peak=usage.tasks_peak,
        )

    def is_fresh(self) -> bool:
        """Whether the session's files are still what this worker was parked over."""
        return self.directory.is_fresh()

    def left_files(self) -> bool:
        """Whether there is anything to harvest."""
        return self.directory.has_files()

    def harvest(self, limits: Limits, keeping: Keeping = EVERYTHING) -> Harvest:
        """Read what the dead guest left, and keep a session's changes as `keeping` says: all of them or none."""
        return self.directory.harvest(limits, keeping)

    def discard(self) -> None:
        """Kill whatever is left and free everything."""
        self.bury()
        self.events.close()
        if self.anchor is not None:
            self.anchor.close()
        if self.door is not None:
            os.close(self.door)
        self.streams.close()
        self.status.close()
        self.job.close()
        os.close(self.pidfd)
        self.directory.close()
        self.on_discard()


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
