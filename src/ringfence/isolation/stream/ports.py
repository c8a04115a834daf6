"""Connections across the border of a container, in both directions, through the stream that carries all else.

A thread stands between the stream and whoever talks over it: it takes out what belongs to connections and puts theirs
in, so that a connection can be read and written by anybody, also by one who keeps the event loop of the run waiting.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import threading
import weakref
from collections import deque
from concurrent.futures import Future

from ringfence.errors import Unavailable
from ringfence.isolation.ends import Streams
from ringfence.isolation.protocol import Decoder, Kind, ProtocolError, encode
from ringfence.isolation.stream.channels import ABOUT_ONE, CALLS, MOST_CALLS, Channels, numbered, numbering
from ringfence.isolation.stream.line import MOST_HEARD, Talk
from ringfence.isolation.stream.way_out import WayOut

ANSWER_SECONDS = 15.0
MOST_CONNECTIONS = 64
"""Into one container at one time."""

_CHUNK = 1 << 18
_MOST_UNTAKEN = 1 << 20
_OURS = (Kind.DIAL, Kind.CALL, *ABOUT_ONE)
_NONSENSE = bytes(5)  # no message has no length: whoever reads it stops believing
_all_ways: weakref.WeakSet[Ways] = weakref.WeakSet()
_counting = threading.Lock()


class Ways:
    """The connections of one container; they are there until `end`, the stream until the talk is closed."""

    def __init__(self, talk: Talk, way_out: WayOut | None, tenant: str) -> None:
        """Step between `talk` and its container, which is parked and silent; its guest's calls are for `way_out`.

        All containers of a `tenant` together leave the others their share of the connections.
        """
        self.tenant = tenant
        from_talk, to_box = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        to_talk, from_box = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._box = Streams(talk.streams.stdin, talk.streams.stdout, -1)
        self._talk = Streams(from_box, from_talk, -1)
        talk.streams.stdin, talk.streams.stdout = to_box, to_talk
        self._wake_end, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._said, self._heard = Decoder(), Decoder(limit=MOST_HEARD)
        self._to_box, self._to_talk = bytearray(), bytearray()
        self._box_ended = False
        self._wanted: deque[tuple[int, socket.socket, Future[None]]] = deque()
        self._asked: dict[int, tuple[socket.socket, Future[None]]] = {}
        self._channels = Channels(self._say, lambda: len(self._to_box) < _CHUNK)
        self._next = 0
        self._way_out = way_out
        self._door = -1 if way_out is None else os.dup(way_out.door)
        self._called = 0
        self._has_job = False
        self._over = False
        self._lock = threading.Lock()
        with _counting:
            _all_ways.add(self)
        self._thread = threading.Thread(target=self._serve, name="ringfence-ports", daemon=True)
        self._thread.start()

    @property
    def open_now(self) -> int:
        """How many connections there are at the moment; for any thread."""
        return len(self._channels)

    def connect(self, port: int) -> int:
        """Return a descriptor connected to `port` of the container's own loopback; blocks, and is for any thread.

        Raises:
            Unavailable: Nobody listens there, or the container is gone.
        """
        ours, its = socket.socketpair()
        made: Future[None] = Future()
        try:
            with self._lock:
                made_in = len(self._channels) - self._channels.calls
                if self._over or len(self._wanted) + len(self._asked) + made_in >= MOST_CONNECTIONS:
                    ours.close()
                    raise OSError(errno.EMFILE, "the process has ended, or has too many connections")
                self._wanted.append((port, ours, made))
                os.write(self._wake, b"c")
            made.result(ANSWER_SECONDS)
        except OSError as error:  # a time out is one too
            its.close()
            why = error.strerror or "it takes too long"
            raise Unavailable(f"port {port} of the process does not answer: {why}", reason="connect_failed") from None
        return its.detach()

    def end(self) -> None:
        """Let nobody connect any more, and end every connection."""
        with self._lock:
            if not self._over:
                self._over = True
                os.write(self._wake, b"e")

    # --- in the thread ---

    def _serve(self) -> None:
        try:
            while self._step():
                pass
        finally:
            with self._lock:
                self._over = True
                self._end_connections()
                for fd in (self._wake, self._wake_end):
                    os.close(fd)
                self._forget_door()
            self._box.close()
            self._talk.close()

    def _step(self) -> bool:
        """Wait for something and see to it; False when the talk is over."""
        poll = select.poll()
        poll.register(self._wake_end, select.POLLIN)
        if len(self._to_box) < _CHUNK:
            poll.register(self._talk.stdout, select.POLLIN)
        if self._to_talk or self._box_ended:
            poll.register(self._talk.stdin, select.POLLOUT)
        # the second bound is for an init that is not ours any more: ours always takes what it is told
        if len(self._to_talk) < _CHUNK and len(self._to_box) < _MOST_UNTAKEN and not self._box_ended:
            poll.register(self._box.stdout, select.POLLIN)
        if self._to_box:
            poll.register(self._box.stdin, select.POLLOUT)
        if self._door >= 0:
            poll.register(self._door, 0)  # that it was shut is told unasked
        self._channels.watch(poll)
        ready = dict(poll.poll())
        # first: what is opened below may get the number of what is closed below
        self._channels.see_to(ready)
        if self._door in ready:
            self._forget_door()
            self._say(Kind.CALL, b"")
        if self._wake_end in ready:
            os.read(self._wake_end, 4096)
            self._take_orders()
        if self._box.stdout in ready:
            self._hear_box()
        if self._talk.stdout in ready and not self._hear_talk():
            return False
        self._to_box = _write(self._box.stdin, self._to_box)
        self._to_talk = _write(self._talk.stdin, self._to_talk)
        return not (self._box_ended and not self._to_talk)

    def _take_orders(self) -> None:
        with self._lock:
            if self._over:
                self._end_connections()
            while self._wanted and self._has_job:  # before it, the init expects nothing but its job
                port, ours, made = self._wanted.popleft()
                self._next += 1
                self._asked[self._next] = ours, made
                self._say(Kind.DIAL, numbering(self._next) + b"%d" % port)

    def _say(self, kind: Kind, payload: bytes) -> None:
        self._to_box += encode(kind, payload)

    def _hear_talk(self) -> bool:
        data = _read(self._talk.stdout)
        for kind, payload in self._said.feed(data):
            self._to_box += encode(kind, payload)
            if kind is Kind.START:
                self._has_job = True
                self._take_orders()
        return bool(data)

    def _hear_box(self) -> None:
        data = _read(self._box.stdout)
        self._box_ended = not data
        try:
            for kind, payload in self._heard.feed(data):
                if kind in _OURS:
                    self._hear(kind, payload)
                else:
                    self._to_talk += encode(kind, payload)
        except (ProtocolError, ValueError):
            self._to_talk += _NONSENSE
            self._box_ended = True

    def _hear(self, kind: Kind, payload: bytes) -> None:
        """Take a word about a connection; a `ValueError` when it cannot be."""
        number, rest = numbered(payload)
        if kind is Kind.CALL:
            self._called_out(number, rest)
        elif not (0 < number <= self._next or CALLS <= number < CALLS + self._called):
            raise ValueError("a connection that there never was")
        elif kind is Kind.DIAL:
            self._answered(number, rest)
        elif not self._channels.hear(kind, number, rest):
            raise ValueError("more of a connection than there was room for")

    def _called_out(self, number: int, rest: bytes) -> None:
        """Lead what the guest connected to on to whoever accepts it; where nobody does, it ends here."""
        if self._way_out is None or number != CALLS + self._called or rest:
            raise ValueError("a call that cannot be")
        self._called += 1
        try:
            if self._over or not self._may_call():
                raise OSError(errno.EMFILE, "too many connections")
            self._channels.add(number, self._way_out.connect())
        except OSError:
            self._say(Kind.CUT, numbering(number))

    def _may_call(self) -> bool:
        """Whether this process may open enough, and the tenant has fewer than it leaves, as the proxy has it too.

        Of each connection the proxy holds two descriptors more, and frees its own when it is done, whether or not the
        guest has read the end of it. The one here stays until then.
        """
        may_open = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        with _counting:
            open_now = [(ways.tenant, ways.open_now) for ways in _all_ways]
        of_all = sum(count for _, count in open_now)
        own = sum(count for tenant, count in open_now if tenant == self.tenant)
        return own < may_open // 4 - of_all and self._channels.calls < min(MOST_CALLS, may_open // 16 + 16)

    def _forget_door(self) -> None:
        if self._door >= 0:
            os.close(self._door)
            self._door = -1

    def _answered(self, number: int, code: bytes) -> None:
        if not code.isdigit() or len(code) > 4:
            raise ValueError("an answer that is none")
        with self._lock:
            ours, made = self._asked.pop(number, (None, None))
            if ours is None or made is None:
                return
            if not int(code) and not self._over:
                self._channels.add(number, ours)
                made.set_result(None)
                return
        ours.close()
        made.set_exception(OSError(int(code), os.strerror(int(code))))

    def _end_connections(self) -> None:
        """End all of them; the lock is held."""
        waiting = [(ours, made) for _, ours, made in self._wanted] + list(self._asked.values())
        self._wanted.clear()
        self._asked.clear()
        for ours, made in waiting:
            ours.close()
            made.set_exception(OSError(errno.ECONNRESET, "the process has ended"))
        self._channels.close()


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _CHUNK)
    except OSError:  # ready, so never for want of data
        return b""


def _write(fd: int, data: bytearray) -> bytearray:
    """Write what there is room for and return the rest; nothing is left of it when nobody reads any more."""
    with contextlib.suppress(BlockingIOError):
        try:
            while data:
                del data[: os.write(fd, data[:_CHUNK])]
        except (BrokenPipeError, ConnectionError):
            data.clear()
    return data
