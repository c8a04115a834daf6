"""One websocket of the service: pongs that a client asks for and never reads do not pile up here."""

from __future__ import annotations

from typing import Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

_MOST_UNREAD: Final = 1 << 20


class Websocket(WebSocketsSansIOProtocol):
    """What routes send waits until the client reads; a pong goes out at once, so whoever lets them lie is cut off."""

    def handle_ping(self) -> None:
        """Answer a ping, unless the answers to earlier ones are still here."""
        if self.transport.get_write_buffer_size() > _MOST_UNREAD:
            self.transport.abort()
            return
        super().handle_ping()
