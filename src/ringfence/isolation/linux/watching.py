"""Stays with one guest: takes its output, feeds its input, keeps its time, and notices when nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
from typing import TYPE_CHECKING

from ringfence.dataclass import dataclass
from ringfence.isolation.capture import Capture
from ringfence.isolation.linux.meter import SAMPLE_SECONDS
from ringfence.isolation.linux.streams import write_to_guest
from ringfence.isolation.protocol import Decoder, Kind, ProtocolError
from ringfence.ports import Job

if TYPE_CHECKING:
    from ringfence.isolation.ends import Streams
    from ringfence.isolation.linux.attached import Attached
    from ringfence.isolation.linux.parked import ParkedWorker

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Farewell:
    """What the guest's parent saw: how it ended and what it used."""

    wait_status: int
    cpu_us: int
    peak_kib: int


class Watch:
    """Feeds the captures from the pipes and notices when no process of the guest is left."""

    def __init__(
        self,
        worker: ParkedWorker,
        loop: asyncio.AbstractEventLoop,
        captures: tuple[Capture, Capture],
        job: Job,
        attached: Attached | None = None,
    ) -> None:
        """Made while the worker gets its job; nothing is watched before `begin`."""
        self._attached = attached
        self._loop = loop
        self._worker = worker
        self._limits, self._most_output = job.limits, job.most_output
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Future[str | None] | None = None
        """A look that is taken in another thread."""
        self._meter = worker.meter
        self._kill = worker.kill
        self._pipes = dict(zip((worker.streams.stdout, worker.streams.stderr), captures, strict=True))
        self._terminal: int | None = None
        self._ended: set[int] = set()
        """The pipes that were empty when their last writer was gone: there is nothing left to be drained."""
        self._status = worker.status
        self._pidfd = worker.pidfd
        self._events = worker.events
        self._anchor = worker.anchor
        self._bury = worker.bury
        self.farewell: Farewell | None = None
        """What was said of the guest's end; None when nobody was left to say it."""
        self.over = asyncio.Event()
        """Set when no process of the guest is left."""

    def begin(self) -> None:
        """Start watching; the loop sees one descriptor, which was set up when the worker was parked."""
        self._deadline = self._loop.time() + self._limits.wall_seconds
        self._loop.add_reader(self._events.fileno(), self._look)
        self._look_again_later()
        if self._attached is not None:
            self._attached.begin(self._hear_from)

    def _hear_from(self, terminal: int) -> None:
        """Take what a terminal shows as the one stream there is."""
        self._terminal = terminal
        self._pipes[terminal] = next(iter(self._pipes.values()))
        try:
            self._events.register(terminal, select.EPOLLIN)
        except OSError:  # no room to watch it: nobody would hear of what it shows
            self._kill("unknown")

    def end(self) -> None:
        """Stop watching, as far as that has begun."""
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
        self._loop.remove_reader(self._events.fileno())

    def _look_again_later(self) -> None:
        self._timer = self._loop.call_at(min(self._deadline, self._loop.time() + SAMPLE_SECONDS), self._check_limits)

    def _check_limits(self) -> None:
        """Look at what no cgroup bounds: the time, the cpu time of the whole box, memory where there is no cgroup."""
        if self._loop.time() >= self._deadline:
            over: str | None = "wall_timeout"
        elif not self._meter.walks:
            over = self._meter.exceeded(self._limits)
        else:
            over = None
            if self._looking is None:
                self._look_aside()
        if over is None and self._attached is not None:
            over = self._attached.exceeded()
        if over is None:
            self._look_again_later()
        else:
            self._kill(over)

    def _look_aside(self) -> None:
        """Look in another thread: a guest decides how long it takes, and would keep every other run waiting."""
        with contextlib.suppress(RuntimeError):  # the interpreter is ending, and its runs with it
            self._looking = self._loop.run_in_executor(None, self._meter.exceeded, self._limits)
            self._looking.add_done_callback(self._have_looked)

    def _have_looked(self, looking: asyncio.Future[str | None]) -> None:
        """Take what was seen while the loop went on; of a run that is no longer watched nobody wants to know."""
        self._looking = None
        if not looking.cancelled() and (over := looking.result()) is not None:
            self._kill(over)

    def drain(self) -> None:
        """Take what is left in the pipes; their writers are dead, so every read returns at once."""
        for fd in self._pipes:
            while fd not in self._ended and self._take(fd):
                pass

    def _look(self) -> None:
        told = False
        for fd, what in self._events.poll(0):
            if fd in self._pipes:
                # a terminal that everybody has closed may be opened again
                if not what & select.EPOLLIN and fd != self._terminal:
                    self._ended.add(fd)
                    self._events.unregister(fd)
                elif not self._take(fd):
                    self._events.unregister(fd)
            elif self._attached is not None and fd == self._attached.job.fileno():
                if not self._attached.listen():
                    self._events.unregister(fd)
            elif fd == self._pidfd:
                # a pidfd of pid 1 is readable only after the whole namespace is dead
                self.over.set()
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
            return not self.over.is_set()
        except OSError as error:
            if error.errno != errno.EIO:  # what a terminal says when nobody is left who could write to it
                raise
            return False
        if not data:
            return False
        self._pipes[fd].add(data)
        if self._most_output is not None and not self.over.is_set():
            self._most_output -= len(data)
            if self._most_output < 0:
                self._kill("budget")
                return False  # and is read no further: until it is dead it can only fill its pipe
        return True

    def _end_was_told(self) -> None:
        """The guest has ended; it is over when nothing of it is left, at the latest when its namespace is dead."""
        words = said(self._status, Kind.EXIT)
        if words is not None:
            self.farewell = Farewell(*map(int, words.split()[:3]))
            left = words.split()[3:]
            # nobody is in a hurry about a run that was killed, and its caller may count on an empty box
            if not self._worker.was_killed and self._is_alone(left):
                self.over.set()
                return
        self._events.unregister(self._status)
        self._bury()
        self._events.modify(self._pidfd, select.EPOLLIN)

    def _is_alone(self, left: list[bytes]) -> bool:
        return not left or (self._anchor is not None and self._anchor.is_all_of(left))


class Feed:
    """Writes standard input as fast as the guest reads it."""

    def __init__(self, streams: Streams, loop: asyncio.AbstractEventLoop, data: bytes) -> None:
        """Nothing is written before `begin`."""
        self._streams = streams
        self._loop = loop
        self._left = memoryview(data)
        self._watched = False

    def begin(self) -> None:
        """Write what fits, and the rest when there is room."""
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
            self._left = self._left[write_to_guest(self._streams.stdin, self._left) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._left = self._left[:0]
        if not self._left:
            self.end()


def said(end: socket.socket, kind: Kind) -> bytes | None:
    """Return the payload of the one message that is waiting, if there is one and it is of that kind."""
    try:
        messages = Decoder(limit=_CHUNK).feed(end.recv(_CHUNK))
    except (BlockingIOError, ConnectionError, ProtocolError):
        return None
    return messages[0][1] if messages and messages[0][0] is kind else None
