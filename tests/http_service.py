"""A service as its callers have it: `ringfence serve` in a process of its own, and the wire to it, raw where needed."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from tests.command_line import COMMAND, PATIENCE_SECONDS, surroundings, told


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        assert self.headers["content-type"] == "application/problem+json", (self.status, self.headers, self.body)
        problem = self.json
        assert problem["status"] == self.status
        assert {"type", "title", "detail", "code", "retryable", "details"} <= problem.keys()
        return str(problem["reason"])


@dataclass
class Service:
    """One running service; `key` is the first admin's."""

    home: Path
    process: subprocess.Popen[str]
    port: int
    key: str | None
    said: list[str] = field(default_factory=list)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = "first",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        try:
            return exchange(connection, method, path, body, self.key if key == "first" else key, headers)
        finally:
            connection.close()

    def ask_socket(self, method: str, path: str, body: Any = None) -> Answer:
        """Come as the owner of the home."""
        connection = http.client.HTTPConnection("localhost", timeout=PATIENCE_SECONDS)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(PATIENCE_SECONDS)
        connection.sock.connect(str(self.home / "service.sock"))
        try:
            return exchange(connection, method, path, body, None, None)
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS)

    def say(self, sent: bytes, *, half_close: bool = False) -> Answer:
        """Send bytes as they are, and read until the service closes."""
        with self.connect() as wire:
            wire.sendall(sent)
            if half_close:
                wire.shutdown(socket.SHUT_WR)
            return read_answer(wire)

    def make_key(self, access: str, tenant: str = "local", name: str = "") -> str:
        words = ["--access", access, "--tenant", tenant, *(("--name", name) if name else ())]
        made: str = told(self.home, "key", "create", *words)["key"]
        return made

    def end(self, signum: int = signal.SIGTERM) -> int:
        self.process.send_signal(signum)
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def serving(home: Path, *words: str, port: int = 0, **environment: str) -> Iterator[Service]:
    """Start a service, and end it if the test did not."""
    process = subprocess.Popen(
        [*COMMAND, "serve", "--port", str(port), *words],
        env=surroundings(home, **environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said: list[str] = []
    first = process.stderr.readline()
    said.append(first)
    address = re.search(r"http://\S+:(\d+)", first)
    if address is None:
        raise AssertionError((first, process.communicate(timeout=PATIENCE_SECONDS)))
    service = Service(home, process, int(address[1]), None, said)
    listening = threading.Thread(target=_collect, args=(process.stderr, said))
    listening.start()
    try:
        # what it says about itself is written at once, before the first request is answered
        service.ask("GET", "/sandbox/health", key=None)
        found = re.search(r"^  (rfk_\S+)$", "".join(said), re.MULTILINE)
        service.key = None if found is None else found[1]
        yield service
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        listening.join()
        process.stderr.close()


def _collect(stream: TextIO, said: list[str]) -> None:
    said.extend(stream)


def exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any,
    key: str | None,
    headers: Mapping[str, str] | None,
) -> Answer:
    sent = dict(headers or {})
    if key is not None:
        sent.setdefault("Authorization", f"Bearer {key}")
    content = body
    if body is not None and not isinstance(body, bytes):
        content = json.dumps(body).encode()
        sent.setdefault("Content-Type", "application/json")
    connection.request(method, path, content, sent)
    got = connection.getresponse()
    return Answer(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())


def read_answer(wire: socket.socket) -> Answer:
    """Read one answer, to the end of the connection."""
    got = http.client.HTTPResponse(wire)
    got.begin()
    return Answer(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())
