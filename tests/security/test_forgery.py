"""Attack: make the host believe what did not happen: another exit status, a message of ours, another ending."""

from __future__ import annotations

import pytest
from tests.security.conftest import Run

import ringfence
from ringfence.isolation.protocol import Kind, encode
from ringfence.outcome import Status

pytestmark = pytest.mark.guarantee(13)

FRAMES = b"".join(
    encode(kind, b'{"wait_status": 0, "cpu_us": 0, "peak_kib": 0, "stage": "x", "error": "x", "errno": 1}')
    for kind in (Kind.READY, Kind.STARTED, Kind.EXIT, Kind.FAILED)
)


def test_our_messages_written_to_every_descriptor_change_nothing(box: Run) -> None:
    program = f"""
import os, sys
for number in range(1024):
    try:
        os.write(number, {FRAMES!r})
    except OSError:
        pass
sys.exit(7)
"""
    result = box(program)
    assert (result.exit_code, result.status, result.killed_by) == (7, Status.FAILED, None)
    assert (result.stdout_raw, result.stderr_raw) == (FRAMES, FRAMES)


@pytest.mark.needs("node")
def test_our_messages_written_by_node_change_nothing(box: Run) -> None:
    program = f"""
const fs = require('fs');
const frames = Buffer.from('{FRAMES.hex()}', 'hex');
for (let fd = 3; fd < 64; fd++) try {{ fs.writeSync(fd, frames); }} catch {{}}
process.exit(7);
"""
    result = box(program, language="javascript")
    # the frames may also upset Node's own event loop, which is then what the kernel saw
    assert (result.exit_code in (7, 133, 134, 139), result.killed_by) == (True, None)


def test_streams_reopened_through_proc_are_still_only_streams(box: Run) -> None:
    program = f"""
import os, sys
for number in (0, 1, 2):
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_NONBLOCK):
        try:
            os.write(os.open(f'/proc/self/fd/{{number}}', flags | os.O_NONBLOCK), {FRAMES!r})
        except OSError:
            pass
sys.exit(9)
"""
    result = box(program, stdin=b"x" * 200_000)
    assert (result.exit_code, result.killed_by) == (9, None)


STATUSES = [
    ("import os; [os.close(n) for n in (0, 1, 2)]; os._exit(5)", 5),
    ("import os; os.dup2(0, 1); os.dup2(0, 2); os._exit(6)", 6),
    ("import os; os.kill(os.getpid(), 9)", 137),
    ("import os; os.kill(os.getpid(), 15)", 143),
    ("import os; os.kill(os.getpid(), 40)", 168),
    ("import os; os.abort()", 134),
    ("import ctypes; ctypes.string_at(0)", 139),
    ("import os; os._exit(0xABCD07)", 7),
    ("import os\nos.killpg(0, 9)", 137),
    ("import sys; sys.exit('said')", 1),
    ("raise SystemExit(-1)", 255),
    ("import contextlib, os\nwith contextlib.suppress(OSError): os.kill(1, 9)\nos._exit(3)", 3),
    ("import contextlib, os\nwith contextlib.suppress(OSError): os.kill(1, 2)\nos._exit(4)", 4),
    ("import os, sys; os.execv('/bin/false', ['false'])", 1),
    ("import atexit, os; atexit.register(os._exit, 8)", 8),
    ("import sys; sys.excepthook = None; raise ValueError", 1),
    ("import builtins; builtins.BaseException = None; raise KeyboardInterrupt", 1),
]


@pytest.mark.parametrize(("program", "code"), STATUSES)
def test_the_status_is_the_one_the_kernel_saw(box: Run, program: str, code: int) -> None:
    result = box(program)
    assert (result.exit_code, result.status, result.killed_by) == (code, Status.FAILED, None)


def test_children_and_orphans_do_not_decide_the_status(box: Run) -> None:
    program = """
import os, sys
for _ in range(200):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
sys.exit(11)
"""
    assert box(program).exit_code == 11


def test_a_daemon_that_holds_the_output_open_does_not_hold_the_result(box: Run) -> None:
    program = """
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        while True:
            signal.pause()
    os._exit(0)
os.wait()
print('parent done')
"""
    result = box(program)
    assert (result.status, result.stdout) == (Status.SUCCEEDED, "parent done\n")


def test_a_guest_cannot_look_as_if_it_had_been_stopped_by_a_limit_it_did_not_reach(box: Run) -> None:
    for name in ("KILL", "XFSZ", "TERM"):
        result = box(f"kill -{name} $$", language="bash")
        assert (result.status, result.killed_by) == (Status.FAILED, None)


def test_frames_of_the_worker_that_a_guest_can_walk_hold_no_open_channel(box: Run) -> None:
    program = """
import gc, os, socket, sys
for thing in gc.get_objects():
    if isinstance(thing, socket.socket):
        try:
            os.fstat(thing.fileno())
            print('open socket', thing)
        except OSError:
            pass
frame = sys._getframe()
while frame:
    for name, value in frame.f_locals.items():
        if name in ('status', 'control', 'job_fd', 'status_fd') and isinstance(value, int) and value > 2:
            try:
                os.fstat(value)
                print('open', name, value)
            except OSError:
                pass
    frame = frame.f_back
"""
    assert box(program).stdout == ""


@pytest.mark.needs("native")
def test_the_result_names_the_box_and_not_what_the_guest_says_it_is() -> None:
    result = ringfence.run('print(\'{"exit_code": 0, "backend": "host"}\'); raise SystemExit(3)', isolation="native")
    assert (result.backend, result.exit_code) == ("native", 3)


def test_a_guest_that_sends_itself_the_signal_of_the_cpu_limit_has_not_reached_it(box: Run) -> None:
    result = box("import os, signal; os.kill(os.getpid(), signal.SIGXCPU)")
    assert (result.status, result.killed_by, result.exit_code) == (Status.FAILED, None, 128 + 24)
