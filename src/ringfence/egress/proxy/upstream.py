"""From a granted name to a connection: resolved here and once, every address judged, one of those very ones dialled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Final, TypeVar

from ringfence.egress.addresses import parsed, verdict_of
from ringfence.egress.dialing import own_of
from ringfence.egress.proxy.refusal import BAD_GATEWAY, TOO_LATE, Refusal
from ringfence.egress.proxy.rules import Rules
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.operation.target import Target, is_address

Resolve = Callable[[str], Sequence[str]]
"""Returns every address of a name, or raises `Unavailable`; called in a thread."""
MakeSocket = Callable[[socket.AddressFamily], socket.socket]

_T = TypeVar("_T")
_RESOLVE_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 10.0
_MOST_ADDRESSES: Final = 64
_MOST_LOOKUPS: Final = 2
"""Of one box at a time: who answers for its names may take as long as it likes, and the threads are everybody's."""


def plain_socket(family: socket.AddressFamily) -> socket.socket:
    """Return a socket of this host's network."""
    return socket.socket(family, socket.SOCK_STREAM)


class Dialler:
    """Reaches hosts on behalf of one box."""

    def __init__(self, threads: Executor, resolve: Resolve, make_socket: MakeSocket) -> None:
        """`resolve` is asked in `threads`."""
        self._threads, self._resolve, self._make_socket = threads, resolve, make_socket
        self._turns = asyncio.Semaphore(_MOST_LOOKUPS)

    async def reach(self, where: Target, rules: Rules) -> tuple[socket.socket, str]:
        """Return a connection, and the address it leads to.

        Raises:
            Refusal: The name has no address, one that is forbidden, or none that answers.
        """
        addresses = [where.host] if is_address(where.host) else await self._addresses(where.host)
        # also what an address carries inside: behind NAT64 this host has a second name for itself
        own = own_of([*addresses, *_carried(addresses, rules.addresses.nat64)])
        refusal = rules.refuse_addresses(where.host, addresses, own)
        if refusal is not None:
            raise refusal
        for address in addresses:
            with contextlib.suppress(OSError):
                return await self._connect(address, where.port), address
        raise Refusal(BAD_GATEWAY, "connect", f"{where.host} does not answer on port {where.port}")

    async def in_a_thread(self, ask: Callable[[], _T]) -> _T:
        """Return what may take a while to find out."""
        return await asyncio.wrap_future(self._threads.submit(ask))

    async def _addresses(self, name: str) -> list[str]:
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                await self._turns.acquire()
                found = await asyncio.wrap_future(self._looked_up(name))
        except TimeoutError:
            raise Refusal(TOO_LATE, "resolution", f"nobody says in time where {name} is") from None
        except Unavailable:
            found = []
        if not 0 < len(found) <= _MOST_ADDRESSES:
            raise Refusal(BAD_GATEWAY, "resolution", f"{name} has no address")
        return list(found)

    def _looked_up(self, name: str) -> Future[Sequence[str]]:
        """Have a name looked up; its turn is over when its thread is free, whoever still waits for it."""
        loop = asyncio.get_running_loop()
        looking = self._threads.submit(self._resolve, name)

        def over(_: Future[Sequence[str]]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for a turn
                loop.call_soon_threadsafe(self._turns.release)

        looking.add_done_callback(over)
        return looking

    async def _connect(self, address: str, port: int) -> socket.socket:
        family, place = _place(address, port)
        end = self._make_socket(family)
        try:
            end.setblocking(False)
            async with asyncio.timeout(_CONNECT_SECONDS):
                await asyncio.get_running_loop().sock_connect(end, place)
            if parsed(end.getpeername()[0]) != parsed(address):
                raise OSError("connected to another address than the one that was judged")
        except BaseException:
            end.close()
            raise
        return end


def _carried(addresses: Iterable[str], nat64: tuple[str, ...]) -> Iterator[str]:
    for address in addresses:
        with contextlib.suppress(InvalidRequest):  # which the rules refuse
            yield from verdict_of(address, nat64=nat64).carries


def _place(address: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]:
    if ":" in address:
        return socket.AF_INET6, (address, port, 0, 0)
    return socket.AF_INET, (address, port)
