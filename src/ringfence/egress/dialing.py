"""Looks a name up once and connects to an address that was judged: the only code of retrieval that touches a socket."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from ringfence.egress.addresses import parsed
from ringfence.egress.urls import is_local_name
from ringfence.errors import TimedOut, Unavailable

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""Returns every address of a name, or raises `Unavailable`; asked once for each connection."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial = Callable[[str, int, str | None, float], Awaitable[Streams]]
"""Connects to an address and port, with TLS for a name if there is one, within so many seconds."""

MOST_BUFFERED: Final = 64 * 1024


def system_addresses(host: str) -> tuple[str, ...]:
    """Return what this host's resolver knows of a name; blocks.

    Raises:
        Unavailable: It knows nothing.
    """
    # with a dot at its end no domain of this host's own is tried after it
    name = host if is_local_name(host) else f"{host}."
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as error:
        raise Unavailable(f"{host} could not be resolved", reason="name_resolution", host=host) from error
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def own_of(addresses: Iterable[str]) -> frozenset[str]:
    """Return those of `addresses` that are this host's: only these can be bound to, at this very moment."""
    return frozenset(address for address in addresses if _is_own(address))


def _is_own(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


class Dialer:
    """Connects, with TLS that knows the name and the authorities of this host or of one file."""

    def __init__(self, ca_file: Path | None = None) -> None:
        """Trust the authorities in `ca_file` instead of this host's."""
        self._ca_file = ca_file

    async def __call__(self, address: str, port: int, tls_name: str | None, seconds: float) -> Streams:
        """Connect to exactly this address.

        Raises:
            Unavailable: Nobody listens there, or whoever does cannot show that it has the name.
            TimedOut: It took longer than `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                sock = await _connected(address, port)
                return await self._streams(sock, tls_name)
        except TimeoutError:
            raise TimedOut(f"no connection to port {port} in time", reason="connect_timeout") from None
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", "") or error.reason or "no TLS"
            raise Unavailable(
                f"TLS with {tls_name} failed: {why}", reason="tls", fix="use a valid certificate"
            ) from None
        except OSError as error:
            raise Unavailable(f"port {port} does not answer: {error.strerror}", reason="connect_failed") from None

    async def _streams(self, sock: socket.socket, tls_name: str | None) -> Streams:
        try:
            if tls_name is None:
                return await asyncio.open_connection(sock=sock, limit=MOST_BUFFERED)
            return await asyncio.open_connection(
                sock=sock, limit=MOST_BUFFERED, ssl=_tls(self._ca_file), server_hostname=tls_name
            )
        except BaseException:
            sock.close()
            raise


async def _connected(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, (address, port))
        peer = sock.getpeername()
        if (parsed(peer[0]), peer[1]) != (parsed(address), port):  # a redirection on this host would show here
            raise Unavailable("the connection leads elsewhere than it was made to", reason="connect_failed")
    except BaseException:
        sock.close()
        raise
    return sock


@cache
def _tls(ca_file: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
