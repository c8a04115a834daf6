"""Stays with one guest in a container: takes its output, keeps its time, and notices its end, told or not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ringfence.dataclass import dataclass
from ringfence.isolation.capture import Capture
from ringfence.isolation.linux.meter import SAMPLE_SECONDS
from ringfence.isolation.protocol import Kind, ProtocolError
from ringfence.isolation.stream.feeding import WindowFeed
from ringfence.ports import Job

if TYPE_CHECKING:
    from ringfence.isolation.stream.controls import StreamControls
    from ringfence.isolation.stream.host import StreamWorker

END_SECONDS = 5.0
"""How long an init may take to kill its guest and tell the end; after that its container is killed."""
_NUMBERS = 7
_MOST_STATUS = 0xFFFF
_MOST_NUMBER = 1 << 60


@dataclass(frozen=True, slots=True)
class Farewell:
    """What the guest's init saw: how it ended and what it used."""

    wait_status: int
    cpu_us: int
    peak_kib: int
    tasks_peak: int | None
    memory_kills: int | None
    over_cpu: bool
    has_files: bool

    @classmethod
    def read(cls, payload: bytes) -> Farewell:
        """Read it from a message.

        Raises:
            ProtocolError: It cannot be what an init says.
        """
        words = payload.split()
        if len(words) != _NUMBERS or any(len(word) > 20 for word in words):
            raise ProtocolError("a farewell without its numbers")
        try:
            status, cpu, peak, tasks, kills, over, files = map(int, words)
        except ValueError:
            raise ProtocolError("a farewell that is no numbers") from None
        plain = (status, cpu, peak, over, files)
        if not all(0 <= number < _MOST_NUMBER for number in plain) or status > _MOST_STATUS:
            raise ProtocolError("a farewell with impossible numbers")
        known = [number if 0 <= number < _MOST_NUMBER else None for number in (tasks, kills)]
        return cls(status, cpu, peak, known[0], known[1], bool(over), bool(files))


class Conversation:
    """What host and container say to each other from the job to its end."""

    def __init__(
        self,
        worker: StreamWorker,
        loop: asyncio.AbstractEventLoop,
        captures: tuple[Capture, Capture],
        job: Job,
        feed: WindowFeed,
        controls: StreamControls | None,
    ) -> None:
        """Nothing is sent or heard before `hand_over` and `begin`."""
        self._worker = worker
        self._talk = worker.talk
        self._loop = loop
        self._captures = dict(zip((Kind.STDOUT, Kind.STDERR), captures, strict=True))
        self._limits, self._most_output = job.limits, job.most_output
        self._feed = feed
        self._controls = controls
        self._fds = (self._talk.streams.stdin, self._talk.streams.stdout, self._talk.streams.stderr)
        self._writes = False
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._deaf = False
        self._ended = False
        self.over = asyncio.Event()
        """Set when no process of the guest is left, or nobody is there to tell."""
        self.has_started = False
        self.farewell: Farewell | None = None
        """What was said of the guest's end; None when nobody was left to say it, or nobody to be believed."""

    def hand_over(self, job: memoryview) -> None:
        """Send the job, as fast as it is taken, whatever else happens meanwhile."""
        self._talk.send(job)
        self.write_soon()

    def begin(self) -> None:
        """Have it started, and listen."""
        self._talk.say(Kind.START)
        self._deadline = self._loop.time() + self._limits.wall_seconds
        self._loop.add_reader(self._fds[1], self._listen)
        self._loop.add_reader(self._fds[2], self._overhear)
        self._feed.begin()
        if self._controls is not None:
            self._controls.begin()
        self._look_again_later()
        if self._talk.has_heard:  # before it had its job, so no loop will wake us for it
            self._listen()
        self.write_soon()

    def end(self) -> None:
        """Stop listening and sending; once, because later the numbers may be somebody else's."""
        if self._ended:
            return
        self._ended = True
        for timer in (self._timer, self._patience):
            if timer is not None:
                timer.cancel()
        self._loop.remove_reader(self._fds[1])
        self._loop.remove_reader(self._fds[2])
        self._loop.remove_writer(self._fds[0])
        self._writes = False

    def abandon(self) -> None:
        """The worker is discarded: whoever still waits here waits for nothing."""
        if not self.over.is_set():
            self.end()
            self.over.set()

    def end_guest(self) -> None:
        """Have the init kill its guest, and its files still be there; if it does not, its container is killed."""
        if self.over.is_set() or self._patience is not None:
            return
        self._talk.say(Kind.END)
        self.write_soon()
        self._patience = self._loop.call_later(END_SECONDS, self._lose_patience)

    def _lose_patience(self) -> None:
        self._worker.kill_container()
        # an engine that hangs must not hang us: what it has not told by then it never will
        self._patience = self._loop.call_later(END_SECONDS, self.over.set)

    def write_soon(self) -> None:
        """See to it that what waits for room is sent."""
        if self._ended:
            return
        needed = self._talk.has_unsent
        if needed and not self._writes:
            self._loop.add_writer(self._fds[0], self._write)
        elif self._writes and not needed:
            self._loop.remove_writer(self._fds[0])
        self._writes = needed

    def _write(self) -> None:
        self._talk.push()
        self.write_soon()

    def _overhear(self) -> None:
        if not self._talk.overhear():
            self._loop.remove_reader(self._fds[2])

    def _listen(self) -> None:
        try:
            messages = self._talk.read()
            if messages is None:
                self.over.set()
                return
            for kind, payload in messages:
                self._hear(kind, payload)
        except ProtocolError:
            self._disbelieve()
        self.write_soon()

    def _hear(self, kind: Kind, payload: bytes) -> None:
        if self.over.is_set():
            raise ProtocolError("words after the farewell")
        if kind in self._captures and self.has_started:
            self._take(self._captures[kind], payload)
        elif kind is Kind.TAKEN:
            if not self._feed.taken(_count(payload)):
                raise ProtocolError("more input was taken than given")
        elif kind is Kind.STARTED and not self.has_started:
            self.has_started = True
        elif kind is Kind.EXIT:
            self.farewell = Farewell.read(payload)
            self.over.set()
        else:
            raise ProtocolError(f"{kind.name} out of turn")

    def _take(self, capture: Capture, data: bytes) -> None:
        if self._deaf:
            return
        capture.add(data)
        if self._most_output is not None:
            self._most_output -= len(data)
            if self._most_output < 0:
                self._deaf = True  # what it says until it is dead is nobody's business
                self._worker.kill("budget")

    def _disbelieve(self) -> None:
        """End a container that says what no init of ours says; nothing more of it is heard.

        It may have done anything with the job, so nobody else is given it.
        """
        self.farewell = None
        self.has_started = True
        self._worker.kill_container()
        self.over.set()

    def _look_again_later(self) -> None:
        wake = self._deadline
        if self._controls is not None:
            wake = min(wake, self._loop.time() + SAMPLE_SECONDS)
        self._timer = self._loop.call_at(wake, self._check_limits)

    def _check_limits(self) -> None:
        over = "wall_timeout" if self._loop.time() >= self._deadline else None
        if over is None and self._controls is not None:
            over = self._controls.exceeded()
        if over is None:
            self._look_again_later()
        else:
            self._worker.kill(over)


def _count(payload: bytes) -> int | None:
    if not payload:
        return None
    if not payload.isdigit() or len(payload) > 20:
        raise ProtocolError("a count that is no number")
    return int(payload)
