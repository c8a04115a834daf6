"""One request that is looked into, and its answer: judged, given its secret, sent on a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from ringfence.egress.proxy import messages
from ringfence.egress.proxy.chunks import LAST, Chunks, chunk
from ringfence.egress.proxy.inspection import Inspection
from ringfence.egress.proxy.meter import Meter, spent
from ringfence.egress.proxy.refusal import BAD_GATEWAY, BAD_REQUEST, FORBIDDEN, Refusal
from ringfence.egress.proxy.rules import Rules
from ringfence.egress.proxy.secure import SecureWire
from ringfence.egress.proxy.swap import Loan, asking_for_all, carrying, hidden
from ringfence.egress.proxy.upstream import Dialler
from ringfence.egress.proxy.wires import Wire
from ringfence.operation.target import Target

if TYPE_CHECKING:
    from ringfence.masking import Masker

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_SWITCHING, _FINAL = 101, 200
_MOST_HEADS_BEFORE_ANSWER: Final = 8
_MOST_FILLED: Final = 2 * messages.MOST_HEAD_BYTES


class Exchange:
    """Carries requests of one client, each to its host and back; what it refuses ends the connection."""

    def __init__(self, client: Wire, rules: Rules, meter: Meter, dialler: Dialler, inspection: Inspection) -> None:
        """Nothing is read yet."""
        self._client, self._rules, self._meter, self._dialler = client, rules, meter, dialler
        self._inspection, self._swap = inspection, inspection.swap
        self.has_answer = False
        """Whether the client has been sent what it takes for the host's words; then ours would be misread."""

    async def carry(self, request: messages.Request, where: Target) -> bool:
        """Carry one request; return whether the client may send another one.

        Raises:
            Refusal: It may not be sent, or what comes back may not be passed on.
        """
        self._meter.name(where, request.method)
        if any("websocket" in value.lower() for value in request.names("upgrade")):
            raise Refusal(FORBIDDEN, "upgrade", "nobody could look into a websocket")
        refusal = self._rules.refuse_request(request.method, where) or self._rules.refuse_overrides(
            request.fields, where
        )
        if refusal is not None:
            raise refusal
        framing = messages.framing_of(request)
        loan = self._swap.asked(request, where)
        known_there = self._swap.known_to(where.host)
        if known_there:
            request = asking_for_all(request)
        outer = messages.forwarded(request, where, framing)
        host = await self._reach(where)
        try:
            self._meter.count_out(len(outer), whole=True)
            if loan is not None:
                self._meter.entry.secret = loan.name
                await self._require_valid(loan)
                outer = messages.forwarded(carrying(request, loan), where, framing)
                if len(outer) > _MOST_FILLED:
                    raise Refusal(FORBIDDEN, "too_large", "the request names its secret too often", secret=loan.name)
            await host.send(outer)
            return await self._both_ways(host, request, framing, known_there)
        finally:
            host.close()

    async def _reach(self, where: Target) -> Wire:
        end, self._meter.entry.address = await self._dialler.reach(where, self._rules)
        host = Wire(end, self._client.buffer)
        if where.scheme != "https":
            return host
        try:
            secure = SecureWire(host, self._inspection.trust, server_side=False, host=where.host)
            await self._meter.in_time(secure.shake())
        except ssl.SSLError as error:
            host.close()
            why = getattr(error, "verify_message", "") or error.reason or "no TLS"
            raise Refusal(BAD_GATEWAY, "tls", f"{where.host} does not show that it is that host: {why}") from None
        except BaseException:
            host.close()
            raise
        return secure

    async def _require_valid(self, loan: Loan) -> None:
        """Ask, right before it would be sent, whether nobody has revoked it."""
        if not await self._meter.in_time(self._dialler.in_a_thread(loan.is_valid)):
            raise Refusal(FORBIDDEN, "revoked", f"the secret {loan.name} is revoked, or was replaced", secret=loan.name)

    async def _both_ways(
        self, host: Wire, request: messages.Request, framing: messages.Framing, known_there: tuple[Loan, ...]
    ) -> bool:
        if request.expects_word:
            await self._client.send(CONTINUE)
        async with self._meter.while_it_moves():
            sending = asyncio.create_task(self._send_body(host, framing))
            answering = asyncio.create_task(self._answer(host, request, known_there))
            try:
                await asyncio.wait((sending, answering), return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    with contextlib.suppress(OSError):  # a host may answer before it has heard everything
                        sending.result()
                stays = await answering
                return stays and sending.done() and sending.exception() is None
            finally:
                for task in (sending, answering):
                    task.cancel()
                await asyncio.gather(sending, answering, return_exceptions=True)

    # --- to the host ---

    async def _send_body(self, host: Wire, framing: messages.Framing) -> None:
        watch = self._swap.watch().see if self._swap else _as_it_is
        if framing.chunked:
            chunks = Chunks(bare=True)
            while not chunks.is_over:
                out = chunk(watch(chunks.feed(await self._from_client())))
                out += _end_of(chunks)
                self._meter.count_out(len(out), whole=True)
                await host.send(out)
            self._client.ahead = chunks.rest + self._client.ahead
            return
        left = framing.length
        while left:
            data = await self._from_client()
            piece, self._client.ahead = data[:left], data[left:]
            self._meter.count_out(len(piece), whole=True)
            await host.send(watch(piece))
            left -= len(piece)

    async def _from_client(self) -> bytes:
        if not self._client.ahead and not await self._client.read_more():
            raise Refusal(BAD_REQUEST, "framing", "the body ended early")
        data, self._client.ahead = self._client.ahead, b""
        return data

    # --- back to the client ---

    async def _answer(self, host: Wire, request: messages.Request, known_there: tuple[Loan, ...]) -> bool:
        response = await head_of_answer(host, self._meter)
        framing = messages.answer_framing(request.method, response)
        if known_there:
            response = hidden(response, known_there)
        told, stays = framing, request.stays
        if request.method == "HEAD":
            # of a host that knows a secret the length alone could tell how long that is
            told = None if known_there else messages.answer_framing("GET", response)
        elif framing is None or framing.chunked or (known_there and framing.length):
            told = messages.Framing(chunked=True) if request.minor else None
        self.has_answer = True
        await self._client.send(messages.retold(response, told, stays=stays))
        maskers = [loan.masks.stream(steady=True) for loan in known_there]
        write = chunk if told is not None and told.chunked else _as_it_is
        async for piece in self._content(host, framing):
            for masker in maskers:
                piece = masker.add(piece)
            await self._client.send(write(piece))
        await self._client.send(write(_rest_of(maskers)))
        if framing != messages.Framing() and write is chunk:
            await self._client.send(LAST)
        self.has_answer = False
        return stays

    async def _content(self, host: Wire, framing: messages.Framing | None) -> AsyncIterator[bytes]:
        """Read the body of an answer, without what frames it."""
        chunks = Chunks(bare=True) if framing is not None and framing.chunked else None
        left = None if framing is None or chunks is not None else framing.length
        while (left is None or left) and (chunks is None or not chunks.is_over):
            if not host.ahead and not await host.read_more():
                if left is None and chunks is None and getattr(host, "ended_well", True):
                    return
                raise Refusal(BAD_GATEWAY, "answer", "the host ended in the middle of its answer")
            data, host.ahead = host.ahead, b""
            if left is not None:
                data = data[:left]
                left -= len(data)
            allowed = self._meter.count_in(len(data))
            yield data[:allowed] if chunks is None else chunks.feed(data[:allowed])
            if allowed < len(data):
                raise spent()


async def head_of_answer(host: Wire, meter: Meter) -> messages.Response:
    """Read the head of what a host finally says.

    Raises:
        Refusal: It says nothing, only ever announces it, or would go over to another protocol.
    """
    for _ in range(_MOST_HEADS_BEFORE_ANSWER):
        head = await host.read_until(messages.END_OF_HEAD, messages.MOST_HEAD_BYTES)
        if head is None:
            raise Refusal(BAD_GATEWAY, "answer", "the host ended without an answer")
        meter.count_in(len(head), whole=True)
        response = messages.read_response(head)
        if response.status == _SWITCHING:
            raise Refusal(BAD_GATEWAY, "answer", "the host changes to a protocol that nobody asked for")
        if response.status >= _FINAL:
            return response
    raise Refusal(BAD_GATEWAY, "answer", "the host keeps announcing an answer")


def _end_of(chunks: Chunks) -> bytes:
    return LAST if chunks.is_over else b""


def _rest_of(maskers: list[Masker]) -> bytes:
    """Return what maskers in a row still hold, each having heard what those before it held."""
    rest = b""
    for masker in maskers:
        rest = masker.add(rest) + masker.finish()
    return rest


def _as_it_is(data: bytes) -> bytes:
    return data
