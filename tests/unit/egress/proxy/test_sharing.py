"""One box that opens all it can, or asks for names that nobody answers, leaves the others their way out."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.capability.capabilities import Capabilities
from ringfence.egress.proxy import proxy as proxies
from ringfence.egress.proxy.ledger import Ledger
from ringfence.egress.proxy.proxy import Proxy, has_room, most_connections
from ringfence.egress.proxy.rules import Rules
from ringfence.egress.proxy.upstream import Dialler, plain_socket

ASKED = b"GET http://example.com/ HTTP/1.1\r\n\r\n"


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
        with contextlib.suppress(OSError):  # it was turned away already
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
        client, told = await asyncio.to_thread(answer_to, modest, ASKED)
        assert b" 503 " not in told
        assert told.startswith(b"HTTP/1.1 4")
        for each in (*held, turned_away, client):
            each.close()
        for gate in gates:
            await gate.close()


@given(st.integers(1, 300), st.lists(st.integers(0, 4), min_size=1, max_size=600))
def test_nobody_takes_more_than_is_left_and_each_newcomer_finds_half_of_it(most: int, tries: list[int]) -> None:
    held: Counter[int] = Counter()
    for tenant in tries:
        if has_room(held[tenant], held.total(), most):
            held[tenant] += 1
            assert held[tenant] - 1 <= most - held.total()
    assert max(held.values()) <= (most + 1) // 2
    assert most - held.total() >= most >> len(held)


def test_tenants_that_take_what_they_can_end_with_the_same() -> None:
    held: Counter[str] = Counter()
    while any(has_room(held[tenant], held.total(), 100) for tenant in "abc"):
        held.update(tenant for tenant in "abc" if has_room(held[tenant], held.total(), 100))
    assert held == {"a": 25, "b": 25, "c": 25}


async def test_the_boxes_of_one_tenant_leave_another_its_way_out(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "most_connections", lambda: (8, 2))
    tenants = ["greedy"] * 5 + ["modest"]
    with ExitStack() as opened:
        boxes = [opened.enter_context(box()) for _ in tenants]
        gates = [
            proxy.open(each.fileno(), Rules(Capabilities(())), Ledger(1000, 1000), tenant=tenant)
            for each, tenant in zip(boxes, tenants, strict=True)
        ]
        held = [answer_to(each)[0] for each in boxes[:2] for _ in range(2)]
        # each box is accepted from in its own time, by a thread that tells nobody
        while proxy._running().connections.total() < len(held):  # noqa: ASYNC110
            await asyncio.sleep(0)
        refused = [socket.create_connection(each.getsockname()) for each in boxes[2:5]]
        told = [await asyncio.to_thread(each.recv, 4096) for each in refused]
        assert all(b" 503 " in each for each in told)
        client, answered = await asyncio.to_thread(answer_to, boxes[5], ASKED)
        assert answered.startswith(b"HTTP/1.1 4")
        for each in (*held, *refused, client):
            each.close()
        await asyncio.gather(*(gate.close() for gate in gates))
        thread = proxy._running()
        assert thread.connections.total() == len(thread.connections) == 0


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
