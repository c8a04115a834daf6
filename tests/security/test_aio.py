"""An AIO service is somebody else's machine, which a run may have made its own: what it answers proves nothing."""

from __future__ import annotations

import io
import json
import logging
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import aio_service
from tests.aio_service import AIOService, Raw
from tests.aio_services import Services

from ringfence import SandboxManager
from ringfence.capability.limits import Limits
from ringfence.errors import InvalidRequest, RingfenceError, TimedOut, Unavailable
from ringfence.isolation.aio import following
from ringfence.isolation.aio.binding import PoolConfig
from ringfence.isolation.aio.client import AIOSandboxClient
from ringfence.isolation.aio.luggage import Unpacking
from ringfence.isolation.aio.pool import AIOSandboxPool
from ringfence.isolation.stream.harvesting import harvest
from ringfence.outcome import ExecutionResult, Status
from ringfence.ports import EVERYTHING, Harvest
from ringfence.requests import ExecutionRequest

pytestmark = [pytest.mark.guarantee(31), pytest.mark.needs("bwrap")]

SECRET = "key-that-nobody-else-may-see"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[AIOService]:
    with aio_service.running(tmp_path / "home") as running:
        yield running


async def run_in(service: AIOService, tmp_path: Path, code: str, **options: Any) -> ExecutionResult:
    """Run bash in that service, through the whole pipeline."""
    pool = AIOSandboxPool(PoolConfig(1, 0), instances=[service.url], timeout=5)
    options = {"security_mode": "permissive", "home": tmp_path / "ringfence", "pool_size": 0, **options}
    async with pool, SandboxManager("session", aio_pool=pool, **options) as manager:
        return await manager.execute_code("bash", code)


# --- what comes back ---


def tape(*entries: tuple[str, bytes, bytes | str]) -> bytes:
    """Return a tar file with entries as a hostile service would write them: name, kind, content or target."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, told in entries:
            info = tarfile.TarInfo(name)
            info.type = kind
            content = told if isinstance(told, bytes) else b""
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            info.linkname = told if isinstance(told, str) else ""
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def judged(taped: bytes, listed: bytes = b"", limits: Limits = Limits()) -> Harvest:
    return harvest(Unpacking(taped, listed, {}, with_session=False), None, 0, limits, EVERYTHING)


FILE, LINK, DIRECTORY, HARD = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.LNKTYPE
HONEST = tape(("artifacts", DIRECTORY, b""), ("artifacts/a", FILE, b"1"))


def test_an_honest_tape_is_taken() -> None:
    assert [(each.path, each.read()) for each in judged(HONEST).artifacts] == [("a", b"1")]


@pytest.mark.parametrize(
    "taped",
    [
        tape(("artifacts/../../outside", FILE, b"1")),
        tape(("artifacts/./a", FILE, b"1")),
        tape(("/artifacts/a", FILE, b"1")),
        tape(("artifacts//a", FILE, b"1")),
        tape(("elsewhere/a", FILE, b"1")),
        tape(("job/main.py", FILE, b"1")),
        tape(("artifacts/l", LINK, "/tmp"), ("artifacts/l/a", FILE, b"1")),
        tape(("artifacts/d", DIRECTORY, b""), ("artifacts/d", LINK, "/tmp"), ("artifacts/d/a", FILE, b"1")),
        tape(("artifacts/a", FILE, b"1"), ("artifacts/a", FILE, b"2")),
        tape(("artifacts/a", FILE, b"1"), ("artifacts/b", HARD, "artifacts/a")),
        tape(("artifacts/b", HARD, "/etc/passwd")),
        tape(("artifacts/no/such/directory", FILE, b"1")),
        tape(("artifacts/" + "n" * 300, FILE, b"1")),
        tape(("artifacts/" + "/".join("d" * 5000), DIRECTORY, b"")),
        HONEST[:700],
        HONEST[:512] + b"\0" * 100,
        b"\x80" + HONEST,
        HONEST.replace(b"00000000001\x00", b"77777777777\x00"),
        HONEST.replace(b"00000000001\x00", b"-0000000001\x00"),
        b"",
        b"not a tape at all" * 1000,
    ],
)
def test_a_tape_that_leads_anywhere_else_is_lost_and_nothing_is_written(taped: bytes, tmp_path: Path) -> None:
    outside = set(Path("/tmp").iterdir())
    found = judged(taped)
    assert (found.artifacts, found.files_written) == ((), ())
    assert "the files of the run are lost" in found.notes[0]
    assert not any(path.name in ("a", "outside") for path in set(Path("/tmp").iterdir()) - outside)
    assert list(tmp_path.iterdir()) == []


def test_a_link_among_the_artifacts_is_not_followed() -> None:
    found = judged(tape(("artifacts/l", LINK, "/etc/passwd")))
    assert (found.artifacts, found.changes.uncollected) == ((), (("l", "symlink"),))


def test_more_than_was_asked_for_is_cut_or_lost() -> None:
    limits = Limits(artifact_bytes=100, artifact_count=2)
    many = tape(*((f"artifacts/f{number}", FILE, b"x") for number in range(10_000)))
    some = judged(many, limits=limits)
    assert (len(some.artifacts), some.changes.complete) == (2, False)
    assert len(some.changes.uncollected) < 100  # of so many more, not even the names
    large = judged(tape(("artifacts/big", FILE, b"x" * 101), ("artifacts/small", FILE, b"y")), limits=limits)
    assert [each.path for each in large.artifacts] == ["small"]
    listed = b"".join(b"f 644 1 0.0 work/f%d\0\0" % number for number in range(100_000))
    found = judged(tape(), listed)
    assert (len(found.files_written) <= 10_001, found.changes.complete) == (True, False)


@pytest.mark.parametrize(
    "listed",
    [b"f", b"f 644 1 0.0 work/a\0", b"f 644 -1 0.0 work/a\0\0", b"f 9 1 0.0 work/a\0\0", b"f 644 1 x work/a\0\0",
     b"f 644 1 0.0 /etc/a\0\0", b"f 644 1 0.0 work/../a\0\0"],
)  # fmt: skip
def test_a_list_that_is_none_is_lost(listed: bytes) -> None:
    assert "lost" in judged(tape(), listed).notes[0]


def test_names_that_a_terminal_would_obey_are_made_harmless() -> None:
    found = judged(tape(("artifacts/a\x1b[2J\n", FILE, b"1")))
    assert [each.path for each in found.artifacts] == ["a%1B[2J%0A"]


async def test_a_service_that_sends_another_tape_changes_nothing_of_the_session(
    service: AIOService, tmp_path: Path
) -> None:
    await run_in(service, tmp_path, "echo mine >f")
    service.scripted["file/download"] = lambda _: Raw(tape(("work/../../../f", FILE, b"forged")))
    result = await run_in(service, tmp_path, "echo more >g")
    assert (result.files_written, result.changes.kept) == ((), False)
    service.scripted.clear()
    assert (await run_in(service, tmp_path, "cat *")).stdout == "mine\n"


# --- what it says ---


@pytest.mark.parametrize("name", ["'; touch {pwned}; '", "$(touch {pwned})", "`touch {pwned}`"])
async def test_the_home_it_names_is_a_name_and_no_command(service: AIOService, name: str) -> None:
    pwned = service.home / "pwned"
    home = f"{service.home}/{name.format(pwned=pwned)}"
    service.scripted["sandbox"] = lambda _: {"success": True, "home_dir": home}
    async with AIOSandboxClient(service.url, timeout=5) as client:
        result = await client.execute(ExecutionRequest("pwd", "bash"))
    assert result.stdout.startswith(home)
    assert not pwned.exists()


@pytest.mark.parametrize(
    "answer",
    [
        {"session_id": "s", "stdout": "again", "offset": -1, "stderr_offset": 0},
        {"session_id": "s", "stdout": "again", "offset": "5"},
        {"session_id": "s", "command": {"command_id": "c", "command": "x", "status": "of its own"}},
        {
            "session_id": "s",
            "command": {"command_id": "c", "command": "x", "status": "completed", "exit_code": 1 << 70},
        },
        {"session_id": "s", "command": {"command_id": "c", "command": "x", "status": "completed", "exit_code": None}},
        [],
        None,
    ],
)
async def test_an_end_that_cannot_be_is_no_success(service: AIOService, tmp_path: Path, answer: Any) -> None:
    service.scripted["bash/output"] = lambda _: {"success": True, "data": answer}
    result = await run_in(service, tmp_path, "true")
    assert (result.status, result.killed_by, result.exit_code) == (Status.KILLED, "unknown", None)


async def test_output_without_end_is_bounded_in_memory_and_in_time(
    service: AIOService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_GRACE_SECONDS", 0.5)
    said = [0]

    def more(_: Any) -> Any:
        said[0] += 1
        about = {"command_id": "c", "command": "x", "status": "running"}
        data = {"session_id": "s", "stdout": "x" * 1_000_000, "offset": said[0], "command": about}
        return {"success": True, "data": data}

    service.scripted["bash/output"] = more
    result = await run_in(service, tmp_path, "true", limits=Limits(wall_seconds=0.5, stdout_bytes=1000))
    assert (result.status, result.killed_by, len(result.stdout_raw) < 1200) == (Status.TIMED_OUT, "wall_timeout", True)


async def test_a_service_that_answers_at_once_and_says_nothing_is_not_asked_without_pause(
    service: AIOService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_GRACE_SECONDS", 0.5)
    about = {"command_id": "c", "command": "x", "status": "running"}
    service.scripted["bash/output"] = lambda _: {"success": True, "data": {"session_id": "s", "command": about}}
    await run_in(service, tmp_path, "true", limits=Limits(wall_seconds=0.5))
    assert len([1 for _, route, _ in service.requests if route == "bash/output"]) < 30


# --- the line ---


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Answer each connection with whatever `answer` does to it."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                taken, _ = server.accept()
            except OSError:
                return
            with taken:
                try:
                    taken.recv(65536)
                    answer(taken)
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(10)


def _endless(taken: socket.socket) -> None:
    taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        taken.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")


def _huge(taken: socket.socket) -> None:
    taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 99999999999\r\n\r\n")


async def test_an_answer_without_end_is_no_answer() -> None:
    for answer in (_endless, _huge):
        with listening(answer) as url, pytest.raises(Unavailable, match="more than was asked for"):
            async with AIOSandboxClient(url) as client:
                await client.file.download("/x", longest=1_000_000)


async def test_a_service_that_never_answers_is_given_up() -> None:
    released = threading.Event()

    def answer(_: socket.socket) -> None:
        released.wait(30)

    with listening(answer) as url:
        client = AIOSandboxClient(url, timeout=0.2)
        try:
            with pytest.raises(TimedOut):
                await client.file.read("/x")
        finally:
            released.set()


async def test_the_key_goes_to_nobody_else_and_into_no_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with aio_service.running(tmp_path / "other") as other, aio_service.running(tmp_path / "home", SECRET) as service:
        client = AIOSandboxClient(service.url, api_key=SECRET)
        assert (await client.bash.exec("true")).exit_code == 0
        service.scripted["file/read"] = lambda _: Raw(b"", 307, {"Location": f"{other.url}/v1/file/read"})
        with pytest.raises(Unavailable) as refused:
            await client.file.read("/x")
        service.scripted["file/read"] = lambda form: {"success": False, "message": json.dumps(form)}
        with pytest.raises(RingfenceError) as told:
            await client.file.read("/x")
        client.close()
    assert other.requests == []
    for shown in (repr(client), str(refused.value), str(told.value), repr(vars(refused.value)), caplog.text):
        assert SECRET not in shown


@pytest.mark.parametrize(
    "url", ["http://192.0.2.1:8080", "http://name.invalid", "http://user:pw@127.0.0.1", "ftp://x", 7]
)
def test_the_key_does_not_travel_in_the_clear(url: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        AIOSandboxClient(url, api_key=SECRET)
    assert SECRET not in str(refused.value)


# --- sessions ---


async def test_what_one_session_left_running_is_not_met_by_another(tmp_path: Path) -> None:
    """The daemon of the first session would answer for the second one's service, were it given the same instance."""
    services = Services(tmp_path / "services")
    pool = AIOSandboxPool(PoolConfig(1, 0), starter=services)
    options: dict[str, Any] = {"security_mode": "permissive", "home": tmp_path / "ringfence", "pool_size": 0}
    async with pool:
        async with SandboxManager("one", aio_pool=pool, **options) as manager:
            left = await manager.execute_code("bash", "echo planted >../../../planted; cat ../../../planted")
        async with SandboxManager("two", aio_pool=pool, **options) as manager:
            found = await manager.execute_code("bash", "cat ../../../planted")
    assert (left.stdout, found.stdout, len(services.started)) == ("planted\n", "", 2)
