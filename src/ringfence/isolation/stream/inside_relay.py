"""The two sides of a container's init: the host at the end of one stream, the guest at the end of three."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import struct

from ringfence.isolation.linux import kernel
from ringfence.isolation.protocol import Decoder, Kind, encode
from ringfence.isolation.stream.wire import PIECE_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_READ_BYTES = 1 << 16  # a larger buffer is mapped and unmapped for every read, which gVisor is slow at
_INIT_AND_ANCHOR = 2
_EVERY_CHILD = 0x40000000  # __WALL: also those that were started to end without a signal
_HIGH_WATER = 1 << 18  # of words the host has not taken; a guest that says more waits
_TIOCSWINSZ, _TIOCSIG = 0x5414, 0x40045436
_FROM_A_KEYBOARD = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)


class Stream:
    """The way to the host and back, in messages."""

    def __init__(self, inlet: int, outlet: int) -> None:
        """Take over both ends."""
        self.inlet = inlet
        self.outlet = outlet
        self._decoder = Decoder()
        self._unsent = bytearray()
        self._ahead: list[tuple[Kind, bytes]] = []
        for fd in (inlet, outlet):
            os.set_blocking(fd, False)

    @property
    def is_full(self) -> bool:
        """Whether the host has to take something before more may be said."""
        return len(self._unsent) >= _HIGH_WATER

    @property
    def is_empty(self) -> bool:
        """Whether the host has taken everything."""
        return not self._unsent

    def say(self, kind: Kind, payload: bytes = b"") -> None:
        """Have a message sent, now or when there is room."""
        self._unsent += encode(kind, payload)
        self.send()

    def send(self) -> None:
        """Send as much as there is room for."""
        try:
            while self._unsent:
                del self._unsent[: os.write(self.outlet, self._unsent[:PIECE_BYTES])]
        except BlockingIOError:
            return
        except OSError:
            _leave()

    def flush(self, most: int = 0) -> None:
        """Wait until no more than `most` bytes are unsent; if the host goes away meanwhile, so does everything."""
        while len(self._unsent) > most:
            poll = select.poll()
            poll.register(self.outlet, select.POLLOUT)
            poll.poll()
            self.send()

    def heard(self) -> list[tuple[Kind, bytes]]:
        """Return what the host has said; when it is gone, everything here goes too."""
        if self._ahead:
            ahead, self._ahead = self._ahead, []
            return ahead
        try:
            data = os.read(self.inlet, _READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            _leave()
        if not data:
            _leave()
        return self._decoder.feed(data)

    def next(self) -> tuple[Kind, bytes]:
        """Wait for one message."""
        while not self._ahead:
            poll = select.poll()
            poll.register(self.inlet, select.POLLIN)
            poll.poll()
            self._ahead = self.heard()
        return self._ahead.pop(0)


class Guest:
    """The worker and what becomes of it: its pipes or its terminal, and its end."""

    def __init__(self, pid: int, stdin: int, outputs: dict[int, Kind], *, anchored: bool) -> None:
        """Take over the outer ends of its streams."""
        self._anchored = anchored
        self.pid = pid
        self.stdin = stdin
        self.outputs = outputs
        self.terminal = -1
        self.wait_status: int | None = None
        self._left_nobody = False
        self._unread = bytearray()
        self._ending = False
        self._awaits_terminal = False
        self._size: tuple[int, int] | None = None
        for fd in (stdin, *outputs):
            os.set_blocking(fd, False)

    @property
    def wants_input(self) -> bool:
        """Whether there is something it has not read."""
        return self.stdin >= 0 and bool(self._unread) and not self._awaits_terminal

    def await_terminal(self) -> None:
        """Keep what is typed until there is something to type it into."""
        self._awaits_terminal = True

    def take_terminal(self, outer: int) -> None:
        """Speak through a terminal from now on, instead of through pipes."""
        os.close(self.stdin)
        self.stdin = self.terminal = outer
        os.set_blocking(outer, False)
        self.outputs[outer] = Kind.STDOUT
        self._awaits_terminal = False
        if self._size is not None:
            self.resize(*self._size)

    def feed(self, data: bytes) -> int | None:
        """Give it `data`, or the end of its input; return how much it took, or None when it takes no more."""
        if not data:
            self._ending = True
        self._unread += data
        return self.write()

    def write(self) -> int | None:
        """Write what it takes now."""
        taken = 0
        if self.stdin < 0:
            return None
        if self._awaits_terminal:
            return 0
        try:
            while self._unread:
                count = os.write(self.stdin, self._unread[:PIECE_BYTES])
                del self._unread[:count]
                taken += count
        except BlockingIOError:
            return taken
        except OSError:  # nobody reads any more
            self.end_input()
            return None
        if self._ending:
            self.end_input()
        return taken

    def end_input(self) -> None:
        """Close its input; a terminal stays, for its other half."""
        self._unread.clear()
        if self.stdin >= 0 and self.stdin != self.terminal:
            os.close(self.stdin)
        self.stdin = -1

    def read(self, fd: int) -> bytes:
        """Return the next bytes of an output; nothing when it is over, or empty with nobody left to fill it."""
        try:
            return os.read(fd, PIECE_BYTES)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EAGAIN):  # the first is how a terminal ends
                raise
            return b""

    def resize(self, rows: int, columns: int) -> None:
        """Give its terminal another size, now or when it has one."""
        self._size = rows, columns
        if self.terminal >= 0:
            fcntl.ioctl(self.terminal, _TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def signal(self, number: int) -> None:
        """Send a signal: from the terminal to its foreground, otherwise to the worker's group."""
        if self.wait_status is not None:
            return
        if self.terminal >= 0 and number in _FROM_A_KEYBOARD and self._type_signal(number):
            return
        with contextlib.suppress(OSError):  # it is just ending
            os.killpg(self.pid, number)

    def _type_signal(self, number: int) -> bool:
        """Have the terminal send a signal to its foreground.

        gVisor's terminals cannot, nor do they tell who that is: there it goes to the youngest group of the session,
        which is what a shell started last.
        """
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.terminal, _TIOCSIG, number)
            return True
        with contextlib.suppress(OSError):
            os.killpg(max(_groups_of(self.pid), default=self.pid), number)
            return True
        return False

    def reap(self) -> bool:
        """Wait for whoever is dead; True when the worker was among them, or was before."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | _EVERY_CHILD)
                if not pid:
                    break
                if pid == self.pid:
                    self.wait_status = status
        except ChildProcessError:
            self._left_nobody = True
        return self.wait_status is not None

    def kill(self) -> None:
        """Kill it and everything it started, its anchor too."""
        self._anchored = False
        _kill_the_rest()

    def bury(self) -> None:
        """End and reap everything; when this returns, this process is alone, or with an anchor that nobody can wake."""
        if self._left_nobody or (self._anchored and kernel.tasks_in_view() == _INIT_AND_ANCHOR):
            return
        try:
            while True:
                _kill_the_rest()
                pid, status = os.waitpid(-1, _EVERY_CHILD)
                if pid == self.pid:
                    self.wait_status = status
        except ChildProcessError:
            return


def _groups_of(session: int) -> set[int]:
    """Return the process groups of a session that have members."""
    groups = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has just ended
            if int(fields[3]) == session:
                groups.add(int(fields[2]))
    return groups


def _kill_the_rest() -> None:
    """Kill everything but this process; a fork that is under way fails, so nobody slips through."""
    if os.getpid() != 1:  # anywhere else this would end everything the user has
        os._exit(1)
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def listen_for_deaths() -> int:
    """Return a descriptor that becomes readable when a child ends."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _heard)
    return readable


def _heard(*_: Any) -> None:
    """Do nothing: that there is a handler wakes the one who waits."""


def _leave() -> NoReturn:
    """End; as this is pid 1, the kernel ends everything else."""
    os._exit(0)
