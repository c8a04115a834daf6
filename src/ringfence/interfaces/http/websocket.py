"""One websocket of the service: what opens none is told so, and nothing piles up here for whoever does not read."""

from __future__ import annotations

from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from ringfence.errors import InvalidRequest
from ringfence.interfaces.http.joined import Joined
from ringfence.interfaces.http.protocol import raw_answer

_MOST_UNREAD: Final = 1 << 20
_SWITCHING: Final = 101


class Websocket(WebSocketsSansIOProtocol):
    """What routes send waits until the client reads; a pong goes out at once, so whoever lets them lie is cut off."""

    transport: Joined

    def __init__(self, *args: Any, **named: Any) -> None:
        """Be made by the server for a request that asks for a websocket."""
        super().__init__(*args, **named)
        self._begun = bytearray()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        super().connection_lost(exc)
        self.transport.forget()

    def pause_writing(self) -> None:
        """Wait for a client that does not read, and not for ever: the pings it does not answer only close its half."""
        super().pause_writing()
        self.transport.await_reading()

    def resume_writing(self) -> None:
        """Go on with a client that reads again."""
        self.transport.was_read()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Take some of it; the first is a whole request, of which the parser below may take less than ours did."""
        super().data_received(data)
        if not self.handshake_initiated:
            self._refuse()

    def handle_connect(self, event: Request) -> None:
        """Open a websocket for the application to accept, or say to what opens none that it does not."""
        if self.conn.accept(event).status_code == _SWITCHING:
            super().handle_connect(event)
        else:
            self._refuse()

    def handle_cont(self, event: Frame) -> None:
        """Take one more piece of a message, in one place with those before it: of empty ones there is no end."""
        self._begun += b"".join((*self.frames, event.data))
        self.frames = []
        if event.fin:
            self.frames, self._begun = [bytes(self._begun)], bytearray()
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Answer a ping, unless the answers to earlier ones are still here."""
        if self.transport.get_write_buffer_size() > _MOST_UNREAD:
            self.transport.abort()
            return
        super().handle_ping()

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(raw_answer(InvalidRequest("this opens no websocket", reason="malformed")))
            self.transport.close()
