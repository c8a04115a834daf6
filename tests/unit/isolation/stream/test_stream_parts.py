"""The parts of the byte-stream worker by themselves: what travels, what is counted, what is degraded and said."""

from __future__ import annotations

import ast
import contextlib
import json
import socket
import subprocess
import zlib
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stream_box import Box

from ringfence.capability.limits import Limits
from ringfence.errors import InvalidRequest, IsolationUnavailable, RuntimeMissing
from ringfence.isolation.protocol import Kind
from ringfence.isolation.stream import parking, wire
from ringfence.isolation.stream.boot import BOOT, bundle
from ringfence.isolation.stream.channels import Channel, numbered
from ringfence.isolation.stream.inside_meter import Meter
from ringfence.isolation.stream.inside_relay import _groups_of
from ringfence.isolation.stream.parking import Hello, park
from ringfence.isolation.stream.running import Farewell
from ringfence.operation import Language
from ringfence.outcome import Layers, SandboxType
from ringfence.ports import WorkerSpec


def sources() -> list[tuple[str, bool, str]]:
    """Return what is sent inside: names, whether they are packages, and their text."""
    return [tuple(part) for part in json.loads(zlib.decompress(bundle()[4:]))]


ENTRIES = st.builds(
    wire.Entry,
    area=st.integers(0, 2),
    kind=st.sampled_from([wire.FILE, wire.DIRECTORY, wire.FIFO, wire.SOCKET]),
    flags=st.integers(0, 3),
    mode=st.integers(0, 0o7777),
    mtime_ns=st.integers(-(2**63), 2**63 - 1),
    size=st.integers(0, 2**64 - 1),
    path=st.binary(min_size=1, max_size=4096),
)


@given(ENTRIES, st.binary(min_size=1, max_size=4096))
def test_an_entry_arrives_as_it_was_sent(entry: wire.Entry, target: bytes) -> None:
    assert wire.unpack(wire.pack(entry)) == entry
    link = entry._replace(kind=wire.LINK, target=target)
    assert wire.unpack(wire.pack(link)) == link


@given(st.binary(max_size=80))
def test_what_is_no_entry_is_refused_or_is_one(payload: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert wire.pack(wire.unpack(payload)) == payload


def test_everything_that_is_sent_inside_is_of_the_standard_library_and_of_python_38() -> None:
    parts = {name: source for name, _, source in sources()}
    ast.parse(BOOT, feature_version=(3, 8))
    for name, source in parts.items():
        for node in ast.walk(ast.parse(source, name, feature_version=(3, 8))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ringfence"):
                wanted = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                assert wanted & parts.keys(), f"{name} imports {node.module}, which is not sent"


# --- what an init can count ---


def files(root: Path, texts: dict[str, str]) -> str:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def test_counters_of_a_new_cgroup_are_those_since_the_worker_was_parked(tmp_path: Path) -> None:
    texts = {"memory.max": "1000", "cpu.stat": "usage_usec 500\nuser_usec 1", "memory.peak": "4096", "pids.peak": "6"}
    meter = Meter(files(tmp_path, {**texts, "memory.events": "oom 1\noom_kill 0"}))
    assert (meter.cpu_us(), meter.peak_kib(), meter.tasks_peak(), meter.memory_kills()) == (0, 4, -1, 0)
    files(tmp_path, {"cpu.stat": "usage_usec 700", "pids.peak": "9", "memory.events": "oom_kill 2"})
    assert (meter.cpu_us(), meter.tasks_peak(), meter.memory_kills()) == (200, 8, 2)


def test_counters_of_an_old_cgroup_are_read_from_its_controllers(tmp_path: Path) -> None:
    texts = {
        "memory/memory.limit_in_bytes": "1000000",
        "memory/memory.max_usage_in_bytes": "8192",
        "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3",
        "cpuacct/cpuacct.usage": "5000",
    }
    meter = Meter(files(tmp_path, texts))
    files(tmp_path, {"cpuacct/cpuacct.usage": "9000"})
    assert (meter.cpu_us(), meter.peak_kib(), meter.tasks_peak(), meter.memory_kills()) == (4, 8, -1, 3)


@pytest.mark.parametrize(
    "texts",
    [
        {},
        {"memory.max": "max", "cpu.stat": "usage_usec 999999999999", "memory.events": "oom_kill 7"},
        {"memory/memory.limit_in_bytes": "9223372036854771712", "cpuacct/cpuacct.usage": "9" * 18},
    ],
)
def test_counters_of_a_whole_machine_are_not_taken_for_the_containers(tmp_path: Path, texts: dict[str, str]) -> None:
    meter = Meter(files(tmp_path, texts))
    assert meter.cpu_us() < 1_000_000_000
    assert meter.memory_kills() == -1


def test_a_farewell_is_read_with_what_nobody_counted() -> None:
    assert Farewell.read(b"9 1 2 -1 -1 0 1") == Farewell(9, 1, 2, None, None, False, True)
    assert Farewell.read(b"256 1 2 3 0 1 0") == Farewell(256, 1, 2, 3, 0, True, False)


def test_the_groups_of_a_session_are_found_where_a_terminal_does_not_tell() -> None:
    command = "set -m; sleep 100 & echo $!; read; kill %1; wait"
    with subprocess.Popen(
        ["bash", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as shell:
        assert shell.stdout is not None
        job = int(shell.stdout.readline())
        assert _groups_of(shell.pid) == {shell.pid, job}
        shell.communicate("\n")
    assert _groups_of(shell.pid) == set()


# --- connections ---


@given(st.lists(st.one_of(st.binary(max_size=300_000), st.none()), max_size=6))
def test_a_connection_carries_everything_in_order_however_it_is_pumped(pieces: list[bytes | None]) -> None:
    near, outer = socket.socketpair()
    far, inner = socket.socketpair()
    words: list[deque[tuple[Kind, bytes]]] = [deque(), deque()]
    ends = [
        Channel(1, outer, lambda kind, payload: words[1].append((kind, payload))),
        Channel(1, far, lambda kind, payload: words[0].append((kind, payload))),
    ]
    near.setblocking(False)
    inner.setblocking(False)
    sent, left, got = bytearray(), bytearray(b"".join(piece or b"" for piece in pieces)), bytearray()
    whole = bytes(left)
    try:
        while len(got) < len(whole):
            try:
                count = near.send(left[:100_000]) if left else 0
                sent += left[:count]
                del left[:count]
            except BlockingIOError:
                pass
            for end, heard in zip(ends, words, strict=True):
                while heard:
                    kind, payload = heard.popleft()
                    number, rest = numbered(payload)
                    assert number == 1
                    assert end.hear(kind, rest)
                if end.wants_read:
                    end.read(hung_up=False)
                if end.wants_write:
                    end.write()
            with contextlib.suppress(BlockingIOError):
                got += inner.recv(1 << 20)
        assert bytes(got) == whole
    finally:
        for each in (near, outer, far, inner):
            each.close()


def test_a_connection_refuses_more_than_it_has_room_for() -> None:
    near, far = socket.socketpair()
    with near, far:
        channel = Channel(1, near, lambda *_: None)
        assert not channel.hear(Kind.ROOM, b"1")
        assert not channel.hear(Kind.ROOM, b"x")
        assert not channel.hear(Kind.CUT, b"x")
        channel = Channel(1, near, lambda *_: None)
        assert channel.hear(Kind.FLOW, bytes(wire.ROOM_BYTES))
        assert not channel.hear(Kind.FLOW, b"x")


# --- an image that lacks something ---


def changed(old: str, new: str) -> bytes:
    """Return the bundle for an image in which something is another."""
    parts = [(name, is_package, source.replace(old, new)) for name, is_package, source in sources()]
    packed = zlib.compress(json.dumps(parts).encode())
    return len(packed).to_bytes(4, "big") + packed


def hello_of(spec: WorkerSpec) -> Hello:
    """Return what the init says of a box, in which nothing runs."""
    box = Box(spec)
    seen: list[Hello] = []

    def look(hello: Hello) -> Layers:
        seen.append(hello)
        return Layers()

    try:
        worker = park(
            box.line(),
            spec,
            sandbox_id="rf-test",
            backend="bwrap",
            sandbox_type=SandboxType.BWRAP,
            limits=Limits(),
            inputs=None,
            session=None,
            observe=look,
            on_discard=box.kill,
        )
        worker.discard()
    finally:
        box.kill()
    return seen[0]


@pytest.mark.needs("bwrap")
def test_a_container_says_how_it_is_sealed() -> None:
    hello = hello_of(WorkerSpec(inodes=1 << 60))  # of what this box is made with, nothing bounds the number of files
    assert (hello.filters, hello.notes) == (2, ())
    assert hello.landlock_abi > 0


@pytest.mark.needs("bwrap")
def test_what_a_container_lacks_is_said_and_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking, "bundle", lambda: changed("abi = kernel.landlock_abi()", "abi = 0"))
    monkeypatch.setattr(parking, "_filters", lambda _: [])
    hello = hello_of(WorkerSpec())
    assert (hello.landlock_abi, hello.filters) == (0, 0)
    assert len(hello.notes) == 3
    assert all("container" in note for note in hello.notes)
    assert "the number of files is not limited" in " ".join(hello.notes)


@pytest.mark.needs("bwrap")
def test_an_image_without_a_workspace_module_or_language_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidRequest, match="no_such_module") as refused:
        hello_of(WorkerSpec(preload=("no_such_module",)))
    assert refused.value.reason == "preload_failed"
    monkeypatch.setattr(parking, "bundle", lambda: changed("/workspace/work", "/workspace/elsewhere"))
    with pytest.raises(IsolationUnavailable, match="/workspace/elsewhere"):
        hello_of(WorkerSpec())
    monkeypatch.setattr(parking, "bundle", lambda: changed('["node", "-e"', '["no-such-node", "-e"'))
    with pytest.raises(RuntimeMissing, match="no Node"):
        hello_of(WorkerSpec(runtime=Language.JAVASCRIPT))
