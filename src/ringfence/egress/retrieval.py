"""Safe retrieval: every hop is read, judged, resolved once, judged again by its addresses, and only then connected to.

The rules have numbers (docs/network.md); a test of `tests/security/test_retrieval_*.py` bears each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from ringfence.dataclass import dataclass, field, replace
from ringfence.egress.addresses import AddressRules, parsed, verdict_of
from ringfence.egress.asking import FOLLOWED, Ask
from ringfence.egress.caps import RetrievalCaps
from ringfence.egress.dialing import Dial, Lookup, Streams
from ringfence.egress.media import agreed_type, require_listed
from ringfence.egress.responses import ChunkedBody, Head, framing_of, no_http, read_head
from ringfence.egress.unpacking import Unpacker
from ringfence.egress.urls import checked, followed
from ringfence.errors import CapabilityBlocked, InvalidRequest, RingfenceError, TimedOut, Unavailable
from ringfence.operation.target import Target, is_address

_END: Final = b"\r\n\r\n"
_PIECE: Final = 64 * 1024
_TRIED: Final = 4
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for one retrieval beside the rules that hold for all."""

    addresses: AddressRules = field(default_factory=AddressRules)
    caps: RetrievalCaps = field(default_factory=RetrievalCaps)
    media: Collection[str] | None = None
    own: Callable[[Sequence[str]], frozenset[str]] = lambda _: frozenset()
    """Says which addresses are this host's."""
    may_follow: Callable[[Ask], None] = lambda _: None
    """Raises where a redirect leads to what the caller was not granted."""


@dataclass(slots=True)
class Hop:
    """One request of a retrieval, as far as it came; `decision` is `allowed`, or why it ended there."""

    method: str
    where: Target
    address: str | None = None
    status: int | None = None
    bytes_out: int = 0
    bytes_in: int = 0
    decision: str = "allowed"


@dataclass(slots=True)
class Trail:
    """Every hop, kept by whoever asked: it is whole also when the retrieval fails."""

    hops: list[Hop] = field(default_factory=list)

    @property
    def bytes_in(self) -> int:
        """What came over the network."""
        return sum(hop.bytes_in for hop in self.hops)

    @property
    def bytes_out(self) -> int:
        """What went over the network."""
        return sum(hop.bytes_out for hop in self.hops)


@dataclass(frozen=True, slots=True)
class Retrieved:
    """What the last hop answered; its content is a stranger's, and means nothing but itself."""

    head: Head
    media_type: str | None
    content: bytes = field(repr=False)
    raw_bytes: int


class Retriever:
    """Fetches; keeps no connection, no cookie and no cache between one retrieval and the next."""

    def __init__(self, lookup: Lookup, dial: Dial) -> None:
        """`lookup` and `dial` are the only ways to the world."""
        self._lookup = lookup
        self._dial = dial

    async def fetch(self, ask: Ask, rules: Rules, trail: Trail | None = None) -> Retrieved:
        """Return the answer to `ask`, after all its redirects; what was done on the way is added to `trail`.

        Raises:
            CapabilityBlocked: A name, an address, a redirect or the answer is none that may be.
            Unavailable: Nobody answers, or not as HTTP says.
            TimedOut: It takes longer than the caps allow.
        """
        hops = (trail or Trail()).hops
        try:
            async with asyncio.timeout(rules.caps.total_seconds):
                return await self._followed(ask, rules, hops)
        except TimeoutError:
            _decided(hops, "timeout")
            raise TimedOut(f"the answer was not there after {rules.caps.total_seconds:g} s") from None
        except RingfenceError as error:
            _decided(hops, error.reason)
            raise
        except asyncio.CancelledError:
            _decided(hops, "cancelled")
            raise

    async def _followed(self, ask: Ask, rules: Rules, hops: list[Hop]) -> Retrieved:
        while True:
            hops.append(Hop(ask.method, ask.where))
            checked(ask.where, private=rules.addresses.private)
            if len(hops) > 1:
                rules.may_follow(ask)
            addresses = await self._addresses(ask.where, rules)
            streams = await self._connected(ask.where, addresses, rules.caps, hops[-1])
            try:
                head = await _asked(ask, streams, rules.caps, hops[-1])
                location = head.get("location")
                if head.status not in FOLLOWED or location is None:
                    return await _body(ask, head, streams[0], rules, hops[-1])
            finally:
                streams[1].transport.abort()  # one answer for one connection
            if len(hops) > rules.caps.redirects:
                raise CapabilityBlocked(f"more than {rules.caps.redirects} redirects", reason="redirect")
            ask = ask.redirected(head.status, _led(ask.where, location))

    async def _addresses(self, where: Target, rules: Rules) -> Sequence[str]:
        """Return every address of the host, if each of them may be connected to."""
        if is_address(where.host):
            found: Sequence[str] = (where.host,)
        else:
            found = await self._lookup(where.host)
        if not found:
            raise Unavailable(f"{where.host} has no address", reason="name_resolution", host=where.host)
        if len(found) > rules.caps.answers:
            raise CapabilityBlocked(f"{where.host} has more than {rules.caps.answers} addresses", reason="domain")
        spelled = [_address(text) for text in found]
        nat64 = rules.addresses.nat64
        inside = [carried for address in spelled for carried in verdict_of(address, nat64=nat64).carries]
        judged = replace(rules.addresses, own=rules.addresses.own | rules.own([*spelled, *inside]))
        # one that is forbidden is enough: whoever owns the name would only have to wait until it is chosen
        for address in spelled:
            refused = judged.refusal(address)
            if refused is not None:
                raise CapabilityBlocked(
                    f"{where.host} leads to an address that is {refused.kind.replace('_', ' ')}",
                    reason="private_address",
                    host=where.host,
                    kind=str(refused.kind),
                )
        return spelled

    async def _connected(self, where: Target, addresses: Sequence[str], caps: RetrievalCaps, hop: Hop) -> Streams:
        name = where.host if where.scheme == "https" else None
        failure: RingfenceError | None = None
        for address in addresses[:_TRIED]:
            hop.address = address
            try:
                return await self._dial(address, where.port, name, caps.connect_seconds)
            except (Unavailable, TimedOut) as error:
                failure = error
        raise failure or Unavailable(f"{where.host} has no address", reason="name_resolution")


async def _asked(ask: Ask, streams: Streams, caps: RetrievalCaps, hop: Hop) -> Head:
    """Send the request and return the head of its answer, after those that only say that it is coming."""
    reader, writer = streams
    sent = ask.sent()
    async with _patience(caps):
        writer.write(sent)
        await _or_gone(writer.drain())
    hop.bytes_out += len(sent)
    for _ in range(caps.interim + 1):
        head = await _head(reader, caps, hop)
        if head.status >= 200:
            hop.status = head.status
            return head
        if head.status == 101:
            raise no_http("changes to another protocol that nobody asked for")
    raise no_http("never comes to an end of being announced")


async def _head(reader: asyncio.StreamReader, caps: RetrievalCaps, hop: Hop) -> Head:
    try:
        async with _patience(caps):
            head = await _or_gone(reader.readuntil(_END))
    except asyncio.IncompleteReadError as error:
        hop.bytes_in += len(error.partial)
        raise no_http("ends before its headers do") from None
    except asyncio.LimitOverrunError as error:
        hop.bytes_in += error.consumed
        raise _long_head(caps) from None
    hop.bytes_in += len(head)
    if len(head) > caps.head_bytes:
        raise _long_head(caps)
    return read_head(head, caps)


async def _body(ask: Ask, head: Head, reader: asyncio.StreamReader, rules: Rules, hop: Hop) -> Retrieved:
    """Read the body piece by piece, each counted before it is unpacked and unpacked before it is kept."""
    framing = framing_of(head, ask.method)
    left, chunks = framing.length, ChunkedBody() if framing.is_chunked else None
    unpacker = Unpacker(head.get("content-encoding") if left != 0 else None, rules.caps)
    if left:
        unpacker.expect(left)
    content_type = head.get("content-type")
    if content_type is not None and left != 0:
        require_listed(content_type, rules.media)  # before anything of it is taken
    content, came = bytearray(), 0
    while left != 0 and not (chunks is not None and chunks.is_over):
        async with _patience(rules.caps):
            piece = await _or_gone(reader.read(_PIECE if left is None else min(left, _PIECE)))
        if not piece:
            if framing.length is None and chunks is None:
                break  # it ends with the connection
            raise no_http("ends before it is all there")
        hop.bytes_in += len(piece)
        came += len(piece)
        if came > 2 * rules.caps.body_bytes + _PIECE:  # a little of a body in very much of what frames it
            raise CapabilityBlocked("the answer is more frame than body", reason="too_large")
        if left is not None:
            left -= len(piece)
        content += unpacker.feed(piece if chunks is None else chunks.feed(piece))
    unpacker.finish()
    if not content and (ask.method == "HEAD" or framing.length == 0):
        return Retrieved(head, None, b"", unpacker.raw)
    kind = agreed_type(content_type, bytes(content[:1024]), rules.media)
    return Retrieved(head, kind, bytes(content), unpacker.raw)


@asynccontextmanager
async def _patience(caps: RetrievalCaps) -> AsyncIterator[None]:
    """Wait no longer than the other side may say nothing."""
    try:
        async with asyncio.timeout(caps.read_seconds):
            yield
    except TimeoutError:
        raise TimedOut(f"nothing came for {caps.read_seconds:g} s", reason="read_timeout") from None


async def _or_gone(coming: Awaitable[_T]) -> _T:
    try:
        return await coming
    except TimeoutError:
        raise
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise Unavailable(f"the connection broke: {why}", reason="connect_failed") from None


def _led(where: Target, location: str) -> Target:
    try:
        return followed(where, location)
    except InvalidRequest as error:
        raise CapabilityBlocked(f"the redirect leads to no URL: {error}", reason="redirect") from None


def _address(text: str) -> str:
    try:
        return str(parsed(text))
    except InvalidRequest as error:  # a zone: the name leads to an interface of this host
        raise CapabilityBlocked(str(error), reason="private_address") from None


def _decided(hops: list[Hop], reason: str) -> None:
    if hops:
        hops[-1].decision = reason


def _long_head(caps: RetrievalCaps) -> CapabilityBlocked:
    return CapabilityBlocked(f"the answer's headers have more than {caps.head_bytes} bytes", reason="too_large")
