"""G4, G7, G8, G10: a process that somebody looks at reaches nobody's terminal but its own, and outlives nothing."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ringfence import Limits, Process, SandboxManager, Status
from ringfence.authority.caller import Caller
from ringfence.errors import InvalidRequest, QuotaExceeded
from ringfence.isolation.company import MOST_UNREAD
from ringfence.processes.running import KEPT_BYTES, MOST_SENT

pytestmark = [pytest.mark.timeout(90), pytest.mark.guarantee(4, 7, 8, 10, 24)]

# What a guest can try with every terminal it can name or hold; run outside a box the first of them types.
TYPE_INTO = """
import errno, fcntl, glob, json, os, stat, struct, sys
TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD = 0x5412, 0x541C, 0x541D, 0x5423
def attempt(what, *arguments):
    try:
        what(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return 'done'
said = {}
for number in (0, 1, 2):
    for name, request, argument in (
        ('sti', TIOCSTI, b'x'), ('linux', TIOCLINUX, struct.pack('b', 3)), ('cons', TIOCCONS, b'\\0'),
        ('setd', TIOCSETD, struct.pack('i', 21)),
    ):
        said[f'{name} {number}'] = attempt(fcntl.ioctl, number, request, argument)
paths = sorted({*glob.glob('/dev/pts/*'), *glob.glob('/dev/tty*'), '/dev/console', '/dev/ptmx', '/proc/1/fd/0'})
said['others'] = []
for path in paths:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
    except OSError:
        continue
    said['others'].append([path, os.fstat(fd).st_rdev, attempt(fcntl.ioctl, fd, TIOCSTI, b'x')])
print(json.dumps(said), flush=True)
"""
LIST_HELD = """
import os, stat
for fd in sorted(map(int, os.listdir('/proc/self/fd'))):
    try:
        seen = os.fstat(fd)
    except OSError:
        continue
    print(fd, stat.S_ISCHR(seen.st_mode) and os.major(seen.st_rdev), flush=True)
"""


@pytest.fixture(
    params=[
        pytest.param("native", marks=pytest.mark.needs("native")),
        pytest.param("bwrap", marks=pytest.mark.needs("bwrap")),
    ]
)
def isolation(request: pytest.FixtureRequest) -> str:
    """Each kind of box in turn."""
    name: str = request.param
    return name


@asynccontextmanager
async def opened(isolation: str, home: Path, **options: object) -> AsyncIterator[SandboxManager]:
    async with SandboxManager(isolation=isolation, home=home, pool_size=1, **options) as manager:  # type: ignore[arg-type]
        yield manager


async def everything(process: Process) -> bytes:
    await process.wait()
    said = await process.poll()
    return said.stdout.data + said.stderr.data


async def test_no_terminal_can_be_typed_into_its_own_included(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process(code=TYPE_INTO, language="python", terminal=(24, 80))
        said = json.loads((await everything(process)).strip().splitlines()[-1])
    own = {name: how for name, how in said.items() if name.split()[0] in ("sti", "linux", "cons", "setd")}
    assert set(own.values()) == {"EPERM"}, own
    assert all(how == "EPERM" for _, _, how in said["others"]), said["others"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may type into a terminal that is not its own")
def test_the_same_request_outside_a_box_does_type() -> None:
    outer, inner = pty.openpty()
    try:
        fcntl.ioctl(inner, termios.TIOCSTI, b"x")
        fcntl.ioctl(inner, termios.TIOCSTI, b"\n")
        assert os.read(inner, 10) == b"x\n"
    finally:
        os.close(outer)
        os.close(inner)


async def test_a_terminal_of_the_host_is_not_there_by_any_name(isolation: str, tmp_path: Path) -> None:
    """With a terminal of our own open, the box's instance knows no other than its first."""
    outer, inner = pty.openpty()
    try:
        async with opened(isolation, tmp_path) as manager:
            process = await manager.start_process("ls /dev/pts", terminal=(24, 80))
            said = (await everything(process)).split()
        assert said == [b"0", b"ptmx"]
    finally:
        os.close(outer)
        os.close(inner)


async def test_the_guest_holds_no_descriptor_of_ours_beside_its_streams(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        on_terminal = await manager.start_process(code=LIST_HELD, language="python", terminal=(24, 80))
        on_pipes = await manager.start_process(code=LIST_HELD, language="python")
        held = [line.split() for line in (await everything(on_terminal)).decode().splitlines()]
        piped = [line.split() for line in (await everything(on_pipes)).decode().splitlines()]
    # 136 is a terminal's inner end; the outer one, 5, would let the guest read what is typed before it is asked
    assert held == [["0", "136"], ["1", "136"], ["2", "136"]]
    assert piped == [["0", "False"], ["1", "False"], ["2", "False"]]


async def test_a_plain_run_has_no_terminal_and_cannot_open_one(isolation: str, tmp_path: Path) -> None:
    tried = (
        "for p in /dev/ptmx /dev/pts/ptmx /dev/tty /dev/console; do (exec 3<>$p) 2>/dev/null && echo opened $p; done"
    )
    async with opened(isolation, tmp_path) as manager:
        result = await manager.execute_shell(f"{tried}; ls /dev/pts 2>/dev/null; true")
        assert result.stdout == ""


ON_OUR_TERMINAL = """
import asyncio, sys
from ringfence import SandboxManager
TRY = "exec 2>&1; for p in /dev/tty /dev/pts/0 /dev/pts/1 /dev/console; do echo typed-into > $p; done"
async def main():
    async with SandboxManager(isolation=sys.argv[1], home=sys.argv[2], pool_size=1) as manager:
        plain = await manager.execute_shell("(echo typed-into > /dev/tty) 2>/dev/null || echo refused")
        process = await manager.start_process(TRY, terminal=(24, 80))
        await process.wait()
        said = (await process.poll()).stdout.data
    print(plain.stdout.strip(), said.count(b"typed-into"), flush=True)
asyncio.run(main())
"""


def test_a_guest_reaches_its_own_terminal_and_never_the_one_we_were_started_on(isolation: str, tmp_path: Path) -> None:
    """The host program has a controlling terminal here, as it has when a person types the command."""
    outer, inner = pty.openpty()
    try:
        words = ["setsid", "--ctty", "--wait", sys.executable, "-c", ON_OUR_TERMINAL, isolation, str(tmp_path)]
        host = subprocess.Popen(words, stdin=inner, stdout=subprocess.PIPE, stderr=inner, text=True)
        assert host.stdout is not None
        with host.stdout:
            answer = host.stdout.read()
        assert host.wait() == 0
        os.close(inner)
        inner = -1
        shown = _everything_on(outer)
    finally:
        os.close(outer)
        if inner >= 0:
            os.close(inner)
    refused, typed = answer.split()
    assert refused == "refused"
    assert typed == "2"  # by both names of its own
    assert "typed-into" not in shown


def _everything_on(outer: int) -> str:
    shown = b""
    with contextlib.suppress(OSError):
        while data := os.read(outer, 4096):
            shown += data
    return shown.decode()


async def test_a_box_has_few_terminals(isolation: str, tmp_path: Path) -> None:
    if isolation == "bwrap":
        pytest.skip("bubblewrap's instance has no limit of its own, which its notes say")
    code = (
        "import os\nopened = []\ntry:\n    while True: opened.append(os.open('/dev/ptmx', os.O_RDWR))\n"
        "except OSError: print(len(opened))"
    )
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process(code=code, language="python", terminal=(24, 80))
        assert int(await everything(process)) < 16


async def test_input_that_nobody_reads_costs_us_a_little_and_is_taken_whole_or_not(
    isolation: str, tmp_path: Path
) -> None:
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process("sleep 100")
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await process.send(b"x" * MOST_SENT, wait_seconds=0.2)
                sent += MOST_SENT

        with pytest.raises(QuotaExceeded) as full:
            await flood()
        assert full.value.reason == "input_full"
        assert sent <= MOST_UNREAD + MOST_SENT + (1 << 20)  # ours, and what the kernel's pipe holds
        await process.kill()


async def test_a_sender_that_waits_is_let_go_when_the_process_ends(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process("sleep 100")

        async def flood() -> None:
            while True:
                await process.send(b"x" * MOST_SENT)

        flooding = asyncio.ensure_future(flood())
        await asyncio.sleep(0)
        await process.kill()
        with pytest.raises(InvalidRequest):
            await flooding


async def test_endless_output_is_bounded_counted_and_never_stops_the_guest(isolation: str, tmp_path: Path) -> None:
    size = 64 << 20
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process(f"head -c {size} /dev/urandom; echo end >&2", timeout=60)
        result = await process.wait()
        assert (result.exit_code, result.stdout_bytes) == (0, size)
        said = await process.poll(stdout_offset=10)
        assert len(said.stdout.data) == KEPT_BYTES
        assert said.stdout.lost_bytes == size - KEPT_BYTES - 10
        assert said.stdout.next_offset == size
        assert process._running.weight < 4 * KEPT_BYTES


async def test_a_flood_on_a_terminal_ends_with_its_process(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process("yes", terminal=(24, 80), timeout=2)
        assert (await process.wait()).killed_by == "wall_timeout"


async def test_killing_leaves_nothing_however_much_was_started(isolation: str, tmp_path: Path) -> None:
    bomb = ":(){ :|:& };: ; echo up; setsid sleep 1000 & nohup sleep 1000 & while :; do sleep 0.1; done"
    async with opened(isolation, tmp_path, limits=Limits(pids=32)) as manager:
        process = await manager.start_process(bomb, terminal=(24, 80))
        await process.poll(wait_seconds=20)
        workers = _descendants()
        await process.kill()
        assert process.state is Status.CANCELLED
        for _ in range(200):
            left = {pid for pid in workers if _is_running(pid)}
            if not left or isolation == "bwrap":
                break
            await asyncio.sleep(0.02)
        assert not {name for pid in workers if (name := _is_running(pid)) in ("sleep", "bash")}


async def test_a_stopped_process_is_killed_all_the_same(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process("echo up; kill -STOP $$; echo never")
        await process.poll(wait_seconds=20)
        await process.kill()
        assert process.state is Status.CANCELLED


async def test_hanging_up_is_not_a_way_to_outlive_the_run(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        process = await manager.start_process(
            "trap '' HUP INT TERM; (trap '' HUP; exec sleep 1000) & disown -a; echo up", terminal=(24, 80)
        )
        result = await process.wait()
        assert result.exit_code == 0
        assert not [name for pid in _descendants() if (name := _is_running(pid)) == "sleep"]


async def test_another_tenant_finds_no_process_and_cannot_tell_it_from_none(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as house:
        mine, other = house.acting_for(Caller("acme")), house.acting_for(Caller("other"))
        process = await mine.start_process("sleep 100")
        refusals = []
        for name in (process.process_id, "pr_nonsense"):
            with pytest.raises(InvalidRequest) as refused:
                await other.process(name)
            refusals.append((str(refused.value), refused.value.reason, refused.value.details, refused.value.fix))
        assert refusals[0] == refusals[1]
        assert await other.processes() == []
        assert [each.process_id for each in await mine.processes()] == [process.process_id]


async def test_a_process_goes_on_when_the_task_that_started_it_is_cancelled(isolation: str, tmp_path: Path) -> None:
    async with opened(isolation, tmp_path) as manager:
        started: asyncio.Future[Process] = asyncio.get_running_loop().create_future()

        async def caller() -> None:
            started.set_result(await manager.start_process("read line; echo got $line"))
            await asyncio.sleep(1000)

        task = asyncio.ensure_future(caller())
        process = await started
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await process.send("hello\n")
        assert (await process.wait()).stdout == "got hello\n"


def _descendants() -> set[int]:
    """Every process that descends from this one, with its children's children."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(") ")[2].split()[1])
    found, grew = {os.getpid()}, True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found, grew = found | more, bool(more)
    return found - {os.getpid()}


def _is_running(pid: int) -> str | None:
    with contextlib.suppress(OSError):
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(") ")
        return None if rest.startswith(("Z", "X")) else name
    return None


@pytest.mark.guarantee(3, 5)
async def test_whoever_is_in_the_network_of_a_box_has_no_privilege_and_goes_with_it(
    isolation: str, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {tools: {shell_exec: {open_ports: [8000]}}}\n")
    async with opened(isolation, tmp_path / "home", policy_file=policy) as manager:
        process = await manager.start_process(
            "exec python3 -u -m http.server 8000 --bind 127.0.0.1", ports=[8000], terminal=(24, 80)
        )
        await process.poll(wait_seconds=20)
        before = _descendants()
        (await process.connect(8000)).close()
        (inside,) = {pid for pid in _descendants() - before if "passage_inside" in _command(pid)}
        status = _status(inside)
        assert {status[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {"0" * 16}
        assert status["NoNewPrivs"] == "1"
        assert os.readlink("/proc/self/ns/net") == os.readlink("/proc/thread-self/ns/net")
        if os.geteuid() == 0:
            assert set(status["Uid"].split()) == {"65534"}
            assert os.readlink(f"/proc/{inside}/ns/net") != os.readlink("/proc/self/ns/net")
            # nothing at 0, 1 and 2, and its channel; what it handed out it closes in a moment
            while len(os.listdir(f"/proc/{inside}/fd")) != 4:  # noqa: ASYNC110  another process does it
                await asyncio.sleep(0)
        else:
            with pytest.raises(PermissionError):  # it is in another user's namespace, also for who started it
                os.readlink(f"/proc/{inside}/ns/net")
        seen = await manager.start_process("ls /proc | grep -c '^[0-9]'")
        assert int(await everything(seen)) < 8
        await process.kill()
        assert _is_running(inside) is None


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
