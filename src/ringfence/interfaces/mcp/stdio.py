"""The protocol over standard input and output: nothing but its own lines ever reaches either of them.

From before the first box is started, descriptors 0 and 1 lead elsewhere, and only private copies of them lead to the
client. A line that is too long or no message is answered and the next one read; whoever does not read is not read from.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types.jsonrpc import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import from_json

from ringfence.authority import strict_json
from ringfence.dataclass import dataclass

MOST_LINE: Final = 4 << 20
"""Bytes of one message; a longer one is thrown away as it comes, and answered."""
MOST_UNREAD: Final = 128
"""Answers that may wait for the client to read before no more is read from it."""
LAST_SECONDS: Final = 2.0
"""How long the last answers may take when the client has said that nothing more comes."""
_CHUNK: Final = 1 << 16

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]


@dataclass(frozen=True, slots=True)
class Wire:
    """The private copies of the two descriptors that lead to the client."""

    source: int
    sink: int


@contextmanager
def taken_over() -> Iterator[Wire]:
    """Take standard input and output away from the rest of the process, and from all that it starts."""
    wire = Wire(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3), fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3))
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)  # what prints where it should not is seen in the log, and by no client
    # never closed: a thread may still wait in a read of it, and the number must not become another file's
    yield wire


@asynccontextmanager
async def connected(wire: Wire) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """Give the two streams of messages that a server runs on."""
    arrived_in, arrived = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    leaving, leaving_out = anyio.create_memory_object_stream[SessionMessage](0)
    sink = _Sink(wire.sink)
    under_way: set[RequestId] = set()
    written = anyio.Event()
    async with anyio.create_task_group() as both:
        both.start_soon(_read, wire.source, arrived_in, leaving.clone(), sink, under_way)
        both.start_soon(_write, sink, leaving_out, written, under_way)
        try:
            yield arrived, leaving
            await leaving.aclose()
            with anyio.move_on_after(LAST_SECONDS):
                await written.wait()  # what was answered before the client went
        finally:
            both.cancel_scope.cancel()


async def _read(
    source: int,
    arrived: MemoryObjectSendStream[SessionMessage | Exception],
    leaving: Outgoing,
    sink: _Sink,
    under_way: set[RequestId],
) -> None:
    async with arrived, leaving:
        async for line in _lines(source):
            if not line.strip() if line is not None else False:
                continue
            await sink.drained(leaving)
            message = _message(line)
            if isinstance(message, JSONRPCRequest) and message.id in under_way:
                # without the id, which stands for the one that has no answer yet
                message = _refused(INVALID_REQUEST, "a request with this id is under way")
            if isinstance(message, _Refusal):
                await leaving.send(SessionMessage(message))
            elif isinstance(message, JSONRPCRequest):
                await arrived.send(_request(message, under_way))
            else:
                await arrived.send(SessionMessage(message))


def _request(request: JSONRPCRequest, under_way: set[RequestId]) -> SessionMessage:
    """Return a request for the server, under way from now on until it is answered or has ended without an answer."""

    async def unanswered() -> None:
        under_way.discard(request.id)

    under_way.add(request.id)
    return SessionMessage(request, ServerMessageMetadata(on_request_unanswered=unanswered))


class _Refusal(JSONRPCError):
    """What we answer a line with: it ends no request, and what a client answers with is none."""


def _message(line: bytes | None) -> JSONRPCMessage:
    """Return the message in a line, or the error that answers what is none."""
    if line is None:
        return _refused(INVALID_REQUEST, f"a message has at most {MOST_LINE} bytes")
    try:
        strict_json.read(line)
        form = from_json(line, allow_inf_nan=False)  # which knows of texts that are none, and not of keys written twice
    except strict_json.KeyTwice:
        return _refused(INVALID_REQUEST, "a key is written twice in one object")
    except (ValueError, RecursionError):
        return _refused(PARSE_ERROR, "a line must be one JSON-RPC message")
    if isinstance(form, list):
        return _refused(INVALID_REQUEST, "batches are not part of this protocol")
    request_id = form.get("id") if isinstance(form, dict) else None
    try:
        message = jsonrpc_message_adapter.validate_python(form, by_name=False)
    except ValidationError:
        return _refused(INVALID_REQUEST, "this is no JSON-RPC message", request_id)
    if isinstance(message, JSONRPCNotification) and "id" in form:
        return _refused(INVALID_REQUEST, "an id must be a text or a whole number")  # else it would wait for ever
    return message


def _refused(code: int, message: str, request_id: Any = None) -> _Refusal:
    known = request_id if isinstance(request_id, str | int) and not isinstance(request_id, bool) else None
    return _Refusal(jsonrpc="2.0", id=known, error=ErrorData(code=code, message=message))


async def _lines(source: int) -> AsyncIterator[bytes | None]:
    """Yield the lines as they come; `None` stands for one that was too long."""
    rest, too_long = bytearray(), False
    async for chunk in _chunks(source):
        first, *others = chunk.split(b"\n")
        rest += first
        for other in others:
            yield None if too_long else bytes(rest)
            rest, too_long = bytearray(other), False
        if len(rest) > MOST_LINE:
            rest, too_long = bytearray(), True
    if rest and not too_long:
        yield bytes(rest)


async def _chunks(source: int) -> AsyncIterator[bytes]:
    """Yield what comes, read in a thread that nobody waits for when the process ends."""
    loop = asyncio.get_running_loop()
    asked: queue.SimpleQueue[asyncio.Future[bytes] | None] = queue.SimpleQueue()

    def pump() -> None:
        while (waiting := asked.get()) is not None:
            try:
                data = os.read(source, _CHUNK)
            except OSError:
                data = b""
            _settle(loop, waiting, data)

    threading.Thread(target=pump, daemon=True, name="mcp-stdin").start()
    try:
        while True:
            waiting: asyncio.Future[bytes] = loop.create_future()
            asked.put(waiting)
            if not (chunk := await waiting):
                return
            yield chunk
    finally:
        asked.put(None)


async def _write(
    sink: _Sink,
    leaving: MemoryObjectReceiveStream[SessionMessage],
    written: anyio.Event,
    under_way: set[RequestId],
) -> None:
    async with leaving:
        async for each in leaving:
            if isinstance(each.message, JSONRPCResponse | JSONRPCError) and not isinstance(each.message, _Refusal):
                under_way.discard(each.message.id)  # before the client can know
            text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
            await sink.write(text.encode("utf-8", "backslashreplace") + b"\n")
    written.set()


class _Sink:
    """Writes to the client in a thread of its own, so that one who does not read holds up nobody else."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._given: queue.SimpleQueue[tuple[bytes, asyncio.Future[bytes]]] = queue.SimpleQueue()
        self._wrote = asyncio.Condition()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._pump, daemon=True, name="mcp-stdout").start()

    async def write(self, data: bytes) -> None:
        """Write a whole line, and wake whoever waits for room."""
        done: asyncio.Future[bytes] = self._loop.create_future()
        self._given.put((data, done))
        await done
        async with self._wrote:
            self._wrote.notify_all()

    async def drained(self, leaving: Outgoing) -> None:
        """Wait while too many answers have not been read by the client."""
        async with self._wrote:
            await self._wrote.wait_for(lambda: leaving.statistics().tasks_waiting_send <= MOST_UNREAD)

    def _pump(self) -> None:
        while True:
            data, done = self._given.get()
            left = memoryview(data)
            try:
                while left:
                    left = left[os.write(self._fd, left) :]
            except OSError:
                pass  # the client is gone, and its end of the other pipe says so too
            _settle(self._loop, done, b"")


def _settle(loop: asyncio.AbstractEventLoop, waiting: asyncio.Future[bytes], data: bytes) -> None:
    def settle() -> None:
        if not waiting.done():
            waiting.set_result(data)

    with suppress(RuntimeError):  # the loop is closed: the process is ending
        loop.call_soon_threadsafe(settle)
