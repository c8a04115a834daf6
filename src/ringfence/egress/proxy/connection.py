"""One connection out of a box, from its first byte to its last."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from ringfence.dataclass import dataclass
from ringfence.egress.proxy import hello, messages
from ringfence.egress.proxy.chunks import Chunks
from ringfence.egress.proxy.ledger import Entry, Ledger
from ringfence.egress.proxy.refusal import BAD_GATEWAY, BAD_REQUEST, FORBIDDEN, TOO_LATE, Refusal, answer
from ringfence.egress.proxy.rules import Rules
from ringfence.egress.proxy.upstream import Dialler
from ringfence.egress.proxy.wires import Wire
from ringfence.operation.target import Target

_log = logging.getLogger(__name__)
_ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_SWITCHING, _FINAL = 101, 200
_MOST_HEADS_BEFORE_ANSWER: Final = 8
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a connection may take over each of its parts, in seconds."""

    head: float = 30.0
    idle: float = 120.0


class Connection:
    """Carries one request, or one tunnel; what is refused is told to the client and to the ledger, and ends it."""

    def __init__(
        self, client: Wire, rules: Rules, ledger: Ledger, dialler: Dialler, patience: Patience, buffer: memoryview
    ) -> None:
        """Nothing is read yet."""
        self._client, self._rules, self._ledger, self._dialler = client, rules, ledger, dialler
        self._patience = patience
        self._buffer = buffer
        self._host: Wire | None = None
        self._entry = Entry("", 0)
        self._has_answer = False
        """Whether the client has been sent what it takes for the host's words; then ours would be misread."""
        self._deadline: asyncio.Timeout | None = None

    async def serve(self) -> None:
        """Carry it to its end; never raises but for being cancelled."""
        self._ledger.begin(self._entry)
        refused = b""
        try:
            await self._carry()
        except Refusal as refusal:
            self._entry.decision, self._entry.reason = refusal.decision, refusal.reason
            refused = answer(refusal)
        except OSError:  # either side went away; what was moved is counted
            pass
        except Exception:  # noqa: BLE001  one connection must not end those of others
            _log.exception("a connection out of a box failed")
            self._entry.decision, self._entry.reason = "failed", "internal"
        finally:
            self._ledger.end(self._entry)
            if self._host is not None:
                self._host.close()
            try:
                await self._say(refused)
            finally:
                self._client.close()

    async def _say(self, refused: bytes) -> None:
        """Tell a client why, unless it already has words of the host or is in a tunnel."""
        if not refused or self._has_answer:
            return
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._patience.head):
                await self._client.send(refused)
                self._client.end_sending()
                # what it still sends would be answered with a reset, which takes our words away from it
                while await self._client.read_more() and len(self._client.ahead) < messages.MOST_HEAD_BYTES:
                    pass

    async def _carry(self) -> None:
        request = await self._head()
        if request.method == "CONNECT":
            await self._tunnel(messages.tunnel_target(request))
            return
        where = messages.request_target(request)
        self._name(where, request.method)
        refusal = self._rules.refuse_request(request.method, where)
        if refusal is not None:
            raise refusal
        await self._request(request, where, await self._reach(where))

    def _name(self, where: Target, method: str) -> None:
        self._entry.host, self._entry.port, self._entry.method = where.host, where.port, method

    async def _head(self) -> messages.Request:
        head = await self._in_time(self._client.read_until(messages.END_OF_HEAD, messages.MOST_HEAD_BYTES))
        if head is None:
            raise Refusal(BAD_REQUEST, "invalid", "there is no whole head of a request")
        return messages.read_request(head)

    async def _reach(self, where: Target) -> Wire:
        end, self._entry.address = await self._dialler.reach(where, self._rules)
        self._host = Wire(end, self._buffer)
        return self._host

    # --- plain requests ---

    async def _request(self, request: messages.Request, where: Target, host: Wire) -> None:
        framing = messages.framing_of(request)
        head = messages.forwarded(request, where, framing)
        self._count_out(len(head), whole=True)
        await host.send(head)
        if request.expects_word:
            await self._client.send(_CONTINUE)
        async with self._while_it_moves():
            sending = asyncio.create_task(self._body(host, framing))
            answering = asyncio.create_task(self._answer(host, request.method))
            try:
                await asyncio.wait((sending, answering), return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    with contextlib.suppress(OSError):  # a host may answer before it has heard everything
                        sending.result()
                await answering
            finally:
                await _end(sending, answering)

    async def _body(self, host: Wire, framing: messages.Framing) -> None:
        if framing.chunked:
            chunks = Chunks()
            while not chunks.is_over:
                if not self._client.ahead and not await self._client.read_more():
                    raise _ended_early()
                data, self._client.ahead = self._client.ahead, b""
                out = chunks.feed(data)
                self._count_out(len(out), whole=True)
                await host.send(out)
        elif framing.length and not await self._client.pour_into(host, self._count_out, most=framing.length):
            raise _ended_early() if self._ledger.may_send(1) else _spent()

    async def _answer(self, host: Wire, method: str) -> None:
        for _ in range(_MOST_HEADS_BEFORE_ANSWER):
            head = await host.read_until(messages.END_OF_HEAD, messages.MOST_HEAD_BYTES)
            if head is None:
                raise Refusal(BAD_GATEWAY, "answer", "the host ended without an answer")
            self._count_in(len(head), whole=True)
            response = messages.read_response(head)
            if response.status == _SWITCHING:
                raise Refusal(BAD_GATEWAY, "answer", "the host changes to a protocol that nobody asked for")
            if response.status >= _FINAL:
                break
        else:
            raise Refusal(BAD_GATEWAY, "answer", "the host keeps announcing an answer")
        self._has_answer = True
        await self._client.send(messages.answered(response))
        length = messages.answer_length(method, response)
        whole = await host.pour_into(self._client, self._count_in, most=length)
        if not whole and not self._ledger.may_receive(1):
            raise _spent()

    # --- tunnels ---

    async def _tunnel(self, where: Target) -> None:
        self._name(where, "CONNECT")
        refusal = self._rules.refuse_tunnel(where)
        plain_refusal = self._rules.refuse_plain_tunnel(where)
        if refusal is not None and plain_refusal is not None:
            raise refusal
        host = await self._reach(where)
        await self._client.send(_ESTABLISHED)
        if not self._client.ahead and not await self._in_time(self._client.read_more()):
            return
        if self._client.ahead[0] != hello.HANDSHAKE:
            await self._in_the_open(where, host, plain_refusal)
            return
        self._has_answer = True  # from here on the client takes our words for the host's
        try:
            if refusal is not None:
                raise refusal
            while not hello.require_name(where.host, self._client.ahead):
                if not await self._in_time(self._client.read_more()):
                    return
        except Refusal:
            with contextlib.suppress(OSError):
                await self._client.send(hello.UNRECOGNISED_NAME)
            raise
        async with self._while_it_moves():
            ways = (
                asyncio.create_task(self._one_way(self._client, host, self._count_out)),
                asyncio.create_task(self._one_way(host, self._client, self._count_in)),
            )
            try:
                await asyncio.gather(*ways)
            finally:
                await _end(*ways)

    async def _in_the_open(self, where: Target, host: Wire, refusal: Refusal | None) -> None:
        """Carry a plain request through a tunnel as if it had come without one: some clients tunnel everything."""
        if refusal is not None:
            raise Refusal(FORBIDDEN, "not_tls", f"what is in the tunnel to {where.host} is not TLS")
        request = await self._head()
        meant = messages.request_target(request, where)
        self._entry.method = request.method
        refused = self._rules.refuse_request(request.method, meant)
        if refused is not None:
            raise refused
        await self._request(request, meant, host)

    async def _one_way(self, from_: Wire, to: Wire, count: Callable[[int], int]) -> None:
        if not await from_.pour_into(to, count):
            raise _spent()
        to.end_sending()

    # --- time ---

    async def _in_time(self, step: Awaitable[_T]) -> _T:
        try:
            async with asyncio.timeout(self._patience.head):
                return await step
        except TimeoutError:
            raise Refusal(TOO_LATE, "timeout", "what was due did not come in time") from None

    @asynccontextmanager
    async def _while_it_moves(self) -> AsyncIterator[None]:
        """End what neither side has moved a byte on for too long."""
        try:
            async with asyncio.timeout(self._patience.idle) as self._deadline:
                yield
        except TimeoutError:
            raise Refusal(TOO_LATE, "idle", "nothing moved for too long") from None
        finally:
            self._deadline = None

    # --- what is counted ---

    def _count_out(self, size: int, *, whole: bool = False) -> int:
        allowed = self._ledger.may_send(size)
        if whole and allowed < size:
            raise _spent()
        self._ledger.sent(self._entry, allowed)
        self._stir()
        return allowed

    def _count_in(self, size: int, *, whole: bool = False) -> int:
        allowed = self._ledger.may_receive(size)
        if whole and allowed < size:
            raise _spent()
        self._ledger.received(self._entry, allowed)
        self._stir()
        return allowed

    def _stir(self) -> None:
        if self._deadline is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time() + self._patience.idle)


def _spent() -> Refusal:
    return Refusal(FORBIDDEN, "budget", "this run has moved all the bytes it may")


def _ended_early() -> Refusal:
    return Refusal(BAD_REQUEST, "framing", "the body ended early")


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
