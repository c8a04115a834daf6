"""One connection out of a box, from its first byte to its last."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from ringfence.egress.proxy import hello, messages
from ringfence.egress.proxy.chunks import Chunks
from ringfence.egress.proxy.exchange import CONTINUE, Exchange, head_of_answer
from ringfence.egress.proxy.inspection import Inspection
from ringfence.egress.proxy.ledger import MOST_IN_ALL
from ringfence.egress.proxy.meter import Meter, spent
from ringfence.egress.proxy.refusal import BAD_REQUEST, BUSY, FORBIDDEN, Refusal, answer
from ringfence.egress.proxy.rules import Rules
from ringfence.egress.proxy.secure import SecureWire
from ringfence.egress.proxy.upstream import Dialler
from ringfence.egress.proxy.wires import Wire
from ringfence.operation.target import Target

_log = logging.getLogger(__name__)
_ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Connection:
    """Carries one request, or one tunnel; what is refused is told to the client and to the ledger, and ends it."""

    def __init__(
        self, client: Wire, rules: Rules, meter: Meter, dialler: Dialler, inspection: Inspection | None = None
    ) -> None:
        """Nothing is read yet; with an `inspection` everything is looked into, TLS too."""
        self._client, self._rules, self._meter, self._dialler = client, rules, meter, dialler
        self._inspection = inspection
        self._host: Wire | None = None
        self._has_answer = False
        """Whether the client has been sent what it takes for the host's words; then ours would be misread."""

    async def serve(self) -> None:
        """Carry it to its end; never raises but for being cancelled."""
        self._meter.begin()
        refused = b""
        try:
            await self._carry()
            self._client.end_sending()
        except Refusal as refusal:
            self._refuse(refusal)
            refused = answer(refusal)
        except OSError:  # either side went away; what was moved is counted
            pass
        except Exception:  # noqa: BLE001  one connection must not end those of others
            _log.exception("a connection out of a box failed")
            self._meter.entry.decision, self._meter.entry.reason = "failed", "internal"
        finally:
            self._meter.end()
            if self._host is not None:
                self._host.close()
            try:
                await self._say(refused)
            finally:
                self._client.close()

    def _refuse(self, refusal: Refusal) -> None:
        self._meter.begin()
        entry = self._meter.entry
        entry.decision, entry.reason, entry.secret = refusal.decision, refusal.reason, refusal.secret or entry.secret

    async def _say(self, refused: bytes) -> None:
        """Tell a client why, unless it already has words of the host or is in a tunnel."""
        if not refused or self._has_answer:
            return
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._meter.patience.head):
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
        if self._inspection is not None:
            await self._look_into(self._inspection, request, where)
            return
        self._meter.name(where, request.method)
        self._judge(request, where)
        await self._request(request, where, await self._reach(where))

    def _judge(self, request: messages.Request, where: Target) -> None:
        rules = self._rules
        refusal = rules.refuse_request(request.method, where) or rules.refuse_overrides(request.fields, where)
        if refusal is not None:
            raise refusal

    async def _head(self) -> messages.Request:
        head = await self._meter.in_time(self._client.read_until(messages.END_OF_HEAD, messages.MOST_HEAD_BYTES))
        if head is None:
            raise Refusal(BAD_REQUEST, "invalid", "there is no whole head of a request")
        return messages.read_request(head)

    async def _reach(self, where: Target) -> Wire:
        end, self._meter.entry.address = await self._dialler.reach(where, self._rules)
        self._host = Wire(end, self._client.buffer)
        return self._host

    # --- plain requests ---

    async def _request(self, request: messages.Request, where: Target, host: Wire) -> None:
        framing = messages.framing_of(request)
        head = messages.forwarded(request, where, framing)
        self._meter.count_out(len(head), whole=True)
        await host.send(head)
        if request.expects_word:
            await self._client.send(CONTINUE)
        async with self._meter.while_it_moves():
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
                self._meter.count_out(len(out), whole=True)
                await host.send(out)
        elif framing.length and not await self._client.pour_into(host, self._meter.count_out, most=framing.length):
            raise _ended_early() if self._meter.ledger.may_send(1) else spent()

    async def _answer(self, host: Wire, method: str) -> None:
        response = await head_of_answer(host, self._meter)
        self._has_answer = True
        await self._client.send(messages.answered(response))
        length = messages.answer_length(method, response)
        whole = await host.pour_into(self._client, self._meter.count_in, most=length)
        if not whole and not self._meter.ledger.may_receive(1):
            raise spent()

    # --- tunnels ---

    async def _tunnel(self, where: Target) -> None:
        self._meter.name(where, "CONNECT")
        if self._inspection is not None:
            await self._opened_tunnel(self._inspection, where)
            return
        refusal = self._rules.refuse_tunnel(where)
        plain_refusal = self._rules.refuse_plain_tunnel(where)
        if refusal is not None and plain_refusal is not None:
            raise refusal
        host = await self._reach(where)
        await self._client.send(_ESTABLISHED)
        if not self._client.ahead and not await self._meter.in_time(self._client.read_more()):
            return
        if self._client.ahead[0] != hello.HANDSHAKE:
            await self._in_the_open(where, host, plain_refusal)
            return
        if not await self._named_as(where, refusal):
            return
        async with self._meter.while_it_moves():
            ways = (
                asyncio.create_task(self._one_way(self._client, host, self._meter.count_out)),
                asyncio.create_task(self._one_way(host, self._client, self._meter.count_in)),
            )
            try:
                await asyncio.gather(*ways)
            finally:
                await _end(*ways)

    async def _named_as(self, where: Target, refusal: Refusal | None) -> bool:
        """Whether a TLS client asks for the host of its tunnel; False when it goes before it has.

        Raises:
            Refusal: It asks for another one, or the tunnel is refused, which it is told as TLS tells such things.
        """
        self._has_answer = True  # from here on the client takes our words for the host's
        try:
            if refusal is not None:
                raise refusal
            while not hello.require_name(where.host, self._client.ahead):
                if not await self._meter.in_time(self._client.read_more()):
                    return False
            refusal = self._rules.refuse_protocols(where, hello.protocols(self._client.ahead))
            if refusal is not None:
                raise refusal
        except Refusal:
            with contextlib.suppress(OSError):
                await self._client.send(hello.UNRECOGNISED_NAME)
            raise
        return True

    async def _in_the_open(self, where: Target, host: Wire, refusal: Refusal | None) -> None:
        """Carry a plain request through a tunnel as if it had come without one: some clients tunnel everything."""
        if refusal is not None:
            raise Refusal(FORBIDDEN, "not_tls", f"what is in the tunnel to {where.host} is not TLS")
        request = await self._head()
        meant = messages.request_target(request, where)
        self._meter.entry.method = request.method
        self._judge(request, meant)
        await self._request(request, meant, host)

    # --- what is looked into ---

    async def _opened_tunnel(self, inspection: Inspection, where: Target) -> None:
        """Speak for the host to the client and for the client to the host, request by request."""
        refusal, plain_refusal = self._rules.refuse_all(where), self._rules.refuse_plain_tunnel(where)
        if refusal is not None and plain_refusal is not None:
            raise refusal
        await self._client.send(_ESTABLISHED)
        if not self._client.ahead and not await self._meter.in_time(self._client.read_more()):
            return
        if self._client.ahead[0] != hello.HANDSHAKE:
            if plain_refusal is not None:
                raise Refusal(FORBIDDEN, "not_tls", f"what is in the tunnel to {where.host} is not TLS")
            request = await self._head()
            await self._look_into(inspection, request, messages.request_target(request, where))
            return
        if not await self._named_as(where, refusal):
            return
        # in a thread: below a granted suffix a guest can think of name after name, and this one is everybody's
        minting = self._dialler.in_a_thread(partial(inspection.authority.context_for, where.host))
        client = SecureWire(self._client, await self._meter.in_time(minting), server_side=True)
        await self._meter.in_time(client.shake())
        self._client, self._has_answer = client, False
        while True:
            request = await self._head()
            if not await self._look_into(inspection, request, messages.request_target(request, where, "https")):
                return
            self._meter.end()
            if not await self._another():
                return
            self._meter.begin()
            if self._meter.ledger.begun > MOST_IN_ALL:  # each is a connection to its host
                raise Refusal(BUSY, "too_many", f"a run has at most {MOST_IN_ALL} connections and requests in all")

    async def _look_into(self, inspection: Inspection, request: messages.Request, where: Target) -> bool:
        exchange = Exchange(self._client, self._rules, self._meter, self._dialler, inspection)
        try:
            return await exchange.carry(request, where)
        finally:
            self._has_answer = exchange.has_answer

    async def _another(self) -> bool:
        """Whether the client has something more to ask; one that only waits is let go of."""
        if self._client.ahead:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._meter.patience.head):
                return await self._client.read_more()
        return False

    async def _one_way(self, from_: Wire, to: Wire, count: Callable[[int], int]) -> None:
        if not await from_.pour_into(to, count):
            raise spent()
        to.end_sending()


def _ended_early() -> Refusal:
    return Refusal(BAD_REQUEST, "framing", "the body ended early")


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
