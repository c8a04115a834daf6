"""Attack: speak for the init of a container from inside it, or be a container that lies to its host."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stream_box import started
from tests.stream_scripts import HELLO, Container, Script, entry, parked

from ringfence.attachment import Controls
from ringfence.capability.limits import MIB, Limits
from ringfence.errors import InternalError, IsolationUnavailable, RingfenceError
from ringfence.isolation.protocol import Kind, encode
from ringfence.isolation.stream import boot, harvesting, running, wire
from ringfence.isolation.stream.boot import bundle
from ringfence.isolation.stream.controls import StreamControls
from ringfence.isolation.stream.host import StreamWorker
from ringfence.masking import Masks
from ringfence.operation import Language
from ringfence.ports import EVERYTHING, Ending, Harvest, Job, Keeping, WorkerLost
from ringfence.workspaces.session import SessionWorkspace

pytestmark = [pytest.mark.guarantee(13), pytest.mark.guarantee(29), pytest.mark.timeout(60)]
BOXES = pytest.mark.needs("bwrap")

FRAMES = b"".join(
    encode(kind, b"0 0 0 0 0 0 0")
    for kind in (Kind.READY, Kind.STARTED, Kind.EXIT, Kind.TAKEN, Kind.STDOUT, Kind.HARVEST)
)


def job(code: str = "pass", language: Language = Language.PYTHON, *, stdin: bytes = b"", **limits: Any) -> Job:
    return Job(language, code, (), {}, stdin, Limits(**limits))


def ran(code: str, language: Language = Language.PYTHON, **options: Any) -> Ending:
    """Run a hostile program in a container whose init is ours."""
    worker = started()
    try:
        return asyncio.run(worker.run(job(code, language, **options), None))
    finally:
        worker.discard()


# --- a hostile guest ---


@BOXES
def test_our_messages_on_every_descriptor_are_only_output() -> None:
    code = f"""
import os, sys
for number in range(256):
    try: os.write(number, {FRAMES!r})
    except OSError: pass
sys.exit(7)
"""
    ending = ran(code)
    assert (ending.exit_code, ending.killed_by, ending.stdout, ending.stderr) == (7, None, FRAMES, FRAMES)


@BOXES
def test_nothing_of_the_init_can_be_opened_traced_or_changed() -> None:
    code = """
import ctypes, errno, json, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def how(what, *given):
    try: what(*given)
    except OSError as error: return errno.errorcode[error.errno]
    return 'done'
def call(number, *given):
    done = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, given)) >= 0
    return 'done' if done else errno.errorcode[ctypes.get_errno()]
said = {}
for number in range(64):
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        said[f'fd {number} {flags}'] = how(os.open, f'/proc/1/fd/{number}', flags | os.O_NONBLOCK)
for name in ('mem', 'environ', 'maps', 'auxv', 'stack', 'syscall', 'fdinfo/3', 'cwd', 'root/etc', 'exe', 'io'):
    said[name] = how(os.open, f'/proc/1/{name}', os.O_RDONLY)
for name in ('oom_score_adj', 'comm', 'timerslack_ns', 'coredump_filter', 'clear_refs', 'sched', 'autogroup'):
    said[name] = how(os.open, f'/proc/1/{name}', os.O_WRONLY)
pidfd = os.pidfd_open(1)
said['pidfd_getfd'] = call(438, pidfd, 4, 0)
said['ptrace'] = call(101, 16, 1, 0, 0)
said['process_vm_readv'] = call(310, 1, 0, 0, 0, 0, 0)
said['process_vm_writev'] = call(311, 1, 0, 0, 0, 0, 0)
said['kcmp'] = call(312, 1, os.getpid(), 0, 0, 0)
said['prlimit'] = call(302, 1, 7, 0, 0)
said['own'] = sorted(os.listdir('/proc/self/fd'))[:-1]
print(json.dumps(said))
"""
    ending = ran(code)
    said = json.loads(ending.stdout)
    assert set(said.pop("own")) <= {"0", "1", "2", "3", "4"}  # the streams, its pidfd, and the listing itself
    assert "done" not in said.values(), {name: how for name, how in said.items() if how == "done"}


@BOXES
def test_no_signal_of_the_guest_ends_stops_or_confuses_the_init() -> None:
    code = """
import contextlib, os, signal, sys
for number in range(1, 65):
    for target in (1, 1, 1):
        with contextlib.suppress(OSError): os.kill(target, number)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(2000):
    with contextlib.suppress(OSError): os.kill(1, signal.SIGCHLD)
for number in (1, 2, 3, 15, 19, 20):
    if number not in (19, 15): signal.signal(number, signal.SIG_IGN) if number != 19 else None
print('lived'); sys.exit(5)
"""
    ending = ran(code)
    assert (ending.exit_code, ending.stdout, ending.killed_by) == (5, b"lived\n", None)


@BOXES
def test_a_guest_that_kills_everything_it_can_is_reported_as_what_it_was() -> None:
    ending = ran("import os, signal; os.fork(); os.kill(-1, signal.SIGKILL); os._exit(3)")
    assert ending.killed_by is None
    assert (ending.exit_code, ending.signal) in ((3, None), (None, signal.SIGKILL))


@BOXES
@pytest.mark.parametrize(
    "code",
    [
        "import os\nwhile True: os.write(1, b'x' * 65536)",
        "import os\nfor _ in range(4): os.fork()\nwhile True: os.write(2, bytes(65536))",
    ],
)
def test_a_flood_is_counted_cut_and_ended_in_time(code: str) -> None:
    ending = ran(code, wall_seconds=1.0, stdout_bytes=1000, stderr_bytes=1000)
    assert ending.killed_by == "wall_timeout"
    assert len(ending.stdout) + len(ending.stderr) < 4000
    assert ending.stdout_bytes + ending.stderr_bytes > 1 << 20


@BOXES
def test_orphans_daemons_and_stopped_processes_are_dead_before_the_end_is_told() -> None:
    code = """
import os, signal, time
for number in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        if number % 2: os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.2)
        open('/output/late', 'w').write('x')
        signal.pause()
"""
    worker = started()
    try:
        ending = asyncio.run(worker.run(job(code), None))
        assert ending.exit_code == 0
        init = Path(f"/proc/{worker.init_pid}/task/{worker.init_pid}/children")
        assert init.read_text() == ""
        assert worker.harvest(Limits()).artifacts == ()
    finally:
        worker.discard()


HIDES = {
    "nothing allowed in its own directories": """
import os
os.makedirs('/output/a/b'); open('/output/a/b/c', 'w').write('x'); open('/output/d', 'w').write('y')
os.chmod('/output/d', 0); os.chmod('/output/a/b', 0); os.chmod('/output/a', 0o200); os.chmod('/workspace/artifacts', 0)
os.chmod('/workspace/work', 0)
""",
    "a tree deeper than paths can be": """
import os
open('/output/d', 'w').write('y'); os.makedirs('/output/a/b'); open('/output/a/b/c', 'w').write('x')
os.chdir('/output')
for _ in range(600): os.mkdir('n' * 200); os.chdir('n' * 200)
""",
    "more names than anybody reads": """
import os
open('/output/d', 'w').write('y'); os.makedirs('/output/a/b'); open('/output/a/b/c', 'w').write('x')
os.mkdir('/output/z')
for number in range(9000): open(f'/output/z/{number}', 'w').close()
""",
    "links, fifos, sockets and holes": """
import os, socket
open('/output/d', 'w').write('y'); os.makedirs('/output/a/b'); open('/output/a/b/c', 'w').write('x')
os.symlink('/etc/passwd', '/output/e'); os.symlink('/', '/output/f'); os.symlink('loop', '/output/loop')
os.mkfifo('/output/g'); socket.socket(socket.AF_UNIX).bind('/output/h')
for number in range(100): open(f'/output/hole{number}', 'wb').truncate(200 << 20)
os.symlink('x' * 4000, '/workspace/work/long')
""",
}


@BOXES
@pytest.mark.guarantee(11)
@pytest.mark.parametrize("code", HIDES.values(), ids=list(HIDES))
def test_whatever_a_guest_makes_of_its_directories_its_files_are_found_in_bounds(code: str) -> None:
    worker = started()
    try:
        ending = asyncio.run(worker.run(job(code), None))
        assert (ending.exit_code, ending.stderr) == (0, b"")
        found = worker.harvest(Limits(artifact_count=50))
    finally:
        worker.discard()
    taken = {artifact.path: artifact.content for artifact in found.artifacts}
    assert (taken["d"], taken["a/b/c"]) == (b"y", b"x")
    assert len(taken) <= 50
    assert sum(len(content) for content in taken.values()) < 1000


@BOXES
def test_when_the_host_is_gone_everything_inside_goes() -> None:
    worker = started()
    pidfd = os.pidfd_open(worker.init_pid)
    try:

        async def hang_up() -> None:
            heard = asyncio.Event()
            run = asyncio.ensure_future(worker.run(job("print(1)\nwhile True: pass"), lambda *_: heard.set()))
            await heard.wait()
            worker.talk.close()  # as the kernel does for a host that was killed
            loop, dead = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(pidfd, dead.set)
            await dead.wait()
            loop.remove_reader(pidfd)
            run.cancel()
            worker.discard()
            await asyncio.gather(run, return_exceptions=True)

        asyncio.run(hang_up())
    finally:
        os.close(pidfd)


@BOXES
def test_an_init_that_its_guest_could_speak_for_never_becomes_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    # the attack that everything above stands against, with the two defences taken away: it is found before any guest is
    parts = json.loads(zlib.decompress(bundle()[4:]))
    weakened = [
        [
            name,
            package,
            source.replace("kernel.set_dumpable(0)", "pass").replace("landlock.enter(", "id; (lambda *_: 0)("),
        ]
        for name, package, source in parts
    ]
    packed = zlib.compress(json.dumps(weakened).encode())
    monkeypatch.setattr("ringfence.isolation.stream.parking.bundle", lambda: len(packed).to_bytes(4, "big") + packed)
    with pytest.raises(IsolationUnavailable, match="speak for its init"):
        started()


@BOXES
def test_an_init_that_is_not_the_first_process_refuses_to_be_one() -> None:
    with pytest.raises(IsolationUnavailable, match="first process"):
        started(wrap=lambda words: [word for word in words if word != "--as-pid-1"])


def test_what_is_sent_inside_compiles_on_the_oldest_python_it_is_meant_for() -> None:
    import ast

    for name, _, source in json.loads(zlib.decompress(bundle()[4:])):
        ast.parse(source, name, feature_version=(3, 8))
    ast.parse(boot.BOOT, feature_version=(3, 8))


# --- a hostile container ---


@contextmanager
def held(script: Script, **options: Any) -> Iterator[StreamWorker]:
    worker, container = parked(script, **options)
    try:
        yield worker
    finally:
        worker.discard()
        container.end()
        assert container.killed.is_set()


def said_at_boot(data: bytes) -> Script:
    def script(container: Container) -> None:
        container.take(len(bundle()))
        container.until(Kind.SETUP)
        container.write(data)
        container.stay()

    return script


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x01",
        b"\0\0\0\0\x01",
        b"\0\0\0\x01\xff",
        b"HTTP/1.1 200 OK\r\n\r\n",
        encode(Kind.EXIT, b"0 0 0 0 0 0 0"),
        encode(Kind.STARTED),
        encode(Kind.READY),
        encode(Kind.READY, b"[]"),
        encode(Kind.READY, b"[" * 100_000),
        encode(Kind.READY, b"9" * 100_000),
        encode(Kind.READY, json.dumps({**HELLO, "notes": ["no such note"]}).encode()),
        encode(Kind.READY, json.dumps({**HELLO, "python": "3.11\x1b[2J"}).encode()),
        encode(Kind.READY, json.dumps({**HELLO, "pid": 1e400}).encode()),
        encode(Kind.FAILED),
        encode(Kind.FAILED, b"[" * 100_000),
        encode(Kind.FAILED, json.dumps({"stage": "x", "word": "", "error": "\x1b[2J\n" * 1000}).encode()),
        encode(Kind.FAILED, json.dumps({"stage": ["x"], "word": {}, "error": None}).encode()),
    ],
)
def test_a_container_that_boots_into_nonsense_is_refused_in_plain_words(data: bytes) -> None:
    with pytest.raises(RingfenceError) as refused:
        parked(said_at_boot(data))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 2000


def test_a_container_that_says_nothing_or_only_prints_is_given_up_in_time() -> None:
    def mute(container: Container) -> None:
        container.stay()

    def loud(container: Container) -> None:
        while True:
            os.write(container.errors, b"\x1b[2Jnot found\n" * 100)

    for script, said in ((mute, "in time"), (loud, "it said")):
        with pytest.raises(InternalError, match=said) as refused:
            parked(script, seconds=0.3)
        assert str(refused.value).isprintable()


@pytest.mark.parametrize("cut", [1, 3, 5, 9])
def test_a_container_that_ends_in_the_middle_of_a_word_is_lost_and_not_believed(cut: int) -> None:
    def script(container: Container) -> None:
        container.boot()
        container.until(Kind.START)
        container.write((encode(Kind.STARTED) + encode(Kind.EXIT, b"0 0 0 0 0 0 0"))[:cut])

    with held(script) as worker:
        if cut < 5:
            with pytest.raises(WorkerLost):
                asyncio.run(worker.run(job(), None))
        else:
            ending = asyncio.run(worker.run(job(), None))
            assert (ending.exit_code, ending.killed_by) == (None, "unknown")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x05",
        encode(Kind.STARTED),
        encode(Kind.READY),
        encode(Kind.PLACED, b"0"),
        encode(Kind.HARVEST, b"1"),
        encode(Kind.ENTRY, entry(b"a")),
        encode(Kind.TAKEN, b"1"),
        encode(Kind.TAKEN, b"-1"),
        encode(Kind.TAKEN, b"9" * 5000),
        encode(Kind.TERMINAL),
        encode(Kind.EXIT),
        encode(Kind.EXIT, b"0 0 0"),
        encode(Kind.EXIT, b"-1 0 0 0 0 0 0"),
        encode(Kind.EXIT, b"99999999 0 0 0 0 0 0"),
        encode(Kind.EXIT, b"0 0 0 0 0 0 " + b"9" * 5000),
        encode(Kind.EXIT, b"a b c d e f g"),
    ],
)
def test_a_word_out_of_turn_ends_the_container_and_the_run_is_nobodys_success(data: bytes) -> None:
    def script(container: Container) -> None:
        container.start()
        container.say(Kind.STDOUT, b"before")
        container.write(data)
        container.stay()

    with held(script) as worker:
        ending = asyncio.run(worker.run(job(), None))
        assert (ending.exit_code, ending.signal, ending.killed_by) == (None, None, "unknown")
        assert ending.stdout in (b"", b"before")
        assert worker.harvest(Limits()).artifacts == ()


def test_output_before_the_job_was_understood_is_nobodys() -> None:
    def script(container: Container) -> None:
        container.boot()
        container.say(Kind.STDOUT, b"early")
        container.stay()

    with held(script) as worker:
        ending = asyncio.run(worker.run(job(), None))
        assert (ending.killed_by, ending.stdout) == ("unknown", b"")


def test_a_second_farewell_changes_nothing() -> None:
    def script(container: Container) -> None:
        container.start()
        container.write(encode(Kind.EXIT, b"256 0 0 0 0 0 0") + encode(Kind.EXIT, b"0 0 0 0 0 0 0"))
        container.stay()

    with held(script) as worker:
        ending = asyncio.run(worker.run(job(), None))
        assert ending.exit_code != 0


def test_a_container_that_does_not_end_its_guest_is_killed_whatever_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "END_SECONDS", 0.2)

    def deaf(container: Container) -> None:
        container.start()
        while not container.killed.is_set():
            container.say(Kind.STDOUT, b"still here\n")

    with held(deaf) as worker:
        ending = asyncio.run(worker.run(job(wall_seconds=0.2), None))
        assert (ending.killed_by, ending.exit_code) == ("wall_timeout", None)


def test_an_engine_that_does_not_even_kill_does_not_keep_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "END_SECONDS", 0.1)

    def script(container: Container) -> None:
        container.start()
        container.stay()

    with held(script) as worker:
        ending = asyncio.run(worker.run(job(wall_seconds=0.1), None))
        assert ending.killed_by == "wall_timeout"


def test_a_job_that_nobody_was_heard_to_take_is_not_told_as_a_program_that_took_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "END_SECONDS", 0.1)

    def silent(container: Container) -> None:
        container.boot()
        container.stay()

    with held(silent) as worker, pytest.raises(IsolationUnavailable) as refusal:
        asyncio.run(worker.run(job(wall_seconds=0.1), None))
    assert refusal.value.reason == "engine_hung"
    assert "nothing was heard" in str(refusal.value)


def test_input_that_is_never_taken_keeps_to_its_window() -> None:
    def script(container: Container) -> None:
        container.start()
        taken = 0
        while taken < wire.WINDOW_BYTES:
            taken += len(container.until(Kind.STDIN))
        os.set_blocking(container.inlet, False)
        with pytest.raises(BlockingIOError):
            os.read(container.inlet, 1)
        container.say(Kind.EXIT, b"0 0 0 0 0 0 0")
        os.set_blocking(container.inlet, True)
        container.stay()

    with held(script) as worker:
        assert asyncio.run(worker.run(job(stdin=bytes(4 * MIB)), None)).exit_code == 0


# --- what it says its guest left ---

UP = [b"../up", b"a/../../up", b"/etc/cron.d/up", b".", b"..", b"a//b", b"a/", b"a\0b", b"n" * 256, b"d/" * 70 + b"x"]


def harvested(
    *words: bytes,
    limits: Limits | None = None,
    session: SessionWorkspace | None = None,
    keeping: Keeping = EVERYTHING,
) -> Harvest:
    """Return what the host makes of such a harvest."""

    def script(container: Container) -> None:
        if session is not None:
            container.take(len(bundle()))
            container.until(Kind.PLACED)
            container.say(Kind.PLACED, b"0")
            container.say(Kind.READY, json.dumps(HELLO).encode())
            container.until(Kind.START)
            container.say(Kind.STARTED)
            container.say(Kind.EXIT, b"0 0 0 0 0 0 1")
        else:
            container.finish()
        container.until(Kind.HARVEST)
        for data in words:
            container.write(data)
        container.stay()

    with held(script, session=session) as worker:
        asyncio.run(worker.run(job(), None))
        assert worker.left_files()
        return worker.harvest(limits or Limits(), keeping)


@pytest.fixture(scope="module", autouse=True)
def a_temporary_directory_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("scratch")))
        yield


def scratch() -> list[str]:
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("ringfence-harvest-")]


DONE = encode(Kind.HARVEST, b"1")


def word(path: bytes, kind: int = wire.FILE, **more: Any) -> bytes:
    return encode(Kind.ENTRY, entry(path, kind, **more))


@pytest.mark.guarantee(11)
@pytest.mark.parametrize("path", UP)
@pytest.mark.parametrize("kind", [wire.FILE, wire.DIRECTORY, wire.LINK])
def test_no_name_leads_out_of_the_harvest(path: bytes, kind: int) -> None:
    target = b"x" if kind == wire.LINK else b""
    for area in (wire.WORK, wire.ARTIFACTS):
        found = harvested(word(b"good", area=area), word(path, kind, area=area, target=target), DONE)
        assert (found.artifacts, found.files_written) == ((), ())
        assert "lost" in found.notes[0]


@pytest.mark.guarantee(11)
@pytest.mark.parametrize(
    "words",
    [
        (word(b"l", wire.LINK, target=b"/tmp"), word(b"l/x")),
        (word(b"l", wire.LINK, target=b"/etc/passwd"), word(b"l", size=1, flags=1), encode(Kind.PIECE, b"x")),
        (word(b"l", wire.LINK, target=b"a\0b"),),
        (word(b"f", wire.FIFO), word(b"f/x")),
        (word(b"a"), word(b"a")),
        (word(b"a"), word(b"a", wire.DIRECTORY)),
        (word(b"no/such/parent"),),
        (word(b"a", area=wire.INPUTS),),
        (encode(Kind.ENTRY, b""),),
        (encode(Kind.ENTRY, b"\0" * 24),),
        (encode(Kind.ENTRY, entry(b"a") + b"trailing"),),
        (encode(Kind.PIECE, b"x"),),
        (encode(Kind.GONE, b"a"),),
        (encode(Kind.EXIT, b"0 0 0 0 0 0 0"),),
        (encode(Kind.STDOUT, b"late"),),
        (encode(Kind.HARVEST, b"yes"),),
        (word(b"a", area=wire.ARTIFACTS, size=2, flags=1), encode(Kind.PIECE, b"xxx")),
        (word(b"a", area=wire.ARTIFACTS, size=2, flags=1), encode(Kind.PIECE, b"")),
        (word(b"a", area=wire.ARTIFACTS, size=2, flags=1), word(b"b")),
        (word(b"a", area=wire.ARTIFACTS, size=1 << 60, flags=1),),
        (word(b"a", size=2, flags=1), encode(Kind.PIECE, b"xx")),  # nobody asked for the contents of work
        (b"\xff\xff\xff\xff\x0e",),
    ],
)
def test_an_entry_that_cannot_be_loses_the_harvest_and_nothing_else(words: tuple[bytes, ...]) -> None:
    found = harvested(*words, DONE)
    assert (found.artifacts, found.files_written, found.changes.kept) == ((), (), False)
    assert "lost" in found.notes[0]
    assert found.notes[0].isprintable()
    assert scratch() == []


def test_a_file_that_is_only_said_to_be_large_is_named_and_takes_no_room() -> None:
    found = harvested(
        word(b"big", area=wire.ARTIFACTS, size=1 << 62),
        word(b"small", area=wire.ARTIFACTS, size=3),
        word(b"work", size=(1 << 64) - 1),
        DONE,
    )
    assert found.artifacts == ()
    assert found.changes.uncollected == (("big", "artifact_bytes"), ("small", "artifact_bytes"))
    assert found.files_written == ("work",)


def test_looking_for_secrets_in_what_is_only_said_to_be_large_costs_nothing() -> None:
    words = (word(b"%d" % number, size=1 << 62) for number in range(200))
    keeping = Keeping(masks=Masks({"TOKEN": b"a-long-enough-secret"}))
    assert len(harvested(*words, DONE, keeping=keeping).files_written) == 200


def test_modes_and_times_of_a_liar_give_nobody_any_right() -> None:
    found = harvested(
        word(b"s", area=wire.ARTIFACTS, mode=0o107777, size=1, flags=1, mtime_ns=-(1 << 63)),
        encode(Kind.PIECE, b"x"),
        word(b"d", wire.DIRECTORY, mode=0o7000, area=wire.ARTIFACTS),
        word(b"d/x", area=wire.ARTIFACTS, size=1, flags=1, mode=0, mtime_ns=(1 << 63) - 1),
        encode(Kind.PIECE, b"y"),
        DONE,
    )
    assert {artifact.path: artifact.content for artifact in found.artifacts} == {"s": b"x", "d/x": b"y"}


def test_more_entries_than_can_be_are_not_read_to_their_end() -> None:
    limits = Limits(artifact_count=10)
    found = harvested(*(word(b"%d" % number, area=wire.ARTIFACTS) for number in range(1000)), DONE, limits=limits)
    assert "lost" in found.notes[0]


def test_a_container_that_stops_in_the_middle_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harvesting, "SILENCE_SECONDS", 0.2)
    assert "did not send" in harvested(word(b"a", area=wire.ARTIFACTS, size=10, flags=1)).notes[0]


def test_a_container_that_sends_a_byte_now_and_then_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harvesting, "MOST_SECONDS", 0.3)

    def script(container: Container) -> None:
        container.finish()
        container.until(Kind.HARVEST)
        container.write(word(b"a", area=wire.ARTIFACTS, size=1 << 20, flags=1))
        while not container.killed.wait(0.01):
            container.say(Kind.PIECE, b"x")

    with held(script) as worker:
        asyncio.run(worker.run(job(), None))
        assert "did not send" in worker.harvest(Limits()).notes[0]


@pytest.mark.guarantee(11)
@pytest.mark.parametrize("path", [*UP, b"l/x", b"d", b"no/such"])
def test_no_name_that_is_said_to_be_gone_reaches_past_the_session(path: bytes, tmp_path: Path) -> None:
    with SessionWorkspace.create(tmp_path, "s") as kept:
        with kept.using():
            os.close(os.open("mine", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=kept.work_fd))
        session = SessionWorkspace.create(tmp_path, "s")
        told = [word(b"l", wire.LINK, target=b".."), word(b"d", wire.DIRECTORY), encode(Kind.GONE, path)]
        found = harvested(*told, DONE, session=session)
        assert not found.changes.kept
        assert os.listdir(kept.work_fd) == ["mine"]


KINDS = st.sampled_from([Kind.ENTRY, Kind.PIECE, Kind.GONE, Kind.HARVEST])
PATHS = st.sampled_from([b"a", b"a/b", b"d", b"d/x", b"l", b"l/x", b"..", b"d/../x", b"\xff"])
ENTRIES = st.builds(
    entry,
    PATHS,
    st.integers(0, 7),
    area=st.integers(0, 3),
    flags=st.integers(0, 3),
    size=st.integers(0, 5),
    target=st.sampled_from([b"", b"/etc", b".."]),
    mode=st.integers(0, 0o7777),
)
WORDS = st.lists(st.tuples(KINDS, st.one_of(ENTRIES, PATHS, st.binary(max_size=6))), max_size=12)


@settings(max_examples=60)
@given(WORDS)
def test_whatever_a_harvest_says_the_host_answers_with_a_harvest(words: list[tuple[Kind, bytes]]) -> None:
    found = harvested(*(encode(kind, payload) for kind, payload in words), DONE)
    assert all(note.isprintable() for note in found.notes)
    assert scratch() == []


@settings(max_examples=60)
@given(st.binary(max_size=200))
def test_whatever_a_container_says_a_run_ends(data: bytes) -> None:
    def script(container: Container) -> None:
        container.start()
        container.write(data)

    with held(script) as worker:
        ending = asyncio.run(worker.run(job(), None))
        assert ending.killed_by == "unknown"


# --- somebody stays with it ---


class Here:
    """Somebody who stays, and sends at once."""

    terminal: tuple[int, int] | None = None
    idle_seconds: float | None = None
    ports: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.controls: list[Controls] = []
        self.is_here = asyncio.Event()

    async def attach(self, controls: Controls) -> None:
        self.controls.append(controls)
        await controls.send(b"first")
        self.is_here.set()

    def hear(self, name: str, data: bytes) -> None:
        """Nothing is said."""


@pytest.mark.guarantee(24)
def test_a_container_cannot_make_somebody_who_sends_wait_forever() -> None:
    def script(container: Container) -> None:
        container.start()
        container.until(Kind.STDIN)
        container.say(Kind.TAKEN)
        container.say(Kind.EXIT, b"0 0 0 0 0 0 0")
        container.stay()

    here = Here()

    async def send_on(worker: StreamWorker) -> None:
        run = asyncio.ensure_future(worker.run(job(), None, None, here))
        await here.is_here.wait()
        sent = asyncio.gather(*(here.controls[0].send(bytes(1 << 16)) for _ in range(64)), return_exceptions=True)
        assert any(isinstance(error, RingfenceError) for error in await sent)
        await run

    with held(script) as worker:
        asyncio.run(send_on(worker))


class Connecting(Here):
    """Somebody who stays, and may connect to a port."""

    ports: tuple[int, ...] = (8000,)

    async def attach(self, controls: Controls) -> None:
        self.controls.append(controls)
        self.is_here.set()


FIRST = (1).to_bytes(4, "big")


def connected(script: Script) -> tuple[bytes, Ending]:
    """Connect to a port of such a container; return what came through, and how the run ended."""
    here = Connecting()

    async def connect(worker: StreamWorker) -> tuple[bytes, Ending]:
        run = asyncio.ensure_future(worker.run(job(), None, None, here))
        await here.is_here.wait()
        try:
            fd = await asyncio.to_thread(here.controls[0].connect, 8000)
        except RingfenceError:
            return b"", await run
        with socket.socket(fileno=fd) as end:
            end.settimeout(20)
            came = await asyncio.to_thread(lambda: b"".join(iter(lambda: end.recv(1 << 16), b"")))
        return came, await run

    with held(script) as worker:
        return asyncio.run(connect(worker))


@pytest.mark.guarantee(24)
@pytest.mark.parametrize(
    "lie",
    [
        encode(Kind.FLOW, b""),
        encode(Kind.FLOW, (7).to_bytes(4, "big") + b"x"),
        encode(Kind.ROOM, FIRST + b"1"),
        encode(Kind.ROOM, FIRST + b"9" * 5000),
        encode(Kind.ROOM, FIRST + b"-1"),
        encode(Kind.DIAL, (9).to_bytes(4, "big") + b"0"),
        encode(Kind.DIAL, FIRST + b"no"),
        encode(Kind.FLOW, FIRST + bytes(wire.ROOM_BYTES + 1)),
        encode(Kind.FLOW, FIRST) + encode(Kind.FLOW, FIRST + b"after its end"),
    ],
)
def test_a_container_that_lies_about_a_connection_is_ended(lie: bytes) -> None:
    def script(container: Container) -> None:
        container.start()
        assert container.until(Kind.DIAL) == FIRST + b"8000"
        container.say(Kind.DIAL, FIRST + b"0")
        container.write(lie)
        container.stay()

    came, ending = connected(script)
    assert len(came) <= wire.WINDOW_BYTES * 4  # what was passed on in time, and never more than is read
    assert ending.killed_by == "unknown"


class Early(Here):
    """Somebody who connects to a port before the container has its job."""

    ports: tuple[int, ...] = (8000,)

    async def attach(self, controls: Controls) -> None:
        self.connecting = asyncio.ensure_future(asyncio.to_thread(controls.connect, 8000))
        assert isinstance(controls, StreamControls)
        assert controls._ways is not None
        while not controls._ways._wanted and not controls._ways._asked:  # noqa: ASYNC110  a thread does it
            await asyncio.sleep(0)


@pytest.mark.guarantee(24)
def test_no_word_about_a_connection_comes_before_the_job() -> None:
    """Seen red: under load a container was told of a connection first, and never answered."""

    def script(container: Container) -> None:
        container.start()
        container.until(Kind.DIAL)
        container.say(Kind.DIAL, FIRST + b"0")
        container.say(Kind.EXIT, b"0 0 0 0 0 0 0")
        container.stay()

    async def connect(worker: StreamWorker) -> Ending:
        here = Early()

        async def begin() -> None:
            """Have the word to start held back until here."""

        ending = await worker.run(job(), None, begin, here)
        socket.socket(fileno=await here.connecting).close()
        return ending

    with held(script) as worker:
        assert asyncio.run(connect(worker)).exit_code == 0


@pytest.mark.guarantee(24)
def test_a_connection_ends_with_its_run_and_one_that_is_refused_is_none() -> None:
    def open_then_end(container: Container) -> None:
        container.start()
        container.until(Kind.DIAL)
        container.say(Kind.DIAL, FIRST + b"0")
        container.say(Kind.FLOW, FIRST + b"hello")
        container.until(Kind.ROOM)
        container.say(Kind.EXIT, b"0 0 0 0 0 0 0")
        container.stay()

    def refuse(container: Container) -> None:
        container.start()
        container.until(Kind.DIAL)
        container.say(Kind.DIAL, FIRST + b"111")
        container.say(Kind.EXIT, b"0 0 0 0 0 0 0")
        container.stay()

    assert (connected(open_then_end)[0], connected(refuse)[0]) == (b"hello", b"")


def test_a_worker_spec_is_all_a_container_is_told() -> None:
    heard: list[bytes] = []

    def script(container: Container) -> None:
        container.take(len(bundle()))
        heard.append(container.until(Kind.SETUP))
        container.say(Kind.READY, json.dumps(HELLO).encode())
        container.stay()

    os.environ["RINGFENCE_TEST_SECRET"] = "do not tell"
    try:
        with held(script, session=None):
            pass
    finally:
        del os.environ["RINGFENCE_TEST_SECRET"]
    assert b"do not tell" not in heard[0]
    assert str(Path.home()).encode() not in heard[0]
