"""Attack: reach a host that was not granted, from a box that was granted one, around the proxy or by another name."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from tests.egress_box import Boxes
from tests.egress_lab import HIDDEN, OTHER, PUBLIC, PUBLIC6, SECOND, WEB, EgressLab
from tests.security.conftest import EPILOGUE, NUMBERS, PRELUDE
from tests.security.egress_door import RULES, Door, connect, get, status_of
from tests.security.egress_door import boxes as boxes
from tests.security.egress_door import door as door
from tests.security.egress_door import lab as lab

from ringfence.capability.capabilities import Capabilities
from ringfence.capability.net import NetHttp
from ringfence.egress.proxy.rules import Rules
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.linux import observe
from ringfence.operation.target import METHODS
from ringfence.outcome import ExecutionResult

pytestmark = [pytest.mark.guarantee(32), pytest.mark.needs("egress_lab")]


def test_the_granted_host_is_reached_which_is_what_the_attacks_are_measured_by(door: Door) -> None:
    assert b"hello" in door.say(get(f"http://{WEB}/"))
    assert b"hello" in door.say(get("http://six.web.example.com/", "six.web.example.com"))
    assert door.say(connect(f"{WEB}:443")).startswith(b"HTTP/1.1 200")


# --- ways around the proxy, from inside a box ---

AROUND = """
import select
PUBLIC, PUBLIC6, OTHER = given
def tcp(family, *address):
    with socket.socket(family) as peer:
        peer.settimeout(2)
        peer.connect(address)
def udp(family, *address):
    with socket.socket(family, socket.SOCK_DGRAM) as peer:
        peer.sendto(b'x', address)
for port in (22, 53, 80, 443, 3128):
    said[f'tcp {port}'] = attempt(tcp, socket.AF_INET, PUBLIC, port)
    said[f'udp {port}'] = attempt(udp, socket.AF_INET, PUBLIC, port)
    said[f'tcp6 {port}'] = attempt(tcp, socket.AF_INET6, PUBLIC6, port)
    said[f'udp6 {port}'] = attempt(udp, socket.AF_INET6, PUBLIC6, port)
said['resolver'] = attempt(udp, socket.AF_INET, '8.8.8.8', 53)
said['multicast'] = attempt(udp, socket.AF_INET, '224.0.0.251', 5353)
said['metadata'] = attempt(tcp, socket.AF_INET, '169.254.169.254', 80)
said['raw'] = attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 6)
said['packet'] = attempt(socket.socket, socket.AF_PACKET, socket.SOCK_RAW)
said['netlink'] = attempt(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW)
said['abstract'] = attempt(socket.socket(socket.AF_UNIX).connect, '\\0ringfence')
said['docker'] = attempt(socket.socket(socket.AF_UNIX).connect, '/var/run/docker.sock')
try:
    socket.getaddrinfo('web.example.com', 80)
    said['names'] = 'done'
except OSError as error:
    said['names'] = type(error).__name__
"""

FETCH = """
import sys, urllib.error, urllib.request as request
for url in sys.argv[1:]:
    try:
        print(request.urlopen(url).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""

TAKE_THE_DOOR = """
def taken(address, *options):
    with socket.socket() as mine:
        for option in options:
            mine.setsockopt(socket.SOL_SOCKET, option, 1)
        mine.bind(address)
        mine.listen()
said['held'] = []
for number in range(3, 1024):
    try:
        socket.socket(fileno=os.dup(number))
        said['held'].append(number)
    except OSError:
        pass
for name, address in (('same', ('127.0.0.1', 3128)), ('any', ('0.0.0.0', 3128))):
    said[name] = attempt(taken, address, socket.SO_REUSEADDR, socket.SO_REUSEPORT)
"""


def ask(boxes: Boxes, program: str, *given: str, **options: Any) -> tuple[dict[str, Any], ExecutionResult]:
    result = boxes.run(PRELUDE + program + EPILOGUE, args=(NUMBERS, *given), **options)
    assert result.exit_code == 0, result.stderr or result
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer, result


@pytest.mark.guarantee(3)
def test_whoever_ignores_the_proxy_reaches_nothing(boxes: Boxes, lab: EgressLab) -> None:
    before = lab.reached_canaries, len(lab.seen)
    said, result = ask(boxes, AROUND, PUBLIC, PUBLIC6, OTHER)
    assert said.pop("names") == "gaierror"
    unreachable = {"ENETUNREACH", "EADDRNOTAVAIL", "EPERM", "EAFNOSUPPORT", "EACCES", "ECONNREFUSED", "ENOENT"}
    unreachable |= {"EHOSTUNREACH"}  # in the words of gVisor
    assert set(said.values()) <= unreachable
    assert (lab.reached_canaries, len(lab.seen)) == before
    assert result.network is not None
    assert result.network.destinations == ()


def test_the_door_is_in_no_hand_but_the_hosts(boxes: Boxes) -> None:
    said, _ = ask(boxes, TAKE_THE_DOOR)
    assert said == {"held": [], "same": "EADDRINUSE", "any": "EADDRINUSE"}


@pytest.mark.guarantee(12)
def test_a_door_in_another_network_than_the_boxs_own_is_not_opened() -> None:
    own = observe.own_namespaces()["net"]
    with socket.create_server(("127.0.0.1", 0)) as of_the_host:
        observe.require_door(of_the_host.fileno(), own)
        with pytest.raises(IsolationUnavailable, match="another network"):
            observe.require_door(of_the_host.fileno(), "net:[1]")


def test_names_are_resolved_by_the_proxy_and_only_when_they_are_granted(boxes: Boxes, lab: EgressLab) -> None:
    asked = len(lab.names.asked)
    names = [f"http://leak-{n}.{HIDDEN}/" for n in range(5)]
    result = boxes.run(FETCH, args=(*names, f"http://{WEB}/"))
    assert result.stdout.split() == [*["403"] * 5, "200"]
    assert lab.names.asked[asked:] == [WEB]


# --- names and addresses in every disguise ---

SPELLINGS = [
    HIDDEN,
    SECOND,
    f"{WEB}.{HIDDEN}",
    f"x{WEB}",
    "example.com",
    "denied.web.example.com",
    PUBLIC,
    OTHER,
    f"[{PUBLIC6}]",
    "127.0.0.1",
    "localhost",
    "127.1",
    "0x7f.0.0.1",
    "2130706433",
    "0177.0.0.1",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "10.0.0.5",
    "169.254.169.254",
    "metadata.google.internal",
    f"{HIDDEN}\0.{WEB}",
    f"{HIDDEN}%00.{WEB}",
    f"{HIDDEN}%23.{WEB}",
    f"{HIDDEN}#.{WEB}",
    f"{HIDDEN}?.{WEB}",
    f"{HIDDEN}\\.{WEB}",
    f"{HIDDEN}/.{WEB}",
    f"{HIDDEN};.{WEB}",
    f"{WEB}@{HIDDEN}",
    f"{HIDDEN}@{WEB}",
    f"{WEB}:80@{HIDDEN}",
    f"{HIDDEN}\t.{WEB}",
    f"{HIDDEN}\r\nX: .{WEB}",
    f"{WEB}..",
    f".{WEB}",
    f"-{WEB}",
    "w\xe9b.example.com",
    "\uff57eb.example.com".encode().decode("latin-1"),
    "xn--.web.example.com",
    "inside.web.example.com",
    "metadata.web.example.com",
    "mixed.web.example.com",
    "mapped.web.example.com",
    "nat64.web.example.com",
    "sixtofour.web.example.com",
    "loopback.web.example.com",
    "ula.web.example.com",
    "zoned.web.example.com",
    "nowhere.web.example.com",
]


@pytest.mark.parametrize("host", SPELLINGS)
def test_no_spelling_of_another_host_is_let_through(door: Door, lab: EgressLab, host: str) -> None:
    before = len(lab.seen)
    answers = (
        door.say(get(f"http://{host}/", host)),
        door.say(connect(f"{host}:443")),
        door.say(connect(f"{host}:80")),
    )
    assert all(status_of(answer) in (400, 403, 502) for answer in answers), answers
    assert len(lab.seen) == before


@pytest.mark.parametrize("port", [0, 22, 25, 53, 3306, 8080, 8443, 65536, 99999])
def test_other_ports_of_a_granted_host_are_not_granted(door: Door, port: int) -> None:
    assert status_of(door.say(connect(f"{WEB}:{port}"))) in (400, 403)
    assert status_of(door.say(get(f"http://{WEB}:{port}/", f"{WEB}:{port}"))) in (400, 403)


def test_a_name_that_changes_its_mind_is_judged_each_time_it_is_dialled(door: Door) -> None:
    name = "rebinds.web.example.com"
    statuses = [status_of(door.say(get(f"http://{name}/", name))) for _ in range(6)]
    assert statuses == [200, 403] * 3


def test_an_address_is_reached_only_where_it_was_granted_as_one(lab: EgressLab) -> None:
    door = Door(lab, Rules(Capabilities([NetHttp(PUBLIC, None, None, METHODS)]), RULES.denials))
    try:
        assert b"hello" in door.say(get(f"http://{PUBLIC}/", PUBLIC))
        assert status_of(door.say(get(f"http://{OTHER}/", OTHER))) == 403
        assert status_of(door.say(get(f"http://{WEB}/"))) == 403
    finally:
        door.close()
