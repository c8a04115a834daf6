"""The proxy of an engine: one thread of its own, and in it a gate for each box that has a way out.

Of its own, because the loop of whoever runs code may be busy or gone while a guest waits. When it ends, for whatever
reason, its gates close with it: then nobody accepts, and a box is as if it had no way out at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from ringfence.authority.caller import LOCAL
from ringfence.egress.dialing import system_addresses
from ringfence.egress.proxy.connection import Connection
from ringfence.egress.proxy.inspection import Inspection
from ringfence.egress.proxy.ledger import MOST_IN_ALL, Entry, Ledger
from ringfence.egress.proxy.meter import Meter, Patience
from ringfence.egress.proxy.refusal import BUSY, Refusal, answer
from ringfence.egress.proxy.rules import Rules
from ringfence.egress.proxy.upstream import Dialler, MakeSocket, Resolve, plain_socket
from ringfence.egress.proxy.wires import Wire, new_buffer
from ringfence.errors import Unavailable
from ringfence.outcome import Network

_log = logging.getLogger(__name__)
MOST_CONNECTIONS: Final = 512
"""Of one box at a time, where this process may open enough files."""
_RESOLVERS: Final = 32
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ROOM_SECONDS: Final = 0.1


def most_connections() -> tuple[int, int]:
    """Return how many connections there may be at a time, of all boxes and of one.

    Each holds two descriptors of this process, which needs as many again for everything else: a guest that opens what
    it can must leave the runs of others theirs, and other boxes their way out.
    """
    of_all = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
    return of_all, max(1, min(MOST_CONNECTIONS, of_all // 4))


def has_room(own: int, in_all: int, most: int) -> bool:
    """Whether a tenant with `own` of all connections may have one more: while it has fewer than are left.

    So one tenant alone gets half, those who come together get the same, and whoever comes later finds half of what
    was left before the last one came.
    """
    return own < most - in_all


class Proxy:
    """Opens gates; safe to use from any thread and any event loop."""

    def __init__(
        self,
        *,
        resolve: Resolve = system_addresses,
        make_socket: MakeSocket = plain_socket,
        patience: Patience = Patience(),  # noqa: B008  frozen
    ) -> None:
        """Nothing starts before the first gate is opened."""
        self._resolve, self._make_socket, self._patience = resolve, make_socket, patience
        self._lock = threading.Lock()
        self._thread: _Thread | None = None

    def open(
        self, door: int, rules: Rules, ledger: Ledger, inspection: Inspection | None = None, *, tenant: str = LOCAL
    ) -> Gate:
        """Accept what is connected to `door`, of which a copy is kept, and carry it as far as `rules` allow.

        With an `inspection` what is in TLS is read and judged too. All boxes of a `tenant` together leave the other
        tenants their share of the connections.

        Raises:
            Unavailable: There is no room for it; nothing is accepted.
        """
        try:
            listener = socket.socket(fileno=os.dup(door))
        except OSError as error:
            raise Unavailable(f"the way out of the box cannot be opened: {error.strerror}") from error
        listener.setblocking(False)
        gate = Gate(self._running(), listener, rules, ledger, inspection, tenant)
        gate.begin()
        return gate

    def close(self) -> None:
        """End every connection and the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.end()

    def _running(self) -> _Thread:
        with self._lock:
            if self._thread is None or not self._thread.is_ours():
                self._thread = _Thread(self._resolve, self._make_socket, self._patience)
            return self._thread


class _Thread:
    """An event loop in a thread, and what all connections in it share."""

    def __init__(self, resolve: Resolve, make_socket: MakeSocket, patience: Patience) -> None:
        self.loop = asyncio.new_event_loop()
        self.patience = patience
        self.buffer = new_buffer()
        self.gates: set[Gate] = set()
        self._resolvers = ThreadPoolExecutor(_RESOLVERS, thread_name_prefix="ringfence-names")
        self._reaching = resolve, make_socket
        self.most, self.most_of_a_box = most_connections()
        self.connections: Counter[str] = Counter()
        """How many each tenant has."""
        self._pid = os.getpid()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="ringfence-egress", daemon=True)
        self._thread.start()

    def dialler(self) -> Dialler:
        """Return what reaches hosts for one box."""
        return Dialler(self._resolvers, *self._reaching)

    def is_ours(self) -> bool:
        """Whether it runs in this process: a forked child has none."""
        return self._pid == os.getpid() and self._thread.is_alive() and not self._is_over

    def tell(self, act: Callable[[], None]) -> bool:
        """Have something done in the thread; False when there is none any more."""
        try:
            self.loop.call_soon_threadsafe(act)
        except RuntimeError:  # the loop is closed
            return False
        return self.is_ours()

    def end(self) -> None:
        """Stop it, and wait until everything is closed."""
        if self.tell(self.loop.stop):
            self._thread.join()

    def _run(self) -> None:
        # an application may let SIGPIPE end it; a guest that hangs up must not
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self._is_over = True  # before anything else: what is told from now on may never be done
            for gate in tuple(self.gates):
                gate.shut()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            for gate in tuple(self.gates):
                gate.tell(complete=False)
            self.loop.close()
            self._resolvers.shutdown(wait=False, cancel_futures=True)


class Gate:
    """The way out of one box, while its run lasts."""

    def __init__(
        self,
        thread: _Thread,
        listener: socket.socket,
        rules: Rules,
        ledger: Ledger,
        inspection: Inspection | None,
        tenant: str,
    ) -> None:
        """Nothing is accepted before `begin`."""
        self._thread, self._listener, self._rules, self._ledger = thread, listener, rules, ledger
        self._inspection, self._tenant = inspection, tenant
        self._dialler = thread.dialler()
        self._connections: set[asyncio.Task[None]] = set()
        self._accepted = 0
        self._ended: Future[Network] = Future()

    def begin(self) -> None:
        """Accept from now on.

        Raises:
            Unavailable: The proxy is gone.
        """
        self._thread.gates.add(self)  # so that it is shut with the thread, whether or not that gets to it first
        if not self._thread.tell(self._begin):
            self._thread.gates.discard(self)
            self._listener.close()
            raise Unavailable("the egress proxy is gone", fix="run it again")

    async def close(self) -> Network:
        """Shut the gate, end every connection, and return what went through; nothing does any more."""
        if not self._thread.tell(self._finish):
            self.tell(complete=False)
        return await asyncio.shield(asyncio.wrap_future(self._ended))

    def shut(self) -> None:
        """Stop listening, for everybody who holds the socket: whoever connects is refused."""
        with contextlib.suppress(OSError):
            self._thread.loop.remove_reader(self._listener.fileno())
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def tell(self, *, complete: bool) -> None:
        """Say what went through, once."""
        self._thread.gates.discard(self)
        if not self._ended.done():
            self._ended.set_result(self._ledger.total(complete=complete))

    # --- in the thread ---

    def _begin(self) -> None:
        self._thread.loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            end, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._pause()
                return
            _log.warning("a box's way out was closed: %s", error)
            self.shut()
            return
        self._accepted += 1
        thread = self._thread
        room = has_room(thread.connections[self._tenant], thread.connections.total(), thread.most)
        busy = len(self._connections) >= thread.most_of_a_box or not room
        if busy or self._accepted > MOST_IN_ALL:
            self._turn_away(end)
            return
        thread.connections[self._tenant] += 1
        task = thread.loop.create_task(self._serve(end))
        self._connections.add(task)
        task.add_done_callback(lambda ended: self._let_go(ended, end))

    def _let_go(self, ended: asyncio.Task[None], end: socket.socket) -> None:
        self._connections.discard(ended)
        self._thread.connections -= Counter({self._tenant: 1})  # and forgets a tenant that has none
        end.close()  # also of one that was cancelled before it began

    def _pause(self) -> None:
        """Let those who wait wait a little longer: this process can open nothing more at the moment."""
        self._thread.loop.remove_reader(self._listener.fileno())
        self._thread.loop.call_later(_ROOM_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._thread.loop.add_reader(self._listener.fileno(), self._accept)

    def _turn_away(self, end: socket.socket) -> None:
        most = self._thread.most_of_a_box
        refusal = Refusal(
            BUSY,
            "too_many",
            f"a box has at most {most} connections at a time, {MOST_IN_ALL} in all, its tenant as many as are left",
        )
        self._ledger.end(self._ledger.begin(Entry("", 0, decision=refusal.decision, reason=refusal.reason)))
        with contextlib.suppress(OSError):
            end.send(answer(refusal), socket.MSG_DONTWAIT)
        end.close()

    async def _serve(self, end: socket.socket) -> None:
        thread = self._thread
        wire = Wire(end, thread.buffer)
        meter = Meter(self._ledger, thread.patience)
        await Connection(wire, self._rules, meter, self._dialler, self._inspection).serve()

    def _finish(self) -> None:
        if not self._ended.done():
            self.shut()
            task = self._thread.loop.create_task(self._end_connections())
            task.add_done_callback(lambda _: self.tell(complete=True))

    async def _end_connections(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
