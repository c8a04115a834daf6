"""A quota service on loopback: a real HTTP server that counts with the memory meter, and can be told to misbehave."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from ringfence.budgets.memory import MemoryMeter
from ringfence.budgets.reservation import MeterSource, Reservation, Usage
from ringfence.budgets.scope import INSTANCE, Account, Chain, Scope, ScopeKind
from ringfence.capability.budget import read_budget
from ringfence.errors import QuotaExceeded


class Service:
    """What the server knows, and what it was asked."""

    def __init__(self) -> None:
        self.meter = MemoryMeter()
        self.open: dict[str, Reservation] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.url = ""
        self.misbehave: Callable[[BaseHTTPRequestHandler, str], bool] = lambda handler, path: False
        self.hang = threading.Event()

    def answer(self, path: str, form: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        words = [unquote(word) for word in path.strip("/").split("/")]
        if words[1:] == []:
            try:
                least = read_budget(form["least"]) if "least" in form else None
                held = self.meter.reserve(
                    read_chain(form["chain"]), read_budget(form["amounts"]), form["exec_id"], least=least
                )
            except QuotaExceeded as refused:
                return 429, dict(refused.details)
            self.open[held.exec_id] = held
            granted = {kind: held.amounts.to_json()[kind] for kind in form["amounts"]}
            return 200, {"amounts": granted}
        held = self.open.get(words[1], Reservation(words[1], read_budget({})))
        if words[2] == "release":
            settlement = self.meter.release(held)
        else:
            settlement = self.meter.settle(held, Usage(read_budget(form["used"]), MeterSource(form["source"])))
        was_open = self.open.pop(words[1], None) is not None
        return 200, {"charged": settlement.charged.to_json(), "was_open": was_open}


def read_chain(form: list[dict[str, Any]]) -> Chain:
    accounts = []
    for entry in form:
        kind = ScopeKind(entry["scope"])
        scope = INSTANCE if kind is ScopeKind.INSTANCE else Scope(kind, entry["name"], entry["tenant"])
        accounts.append(Account(scope, read_budget(entry["budget"])))
    return Chain(tuple(accounts))


@contextmanager
def running() -> Iterator[Service]:
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            service.asked.append((self.path, self.headers.get("Authorization")))
            if service.misbehave(self, self.path):
                return
            status, answer = service.answer(self.path, body)
            send(self, status, json.dumps(answer).encode())

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield service
    finally:
        service.hang.set()
        server.shutdown()
        thread.join()
        server.server_close()


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {**headers, "Content-Length": str(len(body))}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)
