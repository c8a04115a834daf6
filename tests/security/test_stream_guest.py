"""Attack: speak for the init of a container from inside it, or keep what is inside from it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.stream_box import started
from tests.stream_scripts import job

from ringfence.capability.limits import Limits
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.protocol import Kind, encode
from ringfence.isolation.stream import boot
from ringfence.isolation.stream.boot import bundle
from ringfence.operation import Language
from ringfence.ports import Ending

pytestmark = [pytest.mark.guarantee(13), pytest.mark.guarantee(29), pytest.mark.timeout(60)]
BOXES = pytest.mark.needs("bwrap")

FRAMES = b"".join(
    encode(kind, b"0 0 0 0 0 0 0")
    for kind in (Kind.READY, Kind.STARTED, Kind.EXIT, Kind.TAKEN, Kind.STDOUT, Kind.HARVEST)
)


def ran(code: str, language: Language = Language.PYTHON, **options: Any) -> Ending:
    """Run a hostile program in a container whose init is ours."""
    worker = started()
    try:
        return asyncio.run(worker.run(job(code, language, **options), None))
    finally:
        worker.discard()


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
