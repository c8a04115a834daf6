"""Attack: flood the proxy, outwait it, end it in the middle of a run, or keep what it decided off the record."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from typing import Any

import pytest
from tests.egress_box import Boxes
from tests.egress_lab import HIDDEN, PUBLIC, WEB, EgressLab
from tests.security.egress_door import POST, RULES, Door, connect, everything, get, hello, status_of
from tests.security.egress_door import boxes as boxes
from tests.security.egress_door import lab as lab

from ringfence.database.address import open_database
from ringfence.egress.proxy.meter import Patience
from ringfence.egress.proxy.proxy import Proxy
from ringfence.journal.reader import reading

pytestmark = [pytest.mark.guarantee(32), pytest.mark.needs("egress_lab")]

# --- floods, patience, and the end of the proxy ---


def test_a_head_has_an_end_and_a_size(lab: EgressLab) -> None:
    door = Door(lab, RULES, Patience(head=0.2))
    try:
        assert status_of(door.say(b"GET " + b"x" * 100_000)) == 400
        assert status_of(door.say(get(f"http://{WEB}/")[:-2] + b"X: y\r\n" * 200 + b"\r\n")) == 400
        with door.connect() as slow:
            slow.sendall(b"GET ")
            assert status_of(everything(slow)) == 504
        with door.connect() as silent:
            silent.sendall(connect(f"{WEB}:443"))
            assert everything(silent).startswith(b"HTTP/1.1 200")
    finally:
        reasons = {place.reason for place in door.close().destinations}
    assert reasons == {"invalid", "too_large", "timeout"}


def test_what_does_not_move_is_ended(lab: EgressLab) -> None:
    door = Door(lab, RULES, Patience(idle=0.2))
    try:
        with door.connect() as end:
            end.sendall(connect(f"{WEB}:443"))
            end.recv(100)
            end.sendall(hello(WEB))
            assert everything(end).startswith(b"\x16"), "the host's part of the handshake"
    finally:
        (place,) = door.close().destinations
    assert (place.decision, place.reason) == ("failed", "idle")


def test_bytes_beyond_the_budget_do_not_pass_in_either_direction(lab: EgressLab) -> None:
    for attack in (
        get(f"http://{WEB}/size/1000000"),
        f"{POST}Content-Length: 1000000\r\n\r\n".encode() + b"x" * 1_000_000,
    ):
        door = Door(lab, RULES, most=10_000)
        try:
            door.say(attack)
        finally:
            network = door.close()
        assert max(network.bytes_in, network.bytes_out) == 10_000
        assert [place.reason for place in network.destinations] == ["budget"]


def test_a_flood_of_names_fills_no_record(lab: EgressLab) -> None:
    door = Door(lab, RULES)
    try:
        for number in range(300):
            door.say(connect(f"n{number}.{HIDDEN}:443"))
    finally:
        network = door.close()
    assert len(network.destinations) == 257
    assert network.not_shown == 300 - 256
    assert sum(place.count for place in network.destinations) == 300


def test_connections_beyond_the_most_are_turned_away_and_those_within_go_on(
    lab: EgressLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence.egress.proxy.proxy.MOST_CONNECTIONS", 3)
    door = Door(lab, RULES)
    held = []
    try:
        for _ in range(3):
            end = door.connect()
            end.sendall(connect(f"{WEB}:443"))
            assert status_of(end.recv(100)) == 200
            held.append(end)
        assert status_of(door.say(get(f"http://{WEB}/"))) == 503
        held.pop().close()
        held[0].sendall(hello(WEB))
        assert held[0].recv(1) == b"\x16"
    finally:
        for end in held:
            end.close()
        door.close()


def test_a_run_cannot_knock_without_end(lab: EgressLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.egress.proxy.proxy.MOST_IN_ALL", 5)
    door = Door(lab, RULES)
    try:
        assert [status_of(door.say(get(f"http://{WEB}/"))) for _ in range(8)] == [200] * 5 + [503] * 3
    finally:
        door.close()


def test_when_the_proxy_ends_there_is_no_network(lab: EgressLab) -> None:
    door = Door(lab, RULES)
    with door.connect() as open_tunnel:
        open_tunnel.sendall(connect(f"{WEB}:443"))
        assert status_of(open_tunnel.recv(100)) == 200
        door.proxy.close()
        assert everything(open_tunnel) == b""
        with pytest.raises(ConnectionError):
            door.connect()
    assert not door.close().complete


def test_a_proxy_that_crashes_in_the_middle_of_a_run_leaves_the_box_without_network(
    boxes: Boxes, lab: EgressLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Proxy] = []
    usual = lab.proxy

    def proxy(*given: Any) -> Proxy:
        made.append(usual(*given))
        return made[-1]

    monkeypatch.setattr(lab, "proxy", proxy)

    def crash() -> None:
        thread = made[0]._thread
        assert thread is not None
        thread.loop.call_soon_threadsafe(thread.loop.stop)
        thread._thread.join()

    def listen(_: str, data: bytes) -> None:
        if b"200" in data:
            threading.Thread(target=crash).start()

    program = f"""
import socket, urllib.request
print(urllib.request.urlopen('http://{WEB}/').status, flush=True)
while True:
    try:
        socket.create_connection(('127.0.0.1', 3128), timeout=5).close()
    except ConnectionRefusedError:
        print('refused', flush=True)
        break
    except OSError:
        pass
"""
    result = boxes.run(program, on_output=listen)
    assert result.stdout.split() == ["200", "refused"]
    assert result.network is not None
    assert not result.network.complete


def _is_connection(fd: str) -> bool:
    """Whether it is one end of a connection: pools of other tests open and close descriptors meanwhile."""
    try:
        if not stat.S_ISSOCK(os.fstat(int(fd)).st_mode):
            return False
        with socket.socket(fileno=os.dup(int(fd))) as end:
            is_inet = end.family in (socket.AF_INET, socket.AF_INET6)
            return is_inet and not end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError:
        return False


def test_nothing_is_left_when_a_gate_is_closed(lab: EgressLab) -> None:
    def held() -> int:
        return sum(map(_is_connection, os.listdir("/proc/self/fd")))

    warm = Door(lab, RULES)
    warm.say(get(f"http://{WEB}/"))
    warm.close()
    before = held()
    door = Door(lab, RULES)
    ends = [door.connect() for _ in range(20)]
    for end in ends:
        end.sendall(connect(f"{WEB}:443"))
        end.recv(100)
    door.close()
    for end in ends:
        end.close()
    while held() > before:  # the lab's servers are threads of this process, and hear of the end a little later
        threading.Event().wait(0.01)


# --- the record ---


def test_every_decision_is_in_the_evidence_and_nothing_of_what_was_said(boxes: Boxes) -> None:
    program = f"""
import http.client, urllib.request as request
def proxied():
    return http.client.HTTPConnection('127.0.0.1', 3128, timeout=20)
plain = proxied()
plain.request('GET', 'http://{WEB}/path-of-the-run?token=query-of-the-run', headers={{'X-Secret': 'header-of-the-run'}})
print(plain.getresponse().status)
other = proxied()
other.request('GET', 'http://{HIDDEN}/path-of-the-run')
print(other.getresponse().status)
tunnel = http.client.HTTPSConnection('127.0.0.1', 3128, context=__import__('ssl')._create_unverified_context())
tunnel.set_tunnel('{WEB}', 443)
tunnel.request('POST', '/echo', b'body-of-the-run')
print(tunnel.getresponse().status)
"""
    result = boxes.run(program)
    assert result.stdout.split() == ["404", "403", "200"], result.stderr
    database = open_database(boxes.home)
    try:
        with reading(database) as reader:
            execution = reader.execution(result.exec_id)
    finally:
        database.close()
    assert execution is not None
    assert execution.end is not None
    places = json.loads(execution.end.text or "")["network"]["destinations"]
    assert {(place["host"], place["port"], place["decision"]) for place in places} == {
        (WEB, 80, "allowed"),
        (HIDDEN, 80, "denied"),
        (WEB, 443, "allowed"),
    }
    assert all(
        place["address"] == PUBLIC and place["bytes_out"] > 0 for place in places if place["decision"] == "allowed"
    )
    for word in ("path-of-the-run", "query-of-the-run", "header-of-the-run", "body-of-the-run"):
        assert word not in json.dumps(places)
