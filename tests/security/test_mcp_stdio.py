"""A client of the MCP door that means harm, over standard input: the server survives, and says nothing but messages."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import COMMAND, surroundings
from tests.mcp_servers import running

pytestmark = [pytest.mark.needs("native"), pytest.mark.guarantee(13, 14), pytest.mark.once]

HELLO = {
    "capabilities": {},
    "clientInfo": {"name": "hostile", "version": "0"},
}


class Wire:
    """The two pipes of a server that was started, and nothing between them and the test."""

    def __init__(self, home: Path, version: str = "2025-11-25") -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "mcp"],
            env=surroundings(home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.hello = self.ask("initialize", {**HELLO, "protocolVersion": version}, 0)["result"]
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def raw(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def send(self, message: object) -> None:
        self.raw(json.dumps(message).encode())

    def request(self, method: str, params: object, number: object) -> None:
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})

    def call(self, name: str, arguments: object, number: object, **meta: object) -> None:
        self.request("tools/call", {"name": name, "arguments": arguments, **({"_meta": meta} if meta else {})}, number)

    def line(self) -> dict[str, Any]:
        """Return the next line, which is a message of the protocol or the test has failed."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, "the server is gone"
        message = json.loads(text)
        assert message["jsonrpc"] == "2.0"
        assert {"result", "error", "method"} & message.keys()
        return dict(message)

    def answer(self, number: object) -> dict[str, Any]:
        while (message := self.line()).get("id") != number or "method" in message:
            pass
        return message

    def ask(self, method: str, params: object, number: object) -> dict[str, Any]:
        self.request(method, params, number)
        return self.answer(number)

    def works(self) -> None:
        """Run something, to see that the server is as it was."""
        self.call("run_code", {"code": "print('still here')"}, "works")
        assert self.answer("works")["result"]["structuredContent"]["stdout"] == "still here\n"

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.read()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """One server for many clients' tricks: each of them leaves it as it was."""
    with started(tmp_path_factory.mktemp("home")) as wire:
        yield wire


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    with started(tmp_path) as wire:
        yield wire


@contextmanager
def started(home: Path, version: str = "2025-11-25") -> Iterator[Wire]:
    wire = Wire(home, version)
    try:
        yield wire
        wire.end()
        assert wire.process.returncode == 0
    finally:
        wire.process.kill()
        wire.process.wait()


@pytest.mark.parametrize(
    ("asked", "answered"), [("2025-11-25", "2025-11-25"), ("2025-06-18", "2025-06-18"), ("1999-01-01", "2025-11-25")]
)
def test_older_clients_get_their_revision_and_strange_ones_the_last_of_those(
    tmp_path: Path, asked: str, answered: str
) -> None:
    with started(tmp_path, asked) as wire:
        assert wire.hello["protocolVersion"] == answered
        assert wire.hello["serverInfo"]["name"] == "ringfence"
        wire.works()


MALFORMED = {
    "twice": (b'{"jsonrpc": "2.0", "id": 7, "method": "ping", "method": "tools/list"}', -32600),
    "text": (b"hello", -32700),
    "half": (b'{"jsonrpc": "2.0", "id": 1', -32700),
    "no UTF-8": (b'{"jsonrpc": "2.0", "id": 1, "method": "\xff\xfe"}', -32700),
    "NUL": (b"\0\0\0", -32700),
    "lone surrogate": (rb'{"jsonrpc": "2.0", "id": 1, "method": "\ud800"}', -32700),
    "bottomless": (b'{"a":' * 200_000, -32700),
    "bottomless list": (b"[" * 1_000_000, -32700),
    "null": (b"null", -32600),
    "number": (b"1e400", -32600),
    "empty batch": (b"[]", -32600),
    "batch": (b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', -32600),
    "no method": (b'{"jsonrpc": "2.0", "id": 7}', -32600),
    "other version": (b'{"jsonrpc": "1.0", "id": 7, "method": "ping"}', -32600),
    "id that is none": (b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}', -32600),
    "params that are none": (b'{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": 1}', -32600),
    "too long": (b'{"jsonrpc": "2.0", "id": 7, "method": "' + b"x" * (5 << 20) + b'"}', -32600),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_line_that_is_no_message_is_answered_and_the_next_one_read(shared: Wire, name: str) -> None:
    line, code = MALFORMED[name]
    shared.raw(line)
    message = shared.line()
    assert message["error"]["code"] == code
    assert message["id"] in (None, 7)
    assert len(json.dumps(message)) < 300
    shared.works()


def test_thousands_of_bad_lines_and_batches_cost_an_answer_each(wire: Wire) -> None:
    batch = b"[" + b",".join([b'{"jsonrpc":"2.0","id":1,"method":"ping"}'] * 1000) + b"]"
    for _ in range(50):
        for _ in range(20):
            wire.raw(batch)
        for _ in range(20):
            assert wire.line()["error"]["code"] == -32600
    wire.works()


def test_what_a_guest_writes_never_gets_onto_the_wire(wire: Wire) -> None:
    forged = '{"jsonrpc": "2.0", "id": "victim", "result": {}}'
    code = f"""
import os
for fd in range(256):
    for path in (f"/proc/self/fd/{{fd}}", f"/proc/1/fd/{{fd}}", f"/dev/fd/{{fd}}"):
        try:
            with open(path, "wb", buffering=0) as file: file.write(b'\\n{forged}\\n')
        except OSError: pass
    try: os.write(fd, b'\\n{forged}\\n')
    except OSError: pass
"""
    wire.call("run_code", {"code": code}, "spy")
    message = wire.line()
    assert message["id"] == "spy"  # and nothing that claims to be an answer to somebody else came before it
    assert "victim" in message["result"]["structuredContent"]["stdout"]
    wire.works()


def test_our_own_process_cannot_write_onto_the_wire_either() -> None:
    code = (
        "import os, sys\n"
        "from ringfence.interfaces.mcp.stdio import taken_over\n"
        "with taken_over() as wire:\n"
        "    print('stray', flush=True); os.write(1, b'stray'); os.system('echo stray; cat')\n"
        "    os.write(wire.sink, b'message'); sys.stderr.write(os.read(wire.source, 9).decode())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], input=b"from them", capture_output=True, check=True)
    assert done.stdout == b"message"
    assert done.stderr.count(b"stray") == 3
    assert done.stderr.endswith(b"from them")


TRICKS = ["", "run_code ", "RUN_CODE", "run_code\0", "run_code\n", "rün_code", "__class__", "skill.", "skill.../../x"]


@pytest.mark.parametrize("name", [*TRICKS, "x" * 1_000_000], ids=lambda name: ascii(name[:20]))
def test_a_tool_is_found_by_its_exact_name_only(shared: Wire, name: str) -> None:
    shared.call(name, {"code": "print(1)"}, 1)
    message = shared.answer(1)
    assert message["error"]["code"] == -32602
    assert len(json.dumps(message)) < 1000


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_no_bound_is_passed_by_a_number_that_compares_with_nothing(shared: Wire, number: str) -> None:
    params = f'{{"name": "run_code", "arguments": {{"code": "print(1)", "timeout": {number}}}}}'
    shared.raw(f'{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {params}}}'.encode())
    message = shared.line()
    assert "error" in message or message["result"]["isError"]
    shared.works()


@pytest.mark.parametrize("token", ["x" * 300, "x" * 1_000_000, 10**400])
def test_a_token_that_would_come_back_with_every_line_is_refused_when_it_is_long(shared: Wire, token: object) -> None:
    shared.call("run_code", {"code": "import time; time.sleep(1)"}, 1, progressToken=token)
    message = shared.line()
    assert message.get("error", {}).get("code") in (-32602, -32600, -32700)
    assert len(json.dumps(message)) < 1000
    shared.works()


@pytest.mark.parametrize("token", [{"a": 1}, [1], True, None, 1.5])
def test_a_token_that_is_none_gets_no_progress(shared: Wire, token: object) -> None:
    shared.call("run_code", {"code": "import time; time.sleep(1)"}, 1, progressToken=token)
    assert "method" not in shared.line()
    shared.works()


def test_progress_goes_by_the_token_of_its_own_call(wire: Wire) -> None:
    wire.call("run_code", {"code": "import time; time.sleep(1.2)"}, 1, progressToken="mine")
    wire.call("run_code", {"code": "import time; time.sleep(1.2)"}, 2)
    wire.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 2, "progress": 9}})
    heard, answered = [], 0
    while answered < 2:
        message = wire.line()
        if "method" in message:
            heard.append(message["params"]["progressToken"])
        else:
            answered += 1
    assert set(heard) == {"mine"}


def test_cancels_of_anything_at_any_time_kill_only_what_they_name(wire: Wire, tmp_path: Path) -> None:
    marker = f"rf-mcp-{tmp_path.name}"
    strange: tuple[object, ...] = (1, "1", 99, -1, None, {}, [], "x" * 100_000, 10**300)
    for number in strange:
        wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
    for call in range(10, 16):
        wire.call("run_shell", {"command": f"exec -a {marker} sleep 1000"}, call)
    while len(running(marker)) < 6:
        pass
    for _ in range(3):  # again and again: a second cancel must not tear up what the first one cleans
        for call in range(11, 16):
            wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}})
    while len(running(marker)) > 1:
        pass
    wire.works()
    assert len(running(marker)) == 1
    wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 10}})
    while running(marker):
        pass
    wire.works()


def test_an_id_of_a_call_that_is_under_way_is_no_other_call(wire: Wire) -> None:
    """Seen red: both were carried out, and a cancel reached the later one alone."""
    for number in (7, "seven"):
        wire.call("run_code", {"code": "import time; time.sleep(60)"}, number)
        wire.request("ping", {}, number)
        refused = wire.line()
        assert (refused["id"], refused["error"]["code"]) == (None, -32600)  # what is under way has no answer yet
        wire.raw(b'{"jsonrpc": "1.0", "id": %s, "method": "ping"}' % json.dumps(number).encode())
        assert wire.answer(number)["error"]["code"] == -32600
        wire.request("ping", {}, number)
        assert wire.line()["id"] is None  # still under way, whatever came in between
        wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
        wire.request("ping", {}, number)
        while "error" in wire.line():  # until the run is gone
            wire.request("ping", {}, number)
        assert wire.ask("ping", {}, number)["result"] == {}  # and what was answered can be asked again
    wire.works()


def test_a_clients_own_answer_is_not_sent_back_to_it(shared: Wire) -> None:
    shared.send({"jsonrpc": "2.0", "id": 99, "error": {"code": 1, "message": "no"}})
    shared.request("ping", {}, "next")
    assert shared.line()["id"] == "next"
    shared.works()


def test_a_flood_of_calls_is_refused_beyond_what_may_be_under_way(wire: Wire) -> None:
    for number in range(100):
        wire.call("run_code", {"code": "import time; time.sleep(3)"}, number)
    refused = 0
    for _ in range(100):
        result = wire.line()["result"]
        if result["isError"]:
            assert result["structuredContent"]["error"]["reason"] == "concurrency"
            assert result["structuredContent"]["error"]["retryable"] is True
            refused += 1
    assert refused == 100 - 64
    wire.works()


def test_whoever_does_not_read_is_not_read_from(wire: Wire) -> None:
    assert wire.process.stdin is not None

    def line(number: int) -> bytes:
        return b'{"jsonrpc": "2.0", "id": "%06d' % number + b"x" * 3994 + b'", "method": "ping"}\n'

    size = len(line(0))
    pipe = wire.process.stdin.fileno()
    os.set_blocking(pipe, False)
    sent = 0
    most = 64 << 20
    while sent < most:
        if not select.select([], [pipe], [], 2)[1]:
            break  # the server has stopped reading
        first, begun = divmod(sent, size)
        sent += os.write(pipe, b"".join(map(line, range(first, first + 16)))[begun:])
    os.set_blocking(pipe, True)
    assert sent < most
    last, begun = divmod(sent, size)
    os.write(pipe, line(last)[begun:] if begun else b"\n")
    asked = -(-sent // size)
    assert sorted(int(wire.line()["id"][:6]) for _ in range(asked)) == list(range(asked))
    wire.works()
