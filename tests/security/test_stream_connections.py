"""Attack: be a container that lies to whoever stays with its run, and connects to its ports."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.stream_scripts import Container, Script, held, job

from ringfence.attachment import Controls
from ringfence.errors import RingfenceError
from ringfence.isolation.protocol import Kind, encode
from ringfence.isolation.stream import wire
from ringfence.isolation.stream.controls import StreamControls
from ringfence.isolation.stream.host import StreamWorker
from ringfence.ports import Ending

pytestmark = [pytest.mark.guarantee(13), pytest.mark.guarantee(29), pytest.mark.timeout(60)]


class Here:
    """Somebody who stays, and sends at once."""

    terminal: tuple[int, int] | None = None
    idle_seconds: float | None = None
    ports: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.controls: list[Controls] = []
        self.is_here = asyncio.Event()

    async def attach(self, controls: Controls) -> None:
        self.controls.append(controls)
        await controls.send(b"first")
        self.is_here.set()

    def hear(self, name: str, data: bytes) -> None:
        """Nothing is said."""


@pytest.mark.guarantee(24)
def test_a_container_cannot_make_somebody_who_sends_wait_forever() -> None:
    def script(container: Container) -> None:
        container.start()
        container.until(Kind.STDIN)
        container.say(Kind.TAKEN)
        container.say(Kind.EXIT, b"0 0 0 0 0 0 0")
        container.stay()

    here = Here()

    async def send_on(worker: StreamWorker) -> None:
        run = asyncio.ensure_future(worker.run(job(), None, None, here))
        await here.is_here.wait()
        sent = asyncio.gather(*(here.controls[0].send(bytes(1 << 16)) for _ in range(64)), return_exceptions=True)
        assert any(isinstance(error, RingfenceError) for error in await sent)
        await run

    with held(script) as worker:
        asyncio.run(send_on(worker))


class Connecting(Here):
    """Somebody who stays, and may connect to a port."""

    ports: tuple[int, ...] = (8000,)

    async def attach(self, controls: Controls) -> None:
        self.controls.append(controls)
        self.is_here.set()


FIRST = (1).to_bytes(4, "big")


def connected(script: Script) -> tuple[bytes, Ending]:
    """Connect to a port of such a container; return what came through, and how the run ended."""
    here = Connecting()

    async def connect(worker: StreamWorker) -> tuple[bytes, Ending]:
        run = asyncio.ensure_future(worker.run(job(), None, None, here))
        await here.is_here.wait()
        try:
            fd = await asyncio.to_thread(here.controls[0].connect, 8000)
        except RingfenceError:
            return b"", await run
        with socket.socket(fileno=fd) as end:
            end.settimeout(20)
            came = await asyncio.to_thread(lambda: b"".join(iter(lambda: end.recv(1 << 16), b"")))
        return came, await run

    with held(script) as worker:
        return asyncio.run(connect(worker))


@pytest.mark.guarantee(24)
@pytest.mark.parametrize(
    "lie",
    [
        encode(Kind.FLOW, b""),
        encode(Kind.FLOW, (7).to_bytes(4, "big") + b"x"),
        encode(Kind.ROOM, FIRST + b"1"),
        encode(Kind.ROOM, FIRST + b"9" * 5000),
        encode(Kind.ROOM, FIRST + b"-1"),
        encode(Kind.DIAL, (9).to_bytes(4, "big") + b"0"),
        encode(Kind.DIAL, FIRST + b"no"),
        encode(Kind.FLOW, FIRST + bytes(wire.ROOM_BYTES + 1)),
        encode(Kind.FLOW, FIRST) + encode(Kind.FLOW, FIRST + b"after its end"),
    ],
)
def test_a_container_that_lies_about_a_connection_is_ended(lie: bytes) -> None:
    def script(container: Container) -> None:
        container.start()
        assert container.until(Kind.DIAL) == FIRST + b"8000"
        container.say(Kind.DIAL, FIRST + b"0")
        container.write(lie)
        container.stay()

    came, ending = connected(script)
    assert len(came) <= wire.WINDOW_BYTES * 4  # what was passed on in time, and never more than is read
    assert ending.killed_by == "unknown"


class Early(Here):
    """Somebody who connects to a port before the container has its job."""

    ports: tuple[int, ...] = (8000,)

    async def attach(self, controls: Controls) -> None:
        self.connecting = asyncio.ensure_future(asyncio.to_thread(controls.connect, 8000))
        assert isinstance(controls, StreamControls)
        assert controls._ways is not None
        while not controls._ways._wanted and not controls._ways._asked:  # noqa: ASYNC110  a thread does it
            await asyncio.sleep(0)


@pytest.mark.guarantee(24)
def test_no_word_about_a_connection_comes_before_the_job() -> None:
    """Seen red: under load a container was told of a connection first, and never answered."""

    def script(container: Container) -> None:
        container.start()
        container.until(Kind.DIAL)
        container.say(Kind.DIAL, FIRST + b"0")
        container.say(Kind.EXIT, b"0 0 0 0 0 0 0")
        container.stay()

    async def connect(worker: StreamWorker) -> Ending:
        here = Early()

        async def begin() -> None:
            """Have the word to start held back until here."""

        ending = await worker.run(job(), None, begin, here)
        socket.socket(fileno=await here.connecting).close()
        return ending

    with held(script) as worker:
        assert asyncio.run(connect(worker)).exit_code == 0


@pytest.mark.guarantee(24)
def test_a_connection_ends_with_its_run_and_one_that_is_refused_is_none() -> None:
    def open_then_end(container: Container) -> None:
        container.start()
        container.until(Kind.DIAL)
        container.say(Kind.DIAL, FIRST + b"0")
        container.say(Kind.FLOW, FIRST + b"hello")
        container.until(Kind.ROOM)
        container.say(Kind.EXIT, b"0 0 0 0 0 0 0")
        container.stay()

    def refuse(container: Container) -> None:
        container.start()
        container.until(Kind.DIAL)
        container.say(Kind.DIAL, FIRST + b"111")
        container.say(Kind.EXIT, b"0 0 0 0 0 0 0")
        container.stay()

    assert (connected(open_then_end)[0], connected(refuse)[0]) == (b"hello", b"")
