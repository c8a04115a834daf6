"""A parked worker in a container, as the host holds it: one stream, and what came out of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ringfence.attachment import Attachment
from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass, field
from ringfence.errors import IsolationUnavailable
from ringfence.interrupted import Interrupted
from ringfence.isolation.capture import Capture, Listener, mask
from ringfence.isolation.ending import seen_by_the_kernel, told, until_over, used_up_its_time, whole_cpu_seconds
from ringfence.isolation.protocol import Kind, encode
from ringfence.isolation.stream.feeding import WindowFeed
from ringfence.isolation.stream.line import Line, Talk
from ringfence.isolation.stream.running import Conversation, Farewell
from ringfence.outcome import Layers, OnOutput, SandboxType
from ringfence.ports import EVERYTHING, NO_PROCESS, Begin, Ending, Harvest, Job, Keeping, WorkerLost, WorkerSpec

if TYPE_CHECKING:
    from ringfence.isolation.stream.controls import StreamControls
    from ringfence.isolation.stream.way_out import WayOut
    from ringfence.workspaces.session import SessionWorkspace

_PLACE_SECONDS = 60.0


@dataclass(slots=True)
class StreamWorker:
    """Implements `ports.Worker` for whatever has python3 and three streams."""

    sandbox_id: str
    backend: str
    sandbox_type: SandboxType
    spec: WorkerSpec
    layers: Layers
    line: Line
    talk: Talk
    inputs: Path | None
    session: SessionWorkspace | None
    generation: int
    takes_inputs: bool
    """Whether inputs that came through the stream cannot be changed inside."""
    on_discard: Callable[[], None]
    init_pid: int = NO_PROCESS
    """The first process of the container, as the host numbers it, where its backend can tell."""
    worker_pid: int = NO_PROCESS
    way_out: WayOut | None = None
    """Where its guest's connections arrive, if its spec asked for that."""
    door: int | None = field(default=None, init=False)
    anchor_pid: int | None = field(default=None, init=False)
    _used: bool = field(default=False, init=False)
    _killed_by: str | None = field(default=None, init=False)
    _farewell: Farewell | None = field(default=None, init=False)
    _has_started: bool = field(default=False, init=False)
    _conversation: Conversation | None = field(default=None, init=False)
    _discarded: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Have the proxy accept at the end of the way out."""
        self.door = None if self.way_out is None else self.way_out.door

    def place(self, files: Mapping[str, bytes], inputs: Mapping[str, bytes]) -> None:
        """Put `files` into the work directory and `inputs` into the read-only one."""
        from ringfence.isolation.stream.files import place_inputs, send_files

        through_stream = inputs if self.inputs is None else {}
        if through_stream and not self.takes_inputs:
            raise IsolationUnavailable("this container cannot be given inputs that its guest could not change")
        if self.inputs is not None and inputs:
            place_inputs(self.inputs, inputs)
        if files or through_stream:
            send_files(self.talk, files, through_stream, time.monotonic() + _PLACE_SECONDS)

    def kill(self, why: str) -> None:
        """Have everything of the guest killed, by its init if that still listens, else with its container."""
        if self._killed_by is None:
            self._killed_by = why
        if self._conversation is None:
            self.kill_container()
        else:
            self._conversation.end_guest()

    def kill_container(self) -> None:
        """Have the engine kill the container, which may take its time, in a thread that nobody waits for."""
        threading.Thread(target=self.line.kill, name="ringfence-kill", daemon=True).start()

    def keep_sending(self) -> None:
        """See to it that what was said while the run goes on is sent."""
        if self._conversation is not None:
            self._conversation.write_soon()

    async def run(
        self,
        job: Job,
        on_output: OnOutput | None,
        begin: Begin | None = None,
        attached: Attachment | None = None,
    ) -> Ending:
        """Hand over the job and stay with it until every process of the guest is gone."""
        if self._used or self._discarded:
            raise WorkerLost("a worker serves one run")
        self._used = True
        with contextlib.ExitStack() as staying:
            ways = None
            if self.way_out is not None or (attached is not None and attached.ports):
                from ringfence.isolation.stream.ports import Ways  # not at the top: most runs have none

                # first of all: from now on the stream's own ends are its
                ways = Ways(self.talk, self.way_out, job.tenant)
                staying.callback(ways.end)
            controls = None
            if attached is not None:
                from ringfence.isolation.stream.controls import StreamControls  # nor anybody who stays

                controls = staying.enter_context(
                    StreamControls(self, asyncio.get_running_loop(), attached, ways if attached.ports else None)
                )
            return await self._run(job, on_output, begin, controls)

    async def _run(
        self, job: Job, on_output: OnOutput | None, begin: Begin | None, controls: StreamControls | None
    ) -> Ending:
        loop = asyncio.get_running_loop()
        listener = None if on_output is None else Listener(on_output, self.kill)
        capture: Callable[[str, int, OnOutput | None], Capture] = Capture if controls is None else controls.capture
        captures = (
            capture("stdout", job.limits.stdout_bytes, listener),
            capture("stderr", job.limits.stderr_bytes, listener),
        )
        mask(captures, job.masks)
        feed = WindowFeed(loop, self.talk) if controls is None else controls.feed
        conversation = Conversation(self, loop, captures, job, feed, controls)
        # it travels while it is written down that it begins
        conversation.hand_over(self._message(job, controls))
        was_cancelled = False
        try:
            if begin is not None:
                await begin()
            if controls is not None:
                await controls.announce(job.stdin)
            else:
                feed.put(job.stdin)
                feed.end_when_empty()
            started = time.perf_counter()
            self._conversation = conversation
            conversation.begin()
            await conversation.over.wait()
        except asyncio.CancelledError:
            self.kill("cancelled")
            if self._conversation is None:
                raise
            await until_over(conversation.over)
            was_cancelled = True
        finally:
            feed.end()
            conversation.end()
        elapsed = time.perf_counter() - started
        self._farewell, self._has_started = conversation.farewell, conversation.has_started
        if was_cancelled:
            raise Interrupted(self._told(captures, elapsed, self._killed_by))
        if listener is not None and listener.error is not None:
            raise listener.error
        return await self._ending(captures, elapsed, job.limits)

    def _message(self, job: Job, controls: StreamControls | None) -> memoryview:
        message: dict[str, object] = {
            "language": job.language,
            "code": job.code,
            "args": job.args,
            "env": dict(job.env),
            "cpu_seconds": whole_cpu_seconds(job.limits),
            "cpu_us": job.limits.cpu_seconds * 1e6,
            "data_bytes": None if self.layers.memory_limit == "cgroup" else job.limits.memory_bytes,
        }
        if job.cwd is not None:
            message["cwd"] = job.cwd
        if controls is not None:
            message["attached"] = {"terminal": controls.terminal}
        return memoryview(encode(Kind.JOB, json.dumps(message).encode()))

    async def _ending(self, captures: tuple[Capture, Capture], elapsed: float, limits: Limits) -> Ending:
        """Put together what the init and the host say.

        Raises:
            WorkerLost: The guest never started, so another worker may take the job.
            IsolationUnavailable: Nobody knows whether it did.
        """
        farewell = self._farewell
        if self._killed_by == "wall_timeout" and farewell is None and not self._has_started:
            # a guest that takes too long has an init that answers; who is silent altogether is not the program
            raise IsolationUnavailable(
                f"nothing was heard of {self.sandbox_id} since it was given its job, not even when its time was over",
                reason="engine_hung",
                fix="look at the engine's own log; restart it if it hangs",
            )
        if self._killed_by is None and not self._has_started:
            raise WorkerLost("the container ended before it started the job")
        killed_by = self._killed_by
        if killed_by is None:
            _, signal_number = seen_by_the_kernel(None if farewell is None else farewell.wait_status)
            killed_by = await self._what_killed(farewell, signal_number, limits)
        return self._told(captures, elapsed, killed_by)

    def _told(self, captures: tuple[Capture, Capture], elapsed: float, killed_by: str | None) -> Ending:
        farewell = self._farewell
        exit_code, signal_number = seen_by_the_kernel(None if farewell is None else farewell.wait_status)
        usage = self.line.usage()
        cpu_ms = peak = tasks = None
        if farewell is not None:
            cpu_ms, peak, tasks = round(farewell.cpu_us / 1000), farewell.peak_kib * 1024, farewell.tasks_peak
        if usage is not None:
            cpu_ms = cpu_ms if usage.cpu_ms is None else usage.cpu_ms
            peak, tasks = usage.memory_peak_bytes or peak, usage.tasks_peak or tasks
        return told(
            captures,
            exit_code=exit_code,
            signal=signal_number,
            killed_by=killed_by,
            elapsed_seconds=elapsed,
            cpu_ms=cpu_ms,
            memory_peak_bytes=peak,
            tasks_peak=tasks,
        )

    async def _what_killed(self, farewell: Farewell | None, signal_number: int | None, limits: Limits) -> str | None:
        """Name what ended the guest, if it was no doing of its own."""
        if farewell is None:
            return "memory" if await asyncio.to_thread(self.line.died_of) == "memory" else "unknown"
        if farewell.over_cpu or used_up_its_time(signal_number, farewell.cpu_us, limits):
            return "cpu_timeout"
        if signal_number != signal.SIGKILL or farewell.memory_kills == 0:
            return None
        if farewell.memory_kills is not None:
            return "memory"
        return "memory" if await asyncio.to_thread(self.line.died_of) == "memory" else None

    def is_fresh(self) -> bool:
        """Whether the session's files are still what this worker was parked over."""
        return self.session is None or self.session.generation() == self.generation

    def left_files(self) -> bool:
        """Whether there is anything to harvest, or to be said about its loss."""
        return self._has_started and (self._farewell is None or self._farewell.has_files)

    def harvest(self, limits: Limits, keeping: Keeping = EVERYTHING) -> Harvest:
        """Fetch what the dead guest left, and keep a session's changes as `keeping` says: all of them or none."""
        from ringfence.isolation.stream.harvesting import harvest, lost

        if self._farewell is None:
            return lost("its container ended before they could be fetched") if self._has_started else Harvest()
        return harvest(self.talk, self.session, self.generation, limits, keeping)

    def discard(self) -> None:
        """Kill whatever is left and free everything."""
        self._discarded = True
        if self._conversation is not None:
            self._conversation.abandon()
        self.talk.close()  # to the init, this alone is the word to end
        with contextlib.ExitStack() as last:
            last.callback(self.on_discard)
            if self.way_out is not None:
                last.callback(self.way_out.close)
            if self.session is not None:
                last.callback(self.session.close)
            last.callback(self.line.kill)
