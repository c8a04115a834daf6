"""Calls the service as fast as a client can, from a process of its own: `python -m ringfence.bench.http_caller`.

Its requests are made once, and answers are read no further than it takes to check them, so that what is measured is the
service. Orders come as lines of JSON on stdin, what came of them leaves on stdout.
"""

from __future__ import annotations

import json
import resource
import selectors
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from ringfence.dataclass import dataclass, field

_BLOCK = 65536
_BODY = json.dumps({"project_id": "bench", "exec": {"kind": "python", "code": "print(1)"}}).encode()
_EXPECTED = rb'"stdout": "1\n"'
_LONGEST_ANSWER_SECONDS = 60.0


@dataclass
class Wire:
    """One connection that is kept; `answer` collects what has come of the answer that is awaited."""

    sock: socket.socket
    answer: bytearray = field(default_factory=bytearray)
    sent_at: float = 0.0

    def send(self, request: bytes) -> None:
        """Send a request whole."""
        self.answer.clear()
        self.sent_at = time.perf_counter()
        self.sock.sendall(request)

    def read(self) -> bool:
        """Take what has come; True when it is a whole answer.

        Raises:
            ConnectionError: The service hung up.
        """
        piece = self.sock.recv(_BLOCK)
        if not piece:
            raise ConnectionError("the service hung up")
        self.answer += piece
        end = self.answer.find(b"\r\n\r\n")
        return end >= 0 and len(self.answer) >= end + 4 + _length(self.answer[:end])

    def wait(self) -> bytes:
        """Return the whole answer."""
        while not self.read():
            pass
        return bytes(self.answer)


def _length(head: bytes | bytearray) -> int:
    _, found, rest = head.lower().partition(b"content-length: ")
    return int(rest.partition(b"\r\n")[0]) if found else 0


class Caller:
    """The clients of one service."""

    def __init__(self, port: int, key: str) -> None:
        """Nothing is connected yet."""
        self._port = port
        self._head = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        self._post = self._request("POST", "/sandbox/execs", _BODY)
        self._wires: list[Wire] = []
        self._one: Wire | None = None

    def one(self, path: str | None = None) -> float:
        """Run `print(1)`, or fetch a path, on a connection that is kept, and return the seconds it took."""
        if self._one is None:
            self._one = self._connect()
        self._one.send(self._post if path is None else self._request("GET", path))
        answer = self._one.wait()
        taken = time.perf_counter() - self._one.sent_at
        _check(answer, path is None)
        return taken

    def crowd(self, clients: int, seconds: float) -> dict[str, Any]:
        """Run `print(1)` from so many clients at once, each asking again as soon as it is answered."""
        taken: list[float] = []
        errors: list[str] = []
        selector = selectors.DefaultSelector()
        for _ in range(clients):
            wire = self._connect()
            selector.register(wire.sock, selectors.EVENT_READ, wire)
            wire.send(self._post)
        began = time.perf_counter()
        asking = clients
        while asking:
            for chosen, _ in selector.select(_LONGEST_ANSWER_SECONDS):
                wire = chosen.data
                try:
                    if not wire.read():
                        continue
                    now = time.perf_counter()
                    taken.append(now - wire.sent_at)
                    _check(bytes(wire.answer), is_run=True)
                except (OSError, ValueError) as error:
                    errors.append(str(error)[:200])
                if now - began < seconds and not errors:
                    wire.send(self._post)
                else:
                    selector.unregister(wire.sock)
                    wire.sock.close()
                    asking -= 1
        return {"seconds": taken, "lasted": time.perf_counter() - began, "errors": errors}

    def idle(self, clients: int, path: str) -> int:
        """Open so many streams of events, and return how many bytes came; they stay open."""
        request = self._request("GET", path)
        for _ in range(clients):
            wire = self._connect()
            wire.send(request)
            self._wires.append(wire)
        came = 0
        for wire in self._wires:
            while b"event: status" not in wire.answer:
                wire.answer += wire.sock.recv(_BLOCK)
            if not wire.answer.startswith(b"HTTP/1.1 200"):
                raise ValueError(f"no stream: {bytes(wire.answer[:200])!r}")
            came += len(wire.answer)
        return came

    def _connect(self) -> Wire:
        sock = socket.create_connection(("127.0.0.1", self._port), timeout=_LONGEST_ANSWER_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Wire(sock)

    def _request(self, method: str, path: str, body: bytes = b"") -> bytes:
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        return f"{method} {path} HTTP/1.1\r\n{self._head}{length}\r\n".encode() + body


def _check(answer: bytes, is_run: bool) -> None:
    if is_run and (not answer.startswith(b"HTTP/1.1 201 ") or _EXPECTED not in answer):
        raise ValueError(f"this is not what print(1) gives: {answer[:400]!r}")
    if not is_run and not answer.startswith(b"HTTP/1.1 200 "):
        raise ValueError(f"this is no page: {answer[:400]!r}")


def main() -> None:
    """Carry out orders until stdin ends."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    port, key = int(sys.argv[1]), sys.stdin.readline().strip()
    caller = Caller(port, key)
    known: dict[str, Callable[..., Any]] = {"one": caller.one, "crowd": caller.crowd, "idle": caller.idle}
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {"answer": known[order.pop("do")](**order)}
        except (OSError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
