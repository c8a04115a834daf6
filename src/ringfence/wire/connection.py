"""One connection to a service, over TLS, TCP or a socket file; nobody is told anything before it is the right one."""

from __future__ import annotations

import http.client
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from ringfence.wire.patience import PatientSocket

if TYPE_CHECKING:
    from ringfence.wire.address import Address

CONNECT_SECONDS: Final = 10.0
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 4))
Peer = Callable[[socket.socket], None]
"""Looks at a connected socket before anything is sent over it, and raises if it is not the right one's."""


class Connection(http.client.HTTPConnection):
    """One connection, wherever it leads."""

    def __init__(self, address: Address, peer: Peer | None) -> None:
        super().__init__(address.host, address.port or None)
        self._address = address
        self._peer = peer
        self._answer: http.client.HTTPResponse | None = None
        self.asked = False
        """Whether the other side may have got the last request."""

    def patient(self) -> PatientSocket:
        """Return the connected socket."""
        if self.sock is None:
            self.connect()
        return cast("PatientSocket", self.sock)

    def connect(self) -> None:
        """Connect, and look at the other side before it is told anything."""
        address = self._address
        if address.socket_path is not None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        else:
            sock = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
        try:
            if address.socket_path is not None:
                sock.settimeout(CONNECT_SECONDS)
                _connect_file(sock, address.socket_path)
            else:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # a run may take an hour in which nobody speaks; a machine that is gone must not look like one
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in _KEEPALIVE:
                    sock.setsockopt(socket.IPPROTO_TCP, option, value)
            if self._peer is not None:
                self._peer(sock)
            self.sock = PatientSocket(_secured(sock, address.host) if address.tls else sock)
        except BaseException:
            sock.close()
            raise

    def ask(self, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Send the request and read the head of the answer."""
        self.asked = True
        # one that refuses a body may answer, and close, before it has read all of it
        with suppress(BrokenPipeError, ConnectionResetError):
            self.request(method, target, body, headers)
        self._answer = self.getresponse()
        return self._answer

    def close(self) -> None:
        """Close it, and the answer that was not read to its end."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()
        super().close()

    def is_quiet(self) -> bool:
        """Whether it can be used again."""
        return self.sock is not None and self.patient().is_quiet()


def _connect_file(sock: socket.socket, path: str) -> None:
    """Connect by descriptor: the path of a home may be longer than the address of a socket can be."""
    folder, _, name = path.rpartition("/")
    directory = os.open(folder or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock.connect(f"/proc/self/fd/{directory}/{name}")
    finally:
        os.close(directory)


def _secured(sock: socket.socket, host: str) -> socket.socket:
    import ssl  # not at the top: the command speaks over a socket file, and ssl takes long to import

    return ssl.create_default_context().wrap_socket(sock, server_hostname=host)
