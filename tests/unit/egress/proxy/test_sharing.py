"""One box that opens all it can, or asks for names that nobody answers, leaves the others their way out."""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ringfence.capability.capabilities import Capabilities
from ringfence.egress.proxy import proxy as proxies
from ringfence.egress.proxy.ledger import Ledger
from ringfence.egress.proxy.proxy import Proxy, most_connections
from ringfence.egress.proxy.rules import Rules
from ringfence.egress.proxy.upstream import Dialler, plain_socket


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.close()


def box() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    return listener


def answer_to(listener: socket.socket, said: bytes = b"") -> tuple[socket.socket, bytes]:
    client = socket.create_connection(listener.getsockname())
    if said:
        client.sendall(said)
        client.shutdown(socket.SHUT_WR)
    return client, client.recv(4096) if said else b""


def test_all_boxes_together_hold_half_of_what_this_process_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert most_connections() == (256, 64)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, 1 << 20))
    assert most_connections() == ((1 << 20) // 4, proxies.MOST_CONNECTIONS)


async def test_a_box_that_opens_what_it_can_leaves_others_their_way_out(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "most_connections", lambda: (8, 2))
    with box() as greedy, box() as modest:
        gates = [proxy.open(each.fileno(), Rules(Capabilities(())), Ledger(1000, 1000)) for each in (greedy, modest)]
        held = [answer_to(greedy)[0] for _ in range(2)]
        turned_away = socket.create_connection(greedy.getsockname())
        assert b" 503 " in await asyncio.to_thread(turned_away.recv, 4096)
        client, told = await asyncio.to_thread(answer_to, modest, b"GET http://example.com/ HTTP/1.1\r\n\r\n")
        assert b" 503 " not in told
        assert told.startswith(b"HTTP/1.1 4")
        for each in (*held, turned_away, client):
            each.close()
        for gate in gates:
            await gate.close()


async def test_names_that_nobody_answers_for_keep_no_other_box_waiting() -> None:
    answered, asked = threading.Event(), []

    def resolve(name: str) -> tuple[str, ...]:
        asked.append(name)
        if name == "slow.example":
            answered.wait()
        return ("192.0.2.1",)

    with ThreadPoolExecutor(4) as threads:
        greedy, modest = (Dialler(threads, resolve, plain_socket) for _ in range(2))
        waiting = [asyncio.create_task(greedy._addresses("slow.example")) for _ in range(20)]
        try:
            found = await asyncio.wait_for(modest._addresses("quick.example"), 5)
            assert found == ["192.0.2.1"]
            assert asked.count("slow.example") <= 2
            for task in waiting[:10]:  # who goes away meanwhile frees no thread, and so gives nobody a turn
                task.cancel()
            await asyncio.gather(*waiting[:10], return_exceptions=True)
            assert asked.count("slow.example") <= 2
        finally:
            answered.set()
        assert await asyncio.gather(*waiting[10:]) == [["192.0.2.1"]] * 10
