"""Runs the service in this process until a signal: drains what runs, closes the doors, closes the journal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from ringfence.interfaces.http.app import build
from ringfence.interfaces.http.protocol import connection_class
from ringfence.interfaces.http.websocket import Websocket
from ringfence.service.house import House

_LONGEST_MESSAGE: Final = 1 << 20
_LAST_WORDS: Final = 2
"""Seconds in which answers that are under way still leave, when nothing runs any more."""
_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


class Server(uvicorn.Server):
    """Leaves the signals to us: ending a service means more than closing its sockets."""

    def __init__(self, config: uvicorn.Config) -> None:
        """Nothing is served yet."""
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and say so."""
        await super().startup(sockets)
        self.is_up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def serve(
    house: House,
    sockets: Sequence[socket.socket],
    ready: Callable[[], Awaitable[None]],
    built: Callable[[House], FastAPI] = build,
) -> None:
    """Serve on the sockets until SIGTERM or SIGINT, then end in order; a second signal ends at once.

    `ready` is called when requests are answered; where it raises, the service ends. `built` says which routes there
    are.
    """
    app = built(house)
    server = Server(_config(house, app))
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for signum in _ENDING:
        loop.add_signal_handler(signum, _end, loop, told, house)
    try:
        await house.start()
        running = asyncio.ensure_future(server.serve(sockets=list(sockets)))
        await _first_of(server.is_up.wait(), running)
        if server.is_up.is_set():
            await ready()
            await _first_of(told.wait(), running)
        await house.drain()
        server.should_exit = True
        await running
    finally:
        for signum in _ENDING:
            loop.remove_signal_handler(signum)
        try:
            await app.state.mcp.close()
        finally:
            await house.close()


def _config(house: House, app: FastAPI) -> uvicorn.Config:
    settings = house.settings
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL + 1)  # it would quote requests
    return uvicorn.Config(
        app,
        http=connection_class(settings),
        ws=Websocket,
        ws_max_size=_LONGEST_MESSAGE,
        loop="asyncio",
        lifespan="off",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=int(max(1, settings.keep_alive_seconds)),
        timeout_graceful_shutdown=_LAST_WORDS,
        h11_max_incomplete_event_size=settings.max_header_bytes,
    )


def _end(loop: asyncio.AbstractEventLoop, told: asyncio.Event, house: House) -> None:
    house.begin_draining()
    told.set()
    for signum in _ENDING:
        # guests die with this process, so a person who insists may end it at once
        loop.remove_signal_handler(signum)
        loop.add_signal_handler(signum, os.kill, os.getpid(), signal.SIGKILL)


async def _first_of(waiting: Coroutine[Any, Any, Any], running: asyncio.Future[None]) -> None:
    task = asyncio.ensure_future(waiting)
    await asyncio.wait({task, running}, return_when=asyncio.FIRST_COMPLETED)
    task.cancel()
