"""Servers of the hostile web on real addresses, public, private and metadata, in network namespaces of their own.

With them a DNS server that rebinds, and a canary on each address that nobody may be sent to: what reaches one of them
went over a wire.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from tests.hostile_web import OTHER, PUBLIC, Server, authority

CANARIES = (
    "10.0.0.5", "172.16.0.9", "192.168.1.1", "100.64.0.7", "169.254.169.254", "169.254.170.2", "168.63.129.16",
    "100.100.100.200", "192.0.0.192", "198.18.0.1", "203.0.113.7", "192.0.2.9", "224.0.0.9",
    "fd00:ec2::254", "fd00:42::42", "fc00::5", "2001:db8::5", "64:ff9b::a00:5", "2002:a00:5::1", "2001:0:a00:5::1",
)  # fmt: skip
CLIENT, GATEWAY, DNS = "45.33.0.2", "45.33.0.1", "9.9.9.9"
CLIENT6, GATEWAY6, PUBLIC6 = "2604:a880::2", "2604:a880::1", "2606:2800::34"


def run_ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class NameServer:
    """A DNS server: one label says what the answer is, so that a test needs no zone.

    `a-10-0-0-5.x.test` has one address; `flip-<n>-<a>-<b>` has the first n times `a` and then `b`; `both-<a>-<b>` has
    two; `sixteen-<hex>` has an IPv6 address; `alias` is another name for `a-10-0-0-5`.
    """

    def __init__(self, address: str) -> None:
        self.asked: dict[str, int] = {}
        self.names: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            query, peer = self._socket.recvfrom(4096)
            with suppress(Exception):
                self._socket.sendto(self._answer(query), peer)

    def _answer(self, query: bytes) -> bytes:
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += 1 + query[at]
        kind = struct.unpack_from("!H", query, at + 1)[0]
        self.names.append(".".join(labels))
        records = self._records(labels[0].lower(), kind)
        question = query[12 : at + 5]
        head = query[:2] + struct.pack("!HHHHH", 0x8580, 1, len(records), 0, 0)
        body = b"".join(
            b"\xc0\x0c" + struct.pack("!HHIH", number, 1, 0, len(content)) + content for number, content in records
        )
        return head + question + body

    def _records(self, label: str, kind: int) -> list[tuple[int, bytes]]:
        verb, _, rest = label.partition("-")
        if verb == "sixteen":
            return [(28, bytes.fromhex(rest))] if kind == 28 else []
        if kind != 1:
            return []
        if verb == "alias":
            name = b"\x0aa-10-0-0-5\x01x\x04test\0"
            return [(5, name)]
        parts = rest.split("-")
        if verb == "flip":
            count = self.asked[label] = self.asked.get(label, 0) + 1
            parts = parts[1:5] if count <= int(parts[0]) else parts[5:]
        if verb == "web":
            parts = PUBLIC.split(".")
        return [(1, bytes(map(int, parts[at : at + 4]))) for at in range(0, len(parts), 4)]


def server_side(commands: Any, answers: Any) -> None:
    """Live in the second namespace: have every address, and tell what was reached."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):
        raise OSError(ctypes.get_errno(), "unshare")
    answers.write("unshared\n")
    answers.flush()
    directory = Path(commands.readline().strip())  # the wire is there
    for link in ("lo", "s0"):
        run_ip("link", "set", link, "up")
    run_ip("addr", "add", f"{GATEWAY}/24", "dev", "s0")
    run_ip("-6", "addr", "add", f"{GATEWAY6}/64", "dev", "s0", "nodad")
    for address in (PUBLIC, OTHER, DNS, PUBLIC6, *CANARIES):
        if not address.startswith("224."):
            nodad = ["nodad"] if ":" in address else []
            run_ip("addr", "add", f"{address}/{128 if ':' in address else 32}", "dev", "lo", *nodad)
    names = NameServer(DNS)
    server = Server(("0.0.0.0", 80), ("::", 80), ("0.0.0.0", 8080))
    secure = Server(("0.0.0.0", 443), tls=authority(directory)[1])
    answers.write("ready\n")
    answers.flush()
    for _ in commands:
        answers.write(json.dumps({"reached": server.reached + secure.reached, "looked_up": names.names}) + "\n")
        answers.flush()
        names.names.clear()
        server.reached.clear()
        secure.reached.clear()


def client_side(directory: Path) -> None:
    """Live in the first namespace: make the second, then carry out what the test asks for."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        stream = theirs.makefile("rw")
        server_side(stream, stream)
        os._exit(0)
    theirs.close()
    other = ours.makefile("rw")
    if other.readline() != "unshared\n":
        raise SystemExit("the second namespace could not be made")
    run_ip("link", "add", "c0", "type", "veth", "peer", "name", "s0", "netns", str(child))
    for link in ("lo", "c0"):
        run_ip("link", "set", link, "up")
    run_ip("addr", "add", f"{CLIENT}/24", "dev", "c0")
    run_ip("-6", "addr", "add", f"{CLIENT6}/64", "dev", "c0", "nodad")
    other.write(f"{directory}\n")
    other.flush()
    if other.readline() != "ready\n":
        raise SystemExit("the servers could not be started")
    run_ip("route", "add", "default", "via", GATEWAY)
    run_ip("-6", "route", "add", "default", "via", GATEWAY6)
    for name, content in (("resolv.conf", f"nameserver {DNS}\noptions timeout:2 attempts:1\n"),
                          ("nsswitch.conf", "hosts: files dns\n")):  # fmt: skip
        (directory / name).write_text(content)
        subprocess.run(["mount", "--bind", str(directory / name), f"/etc/{name}"], check=True, capture_output=True)
    here = Server(("127.0.0.1", 80), ("::1", 80), (CLIENT, 80), (CLIENT6, 80))
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = carried_out_here(directory, asked)
        except Exception:
            answer = {"failed": traceback.format_exc()}
        other.write("tell\n")
        other.flush()
        told = json.loads(other.readline())
        answer["reached"] = sorted({*told["reached"], *here.reached})
        answer["looked_up"] = told["looked_up"]
        here.reached.clear()
        print(json.dumps(answer), flush=True)


def carried_out_here(directory: Path, asked: dict[str, Any]) -> dict[str, Any]:
    if "raw" in asked:
        return connected(asked["raw"])
    if "file" in asked:
        module = runpy.run_path(asked["file"])
        return {"returned": asyncio.run(module[asked["function"]](Path(asked["directory"])))}
    return asyncio.run(carried_out(directory, asked))


def connected(addresses: list[str]) -> dict[str, Any]:
    """Connect to each of `addresses` without asking anybody."""
    for address in addresses:
        with suppress(OSError), socket.create_connection((address, 80), timeout=5) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            connection.recv(10)
    return {}


async def carried_out(directory: Path, asked: dict[str, Any]) -> dict[str, Any]:
    import ringfence
    from ringfence.egress.settings import NetSettings
    from ringfence.operation.brokered import NetHttp

    policy = directory / "policy.yaml"
    policy.write_text(asked["policy"])
    config = ringfence.SandboxConfig(
        home=directory / "home", policy_file=policy, pool_size=0, net=NetSettings(ca_file=authority(directory)[0])
    )
    async with ringfence.SandboxManager(config=config) as manager:
        try:
            outcome = await manager.perform(NetHttp(asked.get("method", "GET"), asked["url"]))
        except ringfence.RingfenceError as error:
            return {"code": error.code, "reason": error.reason, "message": str(error)}
        assert isinstance(outcome, ringfence.BrokerOutcome)
        return {"out": dict(outcome.out), "content": (outcome.content or b"").decode("latin-1")}


class Lab:
    """Carries out requests in a namespace of its own, and says whom they reached."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self._process = process
        self._directory = directory

    def fetch(self, url: str, policy: str, **options: Any) -> dict[str, Any]:
        return self._ask({"url": url, "policy": policy, **options})

    def raw(self, addresses: list[str]) -> list[str]:
        """Connect to `addresses` with nothing in between, and return which of them were reached."""
        reached: list[str] = self._ask({"raw": addresses})["reached"]
        return reached

    def inside(self, file: str, function: str, directory: Path) -> dict[str, Any]:
        """Call an asynchronous function of a test module in the lab, where it finds the lab's internet."""
        return self._ask({"file": file, "function": function, "directory": str(directory)})

    def found_in_home(self, text: str) -> list[str]:
        """Return the files of the lab's home that hold `text`."""
        files = [path for path in (self._directory / "home").rglob("*") if path.is_file()]
        assert files, "the lab keeps its evidence somewhere"
        return [str(path) for path in files if text.encode() in path.read_bytes()]

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the lab has ended"
        answer: dict[str, Any] = json.loads(line)
        assert "failed" not in answer, answer["failed"]
        return answer


@cache
def missing() -> str | None:
    """Return why there can be no lab here, or nothing."""
    made = subprocess.run(
        [*_unshare(), "ip", "link", "add", "c0", "type", "veth", "peer", "name", "s0"], capture_output=True, text=True
    )
    return None if made.returncode == 0 else f"no network namespace with a wire: {made.stderr.strip()[:200]}"


def _unshare() -> list[str]:
    as_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *as_user, "--net", "--mount", "--fork", "--kill-child"]


@contextmanager
def running_lab(directory: Path) -> Iterator[Lab]:
    authority(directory)
    process = subprocess.Popen(
        [*_unshare(), sys.executable, "-m", "tests.net_lab", str(directory)],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Lab(process, directory)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


if __name__ == "__main__":
    client_side(Path(sys.argv[1]))
