"""The first words of a TLS client: the name it asks for, which has to be the name its tunnel was granted for."""

from __future__ import annotations

from typing import Final

from ringfence.egress.proxy.refusal import FORBIDDEN, Refusal
from ringfence.errors import InvalidRequest
from ringfence.operation.target import host_name, is_address

MOST_BYTES: Final = 32 * 1024
HANDSHAKE: Final = 0x16
UNRECOGNISED_NAME: Final = bytes((0x15, 3, 3, 0, 2, 2, 112))
"""The alert that tells a client whose name was refused."""

_CLIENT_HELLO, _SERVER_NAME, _HOST_NAME, _PROTOCOLS = 1, 0, 0, 16
# With these the name in the open is not the one the client means.
_HIDDEN_NAMES: Final = frozenset({0xFE0D, 0xFFCE})
_LONGEST_RECORD: Final = 1 << 14


def require_name(host: str, heard: bytes) -> bool:
    """Whether all of the client's first message is in `heard`; when it is, it asks for `host`.

    A tunnel to an address is for a client that names no host.

    Raises:
        Refusal: It is no TLS, hides its name, names none or another.
    """
    message = _first_message(heard)
    if message is None:
        if len(heard) > MOST_BYTES:
            raise _refused("not_tls", "the first message of TLS is too long")
        return False
    named = _extensions_in(message).get(_SERVER_NAME)
    name = None if named is None else _one_name(named)
    if name is None:
        if not is_address(host):
            raise _refused("sni", f"the client names no host inside the tunnel to {host}")
    elif is_address(host) or name != host:
        raise _refused("sni", f"the client asks for another host inside the tunnel to {host}")
    return True


def protocols(heard: bytes) -> tuple[bytes, ...]:
    """Return what the client offers to speak inside TLS, given its whole first message; nothing if it does not say.

    Raises:
        Refusal: It is no TLS.
    """
    offered = _extensions_in(_first_message(heard) or b"").get(_PROTOCOLS)
    if offered is None:
        return ()
    names = _Reader(_Reader(offered).field(2))
    found: list[bytes] = []
    while not names.is_empty():
        found.append(names.field(1))
    return tuple(found)


def _refused(reason: str, detail: str) -> Refusal:
    return Refusal(FORBIDDEN, reason, detail)


def _first_message(heard: bytes) -> bytes | None:
    """Put the records together until the first message is whole."""
    message = bytearray()
    at = 0
    while len(heard) >= at + 5:
        size = int.from_bytes(heard[at + 3 : at + 5])
        if heard[at] != HANDSHAKE or heard[at + 1] != 3 or not 0 < size <= _LONGEST_RECORD:
            raise _refused("not_tls", "what is in the tunnel is not TLS")
        if len(heard) < at + 5 + size:
            message += heard[at + 5 :]
            at = len(heard)
        else:
            message += heard[at + 5 : at + 5 + size]
            at += 5 + size
        if message and message[0] != _CLIENT_HELLO:
            raise _refused("not_tls", "what is in the tunnel does not begin as a TLS client does")
        if len(message) >= 4:
            end = 4 + int.from_bytes(message[1:4])
            if end > MOST_BYTES:
                raise _refused("not_tls", "the first message of TLS is too long")
            if len(message) >= end:
                return bytes(message[4:end])
    if heard and (heard[0] != HANDSHAKE or heard[1:2] not in (b"", b"\x03")):
        raise _refused("not_tls", "what is in the tunnel is not TLS")
    return None


class _Reader:
    """Takes fields with their lengths out of a message."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            raise _refused("not_tls", "the first message of TLS ends in the middle of a field")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def field(self, size_bytes: int) -> bytes:
        return self.take(self.number(size_bytes))

    def is_empty(self) -> bool:
        return self._at == len(self._data)


def _extensions_in(message: bytes) -> dict[int, bytes]:
    hello = _Reader(message)
    hello.take(2 + 32)  # version and random
    hello.field(1)  # session
    hello.field(2)  # ciphers
    hello.field(1)  # compression
    found: dict[int, bytes] = {}
    if hello.is_empty():
        return found
    extensions = _Reader(hello.field(2))
    if not hello.is_empty():
        raise _refused("not_tls", "something follows the first message of TLS inside it")
    while not extensions.is_empty():
        kind, data = extensions.number(2), extensions.field(2)
        if kind in _HIDDEN_NAMES:
            raise _refused("ech", "the client hides the name it asks for (encrypted client hello)")
        if kind in found:
            raise _refused("not_tls", "the client says something twice")
        found[kind] = data
    return found


def _one_name(data: bytes) -> str:
    names = _Reader(_Reader(data).field(2))
    kind, name = names.number(1), names.field(2)
    if kind != _HOST_NAME or not names.is_empty() or len(data) != len(name) + 5:
        raise _refused("sni", "the client names something else than one host")
    try:
        return host_name(name.decode("ascii"))
    except (InvalidRequest, UnicodeDecodeError):
        raise _refused("sni", "the client's name for the host is not one") from None
