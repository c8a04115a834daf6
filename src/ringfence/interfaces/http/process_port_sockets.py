"""`WS /sandbox/processes/{id}/ports/{port}/…`: a websocket of a server inside a box, such as a dev server's reloads.

Two websockets meet here, and no byte passes that was not understood: the caller's ends at this service, and one of our
own goes to the guest, with nothing of the caller's but his path, his harmless headers and the protocols he offers.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from contextlib import suppress
from typing import Annotated, Final

from fastapi import APIRouter, Depends, WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState
from websockets.client import ClientProtocol
from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Origin, Subprotocol
from websockets.uri import WebSocketURI

from ringfence.errors import TimedOut, Unavailable
from ringfence.interfaces.http.door import allowed, house_of
from ringfence.interfaces.http.process_ports import ANSWER_SECONDS, forwarded, target_of
from ringfence.interfaces.http.process_tty import require_own_page
from ringfence.service import processes
from ringfence.service.callers import Access, Principal

router = APIRouter()

MOST_MESSAGE_BYTES: Final = 1 << 20
_CHUNK: Final = 1 << 16
_OURS: Final = "ringfence."
_OPAQUE: Final = "null"
_NORMAL, _AWAY, _WRONG = 1000, 1001, 1011
# what a page may be told of how a connection ended (RFC 6455 7.4); the others are never sent
_SAYABLE: Final = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, *range(3000, 5000)})
_MOST_REASON: Final = 120


@router.websocket("/{process_id}/ports/{port}/{path:path}")
async def forward(
    websocket: WebSocket,
    process_id: str,
    port: int,
    path: str,  # noqa: ARG001  taken as it was sent, from the request
    who: Annotated[Principal, Depends(allowed(Access.AGENT))],
) -> None:
    """Pass messages between the caller and a port that the process was started with, until one of them ends it."""
    house = house_of(websocket)
    # a page that the guest served has no origin that it could name, and needs a key like everybody
    if websocket.headers.get("origin") != _OPAQUE:
        require_own_page(websocket, house.settings.cors_origins)
    process = processes.found(house, who, process_id)
    guest = Guest(await process.connect(port), port)
    try:
        accepted = await guest.open(websocket, f"/sandbox/processes/{process_id}/ports/{port}")
        await websocket.accept(subprotocol=accepted)
        await _until_one_ends(websocket, guest)
    finally:
        guest.close()


class Guest:
    """Our websocket to what listens in the box; nothing it says is believed before it was parsed."""

    def __init__(self, connected: socket.socket, port: int) -> None:
        """Take over `connected`."""
        self._socket = connected
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._spoken: ClientProtocol | None = None
        self._begun = bytearray()
        self._later: deque[str | bytes] = deque()
        self._is_text = False

    async def open(self, caller: WebSocket, prefix: str) -> str | None:
        """Ask the guest for a websocket, and return the protocol that it chose of those the caller offered.

        Raises:
            Unavailable: What listens there opens none.
            TimedOut: It does not answer.
        """
        path, _, query = target_of(caller.scope).decode("latin-1").partition("?")
        offered = [Subprotocol(name) for name in caller.scope.get("subprotocols") or () if not name.startswith(_OURS)]
        spoken = self._spoken = ClientProtocol(
            WebSocketURI(secure=False, host="localhost", port=self._port, path=path, query=query),
            origin=Origin(f"http://localhost:{self._port}"),
            subprotocols=offered or None,
            max_size=MOST_MESSAGE_BYTES,
        )
        asked = spoken.connect()
        for name, value in forwarded(caller.headers, prefix):
            asked.headers[name] = value
        spoken.send_request(asked)
        self._socket.setblocking(False)
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=_CHUNK)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._flush()
                while spoken.state is State.CONNECTING and spoken.handshake_exc is None:
                    await self._hear()
        except TimeoutError:
            raise TimedOut(f"port {self._port} of the process does not answer", reason="read_timeout") from None
        except (OSError, WebSocketException, ValueError) as error:
            raise self._refusal() from error
        # it may have been opened and ended in one breath
        if spoken.state is State.CONNECTING or spoken.handshake_exc is not None:
            raise self._refusal()
        return spoken.subprotocol

    async def send(self, message: str | bytes) -> None:
        """Give the guest a message, as fast as it reads."""
        if isinstance(message, str):
            self._protocol.send_text(message.encode("utf-8", "replace"))
        else:
            self._protocol.send_binary(message)
        await self._flush()

    async def next(self) -> str | bytes | None:
        """Return the next whole message of the guest; None when it has ended."""
        while True:
            for event in self._protocol.events_received():
                if isinstance(event, Frame) and (whole := self._whole(event)) is not None:
                    self._later.append(whole)
            if self._later:
                return self._later.popleft()
            if self._protocol.state is not State.OPEN or not await self._hear():
                return None

    @property
    def ended(self) -> tuple[int, str]:
        """The code and the reason with which the guest ended it, as they may be told."""
        frame = self._protocol.close_rcvd
        if frame is None:  # it went without a word, or said what we did not take
            refused = self._protocol.close_sent
            return (_AWAY if refused is None else refused.code), ""
        code = frame.code if frame.code in _SAYABLE else _NORMAL if frame.code == 1005 else _WRONG
        return code, frame.reason.encode()[:_MOST_REASON].decode("utf-8", "ignore")

    async def tell_end(self, code: int) -> None:
        """Say to the guest that its caller has left."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code if code in _SAYABLE else _AWAY)
            await self._flush()

    def close(self) -> None:
        """Let go of the connection."""
        if self._writer is None:
            self._socket.close()
        else:
            self._writer.transport.abort()

    @property
    def _protocol(self) -> ClientProtocol:
        if self._spoken is None:
            raise Unavailable("the websocket of the process was never opened", reason="connect_failed")
        return self._spoken

    def _whole(self, frame: Frame) -> str | bytes | None:
        """Return the message that a frame ends, if it does; the protocol has refused what would be too long."""
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return None
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._begun += frame.data  # not a list: there is no end of pieces without content
        if not frame.fin:
            return None
        whole, self._begun = bytes(self._begun), bytearray()
        return whole.decode("utf-8", "replace") if self._is_text else whole

    async def _hear(self) -> bool:
        """Take what the guest says next, and answer its pings; False when it says nothing any more."""
        data = b"" if self._reader is None else await self._reader.read(_CHUNK)
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        await self._flush()
        return bool(data)

    async def _flush(self) -> None:
        if self._writer is not None:
            for data in self._protocol.data_to_send():
                if data:
                    self._writer.write(data)
            await self._writer.drain()

    def _refusal(self) -> Unavailable:
        return Unavailable(f"what listens on port {self._port} opens no websocket", reason="connect_failed")


async def _until_one_ends(websocket: WebSocket, guest: Guest) -> None:
    telling = asyncio.ensure_future(_tell(websocket, guest))
    asking = asyncio.ensure_future(_ask(websocket, guest))
    try:
        await asyncio.wait([telling, asking], return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            asking.result()
        else:
            telling.result()
    except WebSocketDisconnect as left:
        with suppress(OSError, WebSocketException):
            await guest.tell_end(left.code)
    except (OSError, WebSocketException):
        await _end(websocket, _AWAY, "")
    finally:
        for task in (telling, asking):
            task.cancel()
        await asyncio.gather(telling, asking, return_exceptions=True)


async def _tell(websocket: WebSocket, guest: Guest) -> None:
    while (message := await guest.next()) is not None:
        await (websocket.send_text(message) if isinstance(message, str) else websocket.send_bytes(message))
    await _end(websocket, *guest.ended)


async def _ask(websocket: WebSocket, guest: Guest) -> None:
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code") or _NORMAL)
        data = message.get("bytes")
        await guest.send(message.get("text") or "" if data is None else data)


async def _end(websocket: WebSocket, code: int, reason: str) -> None:
    if websocket.application_state is WebSocketState.CONNECTED:
        await websocket.close(code, reason)
