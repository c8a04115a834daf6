"""A container that says whatever a test wants it to: the host's side of the byte stream has to survive all of it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ringfence.capability.limits import Limits
from ringfence.isolation.protocol import Decoder, Kind, encode
from ringfence.isolation.stream import wire
from ringfence.isolation.stream.boot import bundle
from ringfence.isolation.stream.host import StreamWorker
from ringfence.isolation.stream.line import Line
from ringfence.isolation.stream.parking import park
from ringfence.operation import Language
from ringfence.outcome import Layers, SandboxType
from ringfence.ports import Job, WorkerSpec
from ringfence.workspaces.session import SessionWorkspace

HELLO = {"pid": 2, "python": "3.11.7", "landlock": 0, "filters": 0, "notes": []}
Script = Callable[["Container"], None]


class Container:
    """The other end of a line, in a thread of its own."""

    def __init__(self, script: Script) -> None:
        self.inlet, stdin = os.pipe()
        stdout, self.outlet = os.pipe()
        stderr, self.errors = os.pipe()
        self.killed = threading.Event()
        self._decoder = Decoder()
        self._heard: list[tuple[Kind, bytes]] = []
        self.line = Line(stdin, stdout, stderr, self.killed.set, lambda: None)
        self._thread = threading.Thread(target=self._play, args=(script,), daemon=True)
        self._thread.start()

    def _play(self, script: Script) -> None:
        try:
            script(self)
        except OSError:
            pass  # the host hung up
        finally:
            for fd in (self.inlet, self.outlet, self.errors):
                os.close(fd)

    def end(self) -> None:
        """Wait until the script is over."""
        self._thread.join(30)
        assert not self._thread.is_alive()

    def say(self, kind: Kind, payload: bytes = b"") -> None:
        self.write(encode(kind, payload))

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.outlet, rest) :]

    def take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = os.read(self.inlet, size - len(data))
            if not piece:
                raise OSError("hung up")
            data += piece
        return data

    def until(self, wanted: Kind) -> bytes:
        """Take messages until one of that kind comes."""
        while True:
            while self._heard:
                kind, payload = self._heard.pop(0)
                if kind is wanted:
                    return payload
            data = os.read(self.inlet, 1 << 16)
            if not data:
                raise OSError("hung up")
            self._heard += self._decoder.feed(data)

    def boot(self) -> None:
        """Be booted, and say that all is well."""
        self.take(len(bundle()))
        self.until(Kind.SETUP)
        self.say(Kind.READY, json.dumps(HELLO).encode())

    def start(self) -> None:
        """Be booted and given a job."""
        self.boot()
        self.until(Kind.START)
        self.say(Kind.STARTED)

    def finish(self, *, files: bool = True) -> None:
        """Have a guest that ended well."""
        self.start()
        self.say(Kind.EXIT, b"0 1000 1000 -1 -1 0 %d" % files)

    def stay(self) -> None:
        """Do nothing until the host hangs up."""
        while os.read(self.inlet, 1 << 16):
            pass


def entry(path: bytes, kind: int = wire.FILE, **more: Any) -> bytes:
    """Return the payload of an entry, without asking whether it can be."""
    told = {"area": wire.WORK, "flags": 0, "mode": 0o644, "mtime_ns": 0, "size": 0, "target": b"", **more}
    return wire.pack(wire.Entry(kind=kind, path=path, **told))


def parked(
    script: Script, *, session: SessionWorkspace | None = None, seconds: float = 30.0, **spec: Any
) -> tuple[StreamWorker, Container]:
    """Return the worker at the end of such a line."""
    container = Container(script)
    try:
        worker = park(
            container.line,
            WorkerSpec(**spec),
            sandbox_id="rf-script",
            backend="docker",
            sandbox_type=SandboxType.DOCKER,
            limits=Limits(),
            inputs=None,
            session=session,
            observe=lambda _: Layers(),
            on_discard=lambda: None,
            seconds=seconds,
        )
    except BaseException:
        container.end()
        assert container.killed.is_set()
        raise
    return worker, container


@contextmanager
def held(script: Script, **options: Any) -> Iterator[StreamWorker]:
    """Give the worker at the end of such a line, and see that its container was ended."""
    worker, container = parked(script, **options)
    try:
        yield worker
    finally:
        worker.discard()
        container.end()
        assert container.killed.is_set()


def job(code: str = "pass", language: Language = Language.PYTHON, *, stdin: bytes = b"", **limits: Any) -> Job:
    """Return what such a worker is given to run."""
    return Job(language, code, (), {}, stdin, Limits(**limits))
