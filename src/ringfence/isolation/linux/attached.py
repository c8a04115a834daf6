"""A run that somebody stays with: its input kept open, its terminal's outer end, its signals and its ports."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import socket
import stat
import struct
import termios
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ringfence.attachment import Attachment, Observed
from ringfence.errors import CapabilityBlocked, InvalidRequest
from ringfence.isolation.capture import Capture, Overheard
from ringfence.isolation.protocol import Decoder, Kind
from ringfence.outcome import OnOutput
from ringfence.ports import WorkerLost

if TYPE_CHECKING:
    from ringfence.isolation.linux.parked import ParkedWorker
    from ringfence.isolation.linux.passage import Passage

MOST_UNREAD = 256 * 1024
"""How much input waits on our side for a guest that does not read; whoever sends more waits."""

_CHUNK = 4096
_PTMX = os.makedev(5, 2)
_TIOCSIG = 0x40045436
_FROM_A_KEYBOARD = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP})
_TO_THE_GROUP = 4  # PIDFD_SIGNAL_PROCESS_GROUP, since Linux 6.9
_ANCILLARY = socket.CMSG_SPACE(struct.calcsize("3i")) + socket.CMSG_SPACE(struct.calcsize("i"))
_END_OF_INPUT = b"\x04"


class Attached:
    """Implements `ports.Controls` for boxes that share this kernel."""

    def __init__(self, worker: ParkedWorker, loop: asyncio.AbstractEventLoop, attachment: Attachment) -> None:
        """Take hold of the waiting worker.

        Raises:
            WorkerLost: It is gone.
        """
        self._worker = worker
        self._loop = loop
        self._attachment = attachment
        self.terminal = attachment.terminal
        self.job = worker.job
        self.feed = LiveFeed(loop, self._stir)
        self._decoder = Decoder(limit=_CHUNK)
        self._hear_from: Callable[[int], None] | None = None
        self._started = False
        self._outer = -1
        self._over = False
        self._last_stir = loop.time()
        self._passage: Passage | None = None
        self._pidfd = _hold(worker.worker_pid, worker.job)
        if attachment.ports:
            from ringfence.isolation.linux.passage import Passage  # not at the top: few processes are to be reached

            try:
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

    @property
    def observed(self) -> Observed:
        """The box it runs in, as the host saw it when it was sealed."""
        worker = self._worker
        return Observed(worker.sandbox_id, worker.sandbox_type, worker.backend, worker.layers)

    def capture(self, name: str, cap: int, on_output: OnOutput | None) -> Capture:
        """Return a capture that also lets the attached one hear everything, however much that is."""
        return Overheard(name, cap, on_output, self._hear)

    def _hear(self, name: str, data: bytes) -> None:
        self._stir()
        self._attachment.hear(name, data)

    def _stir(self) -> None:
        self._last_stir = self._loop.time()

    async def announce(self, first: bytes) -> None:
        """Hand the controls over, with `first` as the beginning of the guest's input."""
        self.feed.put(first)
        await self._attachment.attach(self)

    def begin(self, hear_from: Callable[[int], None]) -> None:
        """Have the input flow as soon as there is somewhere to put it; a terminal is told of by `hear_from`."""
        self._hear_from = hear_from
        self._stir()
        if self.terminal is None:
            streams = self._worker.streams
            self.feed.flow_into(streams.stdin, owned=True)
            streams.stdin = -1

    def exceeded(self) -> str | None:
        """Name the limit on silence when it has been reached."""
        idle = self._attachment.idle_seconds
        return "idle_timeout" if idle is not None and self._loop.time() - self._last_stir >= idle else None

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

    async def send(self, data: bytes) -> None:
        """Give `data` to the guest's input, all of it or nothing."""
        await self.feed.send(data)

    async def end_input(self) -> None:
        """End the guest's input once it has what was sent; a terminal is told by the character for it."""
        if self.terminal is not None:
            await self.feed.send(_END_OF_INPUT)
        else:
            self.feed.end_when_empty()

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size; the kernel tells the guest."""
        if self.terminal is None:
            raise InvalidRequest("the process has no terminal", reason="no_terminal")
        self._require_life()
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

    def kill(self, why: str) -> None:
        """End everything in the box, while it is this run's."""
        if not self._over:
            self._worker.kill(why)

    def _require_life(self) -> None:
        if self._over:
            raise InvalidRequest("the process is over", reason="process_ended")

    def connect(self, port: int) -> int:
        """Return a connection to a port of the box's own loopback."""
        if self._passage is None or port not in self._attachment.ports:
            raise CapabilityBlocked(
                f"port {port} was not asked for when the process was started",
                reason="port",
                fix="start it with ports=…",
            )
        return self._passage.connect(port)


class LiveFeed:
    """Writes input as it comes and as fast as the guest reads it, and holds no more than a little."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_written: Callable[[], None]) -> None:
        """Nothing flows before there is somewhere to."""
        self._loop = loop
        self._on_written = on_written
        self._fd = -1
        self._owned = False
        self._unread = bytearray()
        self._ending = False
        self._closed = False
        self._watched = False
        self._waiting: list[asyncio.Future[None]] = []

    def begin(self) -> None:
        """Do nothing: it flows since the guest's input was there."""

    def put(self, data: bytes) -> None:
        """Have `data` written first."""
        self._unread += data

    def flow_into(self, fd: int, *, owned: bool) -> None:
        """Write to `fd` from now on, and close it at the end if it is `owned`."""
        if self._closed:
            if owned:
                os.close(fd)
            return
        self._fd, self._owned = fd, owned
        os.set_blocking(fd, False)
        self._write()

    async def send(self, data: bytes) -> None:
        """Take `data` whole, once there is room.

        Raises:
            InvalidRequest: The guest no longer reads, or the input was ended.
        """
        while not (self._closed or self._ending) and self._unread and len(self._unread) + len(data) > MOST_UNREAD:
            waiter = self._loop.create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiter)
        if self._closed or self._ending:
            raise InvalidRequest("the process no longer reads its input", reason="input_closed")
        self._unread += data
        self._write()

    def end_when_empty(self) -> None:
        """Close the input when everything has been read."""
        self._ending = True
        self._write()

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

    def _write(self) -> None:
        if self._fd < 0:
            return
        try:
            while self._unread:
                written = os.write(self._fd, self._unread[:MOST_UNREAD])
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
            self._loop.add_writer(self._fd, self._write)
        elif self._watched and not wanted:
            self._loop.remove_writer(self._fd)
        self._watched = wanted

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)


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


def _is_outer_end(fd: int) -> bool:
    """Whether `fd` is what opens a terminal: never believed of a descriptor that came out of a box."""
    seen = os.fstat(fd)
    return stat.S_ISCHR(seen.st_mode) and seen.st_rdev == _PTMX
