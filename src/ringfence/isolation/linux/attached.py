"""A run that somebody stays with: its input kept open, its terminal's outer end, its signals and its ports."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import stat
import struct
import termios
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ringfence.attachment import Attachment
from ringfence.errors import CapabilityBlocked, IsolationUnavailable
from ringfence.isolation.company import MOST_UNREAD, Company, Inflow
from ringfence.isolation.linux.streams import write_to_guest
from ringfence.isolation.protocol import Decoder, Kind
from ringfence.ports import WorkerLost

if TYPE_CHECKING:
    from ringfence.isolation.linux.parked import ParkedWorker
    from ringfence.isolation.linux.passage import Passage

_CHUNK = 4096
_PTMX = os.makedev(5, 2)
_TIOCSIG = 0x40045436
_FROM_A_KEYBOARD = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP})
_TO_THE_GROUP = 4  # PIDFD_SIGNAL_PROCESS_GROUP, since Linux 6.9
_ANCILLARY = socket.CMSG_SPACE(struct.calcsize("3i")) + socket.CMSG_SPACE(struct.calcsize("i"))


class Attached(Company):
    """Implements `attachment.Controls` for boxes that share this kernel."""

    feed: LiveFeed

    def __init__(self, worker: ParkedWorker, loop: asyncio.AbstractEventLoop, attachment: Attachment) -> None:
        """Take hold of the waiting worker.

        Raises:
            WorkerLost: It is gone.
            IsolationUnavailable: Nothing more can be watched here; nothing of the run has begun.
        """
        super().__init__(worker, loop, attachment)
        self._worker = worker
        self.job = worker.job
        self.feed = LiveFeed(loop, self._stir)
        self._decoder = Decoder(limit=_CHUNK)
        self._hear_from: Callable[[int], None] | None = None
        self._started = False
        self._outer = -1
        self._passage: Passage | None = None
        self._pidfd = _hold(worker.worker_pid, worker.job)
        try:
            _watch(worker)
            if attachment.ports:
                from ringfence.isolation.linux.passage import Passage  # not at the top: few processes are to be reached

                self._passage = Passage(worker.worker_pid, self._pidfd)
        except BaseException:
            os.close(self._pidfd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Let go of everything that is only for the time of the run; the controls do nothing from now on."""
        self._over = True
        self.feed.end()
        if self._passage is not None:
            self._passage.close()
        for fd in (self._outer, self._pidfd):
            if fd >= 0:
                os.close(fd)
        self._outer = self._pidfd = -1

    def begin(self, hear_from: Callable[[int], None]) -> None:
        """Have the input flow as soon as there is somewhere to put it; a terminal is told of by `hear_from`."""
        self._hear_from = hear_from
        self._stir()
        if self.terminal is None:
            streams = self._worker.streams
            stdin, streams.stdin = streams.stdin, -1  # the feed's to close, also when it does not flow
            self.feed.flow_into(stdin, owned=True)

    def listen(self) -> bool:
        """Take what the worker says before it becomes the guest; False when it has said all it will."""
        try:
            data, ancillary, _, _ = self.job.recvmsg(_CHUNK, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                for (fd,) in struct.iter_unpack("i", payload[: len(payload) // 4 * 4]):
                    self._take_terminal(fd)
        for kind_said, _ in self._decoder.feed(data):
            self._started = self._started or kind_said is Kind.STARTED
        return bool(data)

    def has_started(self) -> bool:
        """Whether the job became the guest; asked when the guest is gone."""
        while not self._started and self.listen():
            pass
        return self._started

    def _take_terminal(self, fd: int) -> None:
        """Take over the outer end of the guest's terminal, if that is what it is."""
        if self.terminal is None or self._outer >= 0 or not _is_outer_end(fd) or self._hear_from is None:
            os.close(fd)
            self.kill("unknown")
            return
        self._outer = fd
        os.set_blocking(fd, False)
        self.feed.flow_into(fd, owned=False)
        self._hear_from(fd)

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size; the kernel tells the guest."""
        self._require_terminal()
        self.terminal = rows, columns
        if self._outer >= 0:
            fcntl.ioctl(self._outer, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def signal(self, number: int) -> None:
        """Send a signal: from the terminal to its foreground, otherwise to the worker and its group."""
        self._require_life()
        if self._outer >= 0 and number in _FROM_A_KEYBOARD:
            fcntl.ioctl(self._outer, _TIOCSIG, number)
            return
        with contextlib.suppress(ProcessLookupError):
            try:
                signal.pidfd_send_signal(self._pidfd, number, None, _TO_THE_GROUP)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # an older kernel; by the group's number it could be somebody else's by now
                signal.pidfd_send_signal(self._pidfd, number)

    def connect(self, port: int) -> int:
        """Return a connection to a port of the box's own loopback."""
        if self._passage is None or port not in self._attachment.ports:
            raise CapabilityBlocked(
                f"port {port} was not asked for when the process was started",
                reason="port",
                fix="start it with ports=…",
            )
        return self._passage.connect(port)


class LiveFeed(Inflow):
    """Writes input as it comes to a descriptor of the guest's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_written: Callable[[], None]) -> None:
        """Nothing flows before there is somewhere to."""
        super().__init__(loop)
        self._on_written = on_written
        self._fd = -1
        self._owned = False
        self._watched = False

    def begin(self) -> None:
        """Do nothing: it flows since the guest's input was there."""

    def flow_into(self, fd: int, *, owned: bool) -> None:
        """Write to `fd` from now on, and close it at the end if it is `owned`."""
        if self._closed:
            if owned:
                os.close(fd)
            return
        self._fd, self._owned = fd, owned
        os.set_blocking(fd, False)
        self._flow()

    def end(self) -> None:
        """Close it now; a guest that ended leaves the rest unread."""
        if self._closed:
            return
        self._closed = True
        self._unread.clear()
        if self._fd >= 0:
            self._watch(wanted=False)  # before the number is free for something else
            if self._owned:
                os.close(self._fd)
            self._fd = -1
        self._wake()

    def _flow(self) -> None:
        if self._fd < 0:
            return
        try:
            while self._unread:
                written = write_to_guest(self._fd, self._unread[:MOST_UNREAD])
                del self._unread[:written]
                self._on_written()
        except BlockingIOError:
            self._watch(wanted=True)
            return
        except OSError:  # nobody reads any more
            self.end()
            return
        finally:
            self._wake()
        self._watch(wanted=False)
        if self._ending:
            self.end()

    def _watch(self, *, wanted: bool) -> None:
        if wanted and not self._watched:
            self._loop.add_writer(self._fd, self._flow)
        elif self._watched and not wanted:
            self._loop.remove_writer(self._fd)
        self._watched = wanted


def _hold(pid: int, job: socket.socket) -> int:
    """Return a pidfd of the worker that waits on the other end of `job`.

    Raises:
        WorkerLost: It does not wait any more.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise WorkerLost("the worker is gone") from None
    try:
        gone = not job.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return pidfd  # it still holds its end, so the number was its own when the descriptor was made
    except OSError:
        gone = True
    os.close(pidfd)
    raise WorkerLost("the worker ended before its job" if gone else "the worker spoke out of turn")


def _watch(worker: ParkedWorker) -> None:
    """Have what the worker will say wake its watch: now, since a guest can use up what its user may watch.

    Not when it is parked: the end of its words would wake every run that nobody stays with.
    """
    try:
        worker.events.register(worker.job, select.EPOLLIN)
    except OSError as error:
        raise IsolationUnavailable(
            f"the run cannot be watched: {error.strerror}", fix="raise fs.epoll.max_user_watches"
        ) from error


def _is_outer_end(fd: int) -> bool:
    """Whether `fd` is what opens a terminal: never believed of a descriptor that came out of a box."""
    seen = os.fstat(fd)
    return stat.S_ISCHR(seen.st_mode) and seen.st_rdev == _PTMX
