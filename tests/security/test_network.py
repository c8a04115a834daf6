"""Attack: reach a socket of the host, the network behind it, or a family that namespaces do not cover."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.security.conftest import Ask, Run

pytestmark = pytest.mark.guarantee(3)

CONNECT = """
for number, where in enumerate(given):
    kind, _, rest = where.partition(' ')
    if kind == 'abstract':
        peer, address = socket.socket(socket.AF_UNIX), '\\0' + rest
    elif kind == 'path':
        peer, address = socket.socket(socket.AF_UNIX), rest
    elif kind == 'tcp4':
        peer, address = socket.socket(socket.AF_INET), ('127.0.0.1', int(rest))
    else:
        peer, address = socket.socket(socket.AF_INET6), ('::1', int(rest))
    peer.settimeout(3)
    said[kind] = attempt(peer.connect, address)
"""

LEAVE = """
def udp(family, address, flags=0):
    with socket.socket(family, socket.SOCK_DGRAM) as peer:
        peer.settimeout(1)
        peer.sendto(b'x' * 16, flags, address)

def tcp(family, address):
    with socket.socket(family) as peer:
        peer.settimeout(2)
        peer.connect(address)

said['public tcp'] = attempt(tcp, socket.AF_INET, ('192.0.2.1', 80))
said['public udp'] = attempt(udp, socket.AF_INET, ('192.0.2.1', 53))
said['cloud metadata'] = attempt(tcp, socket.AF_INET, ('169.254.169.254', 80))
said['ipv6'] = attempt(tcp, socket.AF_INET6, ('2001:db8::1', 80))
said['multicast'] = attempt(udp, socket.AF_INET, ('224.0.0.1', 5353))
said['fast open'] = attempt(udp, socket.AF_INET, ('192.0.2.1', 80), 0x20000000)
said['interfaces'] = open('/proc/self/net/dev').read().count(':')
try:
    socket.getaddrinfo('example.com', 80)
    said['names'] = 'done'
except OSError as error:
    said['names'] = type(error).__name__
"""

FAMILIES = """
for number in range(0, 64):
    for kind in range(1, 11):
        try:
            socket.socket(number, kind, 0).close()
            said.setdefault(str(number), []).append(kind)
        except OSError:
            pass
for number in (1, 2, 10):
    for kind in (1, 2, 3, 5):
        for protocol in (33, 58, 132, 136, 255, 262):
            try:
                socket.socket(number, kind, protocol).close()
                said.setdefault('odd', []).append([number, kind, protocol])
            except OSError:
                pass
"""


@pytest.fixture
def listeners() -> Iterator[list[str]]:
    """Servers of the host on every kind of local address; each takes whoever comes."""
    name = f"ringfence-{uuid.uuid4().hex}"
    path = Path(tempfile.mkdtemp()) / "socket"
    abstract, by_path = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0{name}")
    by_path.bind(str(path))
    four = socket.create_server(("127.0.0.1", 0))
    servers = [abstract, by_path, four]
    addresses = [f"abstract {name}", f"path {path}", f"tcp4 {four.getsockname()[1]}"]
    if socket.has_ipv6:
        try:
            six = socket.create_server(("::1", 0), family=socket.AF_INET6)
        except OSError:  # this machine has no IPv6 loopback
            pass
        else:
            servers.append(six)
            addresses.append(f"tcp6 {six.getsockname()[1]}")
    for server in servers:
        server.listen()
    yield addresses
    for server in servers:
        server.close()


def test_servers_of_the_host_cannot_be_reached(ask: Ask, unboxed: Ask, listeners: list[str]) -> None:
    assert set(unboxed(CONNECT, *listeners).values()) == {"done"}
    assert set(ask(CONNECT, *listeners).values()) <= {"ECONNREFUSED", "ENOENT", "ENETUNREACH", "EADDRNOTAVAIL", "EPERM"}


def test_nothing_leaves_the_box(ask: Ask) -> None:
    said = ask(LEAVE)
    assert said.pop("interfaces") == 1
    assert said.pop("names") == "gaierror"
    unreachable = {"ENETUNREACH", "EHOSTUNREACH", "EAFNOSUPPORT", "EADDRNOTAVAIL"}
    assert set(said.values()) <= unreachable | {"EPERM", "EACCES"}


def test_the_loopback_of_the_box_works_and_is_its_own(box: Run) -> None:
    program = """
import socket
server = socket.create_server(('127.0.0.1', 8080))
socket.create_connection(server.getsockname()).send(b'hello')
print(server.accept()[0].recv(9))
"""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # somebody else holds it, which is as good
            taken.bind(("127.0.0.1", 8080))
        assert box(program).stdout == "b'hello'\n"


def test_only_unix_and_internet_sockets_exist(ask: Ask, unboxed: Ask) -> None:
    outside = unboxed(FAMILIES)
    assert set(outside) - {"1", "2", "10", "odd"}, "netlink at least can be had outside"
    assert ask(FAMILIES) == {"1": [1, 2, 5], "2": [1, 2], "10": [1, 2]}


@pytest.mark.parametrize("family", ["AF_VSOCK", "AF_NETLINK", "AF_PACKET", "AF_ALG", "AF_BLUETOOTH", "AF_TIPC"])
def test_a_family_that_is_not_namespaced_or_is_kernel_surface_is_unknown(ask: Ask, family: str) -> None:
    number = getattr(socket, family)
    program = f"for kind in (1, 2, 3, 5): said[str(kind)] = attempt(socket.socket, {number}, kind)"
    assert set(ask(program).values()) == {"EAFNOSUPPORT"}


def test_raw_sockets_are_refused(ask: Ask) -> None:
    program = """
said['icmp'] = attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
said['raw'] = attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 255)
said['six'] = attempt(socket.socket, socket.AF_INET6, socket.SOCK_RAW, 58)
said['ping'] = attempt(socket.socket, socket.AF_INET, socket.SOCK_DGRAM, 1)
"""
    assert set(ask(program).values()) == {"EPERM"}


def test_programs_cannot_be_put_into_the_kernel_through_a_socket(ask: Ask) -> None:
    program = """
peer = socket.socket()
program = struct.pack('HxxxxxxQ', 1, ctypes.addressof(ctypes.create_string_buffer(8)))
for option in (26, 50, 51, 52):
    said[str(option)] = attempt(peer.setsockopt, socket.SOL_SOCKET, option, program)
said['tls'] = attempt(peer.setsockopt, socket.IPPROTO_TCP, 31, b'tls')
said['bind to device'] = attempt(peer.setsockopt, socket.SOL_SOCKET, 25, b'eth0')
said['firewall'] = attempt(peer.setsockopt, socket.IPPROTO_IP, 64, b'x' * 64)
"""
    assert "done" not in ask(program).values()


def test_descriptors_sent_over_a_socket_stay_inside(box: Run) -> None:
    program = """
import os, socket
a, b = socket.socketpair()
socket.send_fds(a, [b'x'], [os.open('/etc/passwd', os.O_RDONLY)])
print(len(socket.recv_fds(b, 9, 1)[1]))
"""
    assert box(program).stdout == "1\n"


@pytest.mark.skipif(not os.path.exists("/dev/vsock"), reason="this machine has no vsock")
def test_the_hypervisor_cannot_be_reached(ask: Ask) -> None:
    assert ask("said['vsock'] = attempt(socket.socket, 40, 1)") == {"vsock": "EAFNOSUPPORT"}
