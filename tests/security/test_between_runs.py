"""Attack: leave something for the next run, or watch what the host and other runs are doing."""

from __future__ import annotations

import subprocess
import threading

import pytest
from tests.security.conftest import PRELUDE, Ask, Run

import ringfence

pytestmark = pytest.mark.guarantee(9)

LEAVE = """
import builtins, random
for place in ('/tmp', '/dev/shm', '/var/tmp', '/home/sandbox', '/workspace/work', '/workspace/artifacts', '/run', '/'):
    said['write ' + place] = attempt(lambda: open(place + '/left-behind', 'w').write('x'))
said['shm'] = libc.shmget(0x5246, 4096, 0o1666) >= 0
said['sem'] = libc.semget(0x5246, 1, 0o1666) >= 0
said['msg'] = libc.msgget(0x5246, 0o1666) >= 0
held = socket.socket(socket.AF_UNIX)
held.bind('\\0left-behind')
held.listen()
server = socket.create_server(('127.0.0.1', 4321))
os.environ['LEFT_BEHIND'] = 'x'
builtins.left_behind = True
sys.modules['json'].left_behind = True
random.seed(1)
said['mq'] = 'done' if libc.mq_open(b'/left-behind', 0o102, 0o600, None) >= 0 else errno.errorcode[ctypes.get_errno()]
"""

LOOK = """
import builtins
for place in ('/tmp', '/dev/shm', '/var/tmp', '/home/sandbox', '/workspace/work', '/workspace/artifacts', '/run', '/'):
    if 'left-behind' in os.listdir(place):
        said[place] = 'seen'
for name in ('shmget', 'semget', 'msgget'):
    arguments = (0x5246, 1, 0) if name != 'msgget' else (0x5246, 0)
    if getattr(libc, name)(*arguments) >= 0:
        said[name] = 'seen'
if attempt(socket.socket(socket.AF_UNIX).connect, '\\0left-behind') == 'done':
    said['abstract socket'] = 'seen'
if attempt(socket.socket().connect, ('127.0.0.1', 4321)) == 'done':
    said['loopback'] = 'seen'
if 'LEFT_BEHIND' in os.environ or hasattr(builtins, 'left_behind') or hasattr(json, 'left_behind'):
    said['interpreter'] = 'seen'
"""

WAIT = "print('ready', flush=True)\nimport signal\nsignal.pause()\n"


def can_leave_system_v_objects(box: Run) -> bool:
    """Whether a guest must be able to: where no cgroup counts their memory it may not have any."""
    return box("pass").isolation.memory_limit == "cgroup"


def test_nothing_that_a_run_left_is_there_in_the_next(ask: Ask, box: Run) -> None:
    left = ask(LEAVE)
    assert left["write /tmp"] == "done"
    assert (left["sem"] and left["msg"]) or not can_leave_system_v_objects(box)
    assert ask(LOOK) == {}


def test_in_one_box_the_same_looks_find_what_was_left(ask: Ask, box: Run) -> None:
    seen = set(ask(LEAVE + LOOK))
    assert {"/tmp", "abstract socket", "loopback", "interpreter"} <= seen
    assert {"semget", "msgget"} <= seen or not can_leave_system_v_objects(box)


def test_nothing_of_a_run_is_there_in_one_beside_it(ask: Ask, box: Run) -> None:
    ready = threading.Event()
    prelude = "import sys; sys.argv.append('{}')\n"
    beside = threading.Thread(
        target=box,
        args=(prelude + PRELUDE + LEAVE + WAIT,),
        kwargs={"timeout": 1.5, "on_output": lambda *_: ready.set()},
    )
    beside.start()
    assert ready.wait(20)
    assert ask(LOOK) == {}
    beside.join()


def test_every_run_has_numbers_and_names_of_its_own(box: Run) -> None:
    program = "import os, random, secrets, uuid; print(random.random(), uuid.uuid4(), os.uname().nodename)"
    seen = [box(program).stdout.split() for _ in range(5)]
    for each in zip(*seen, strict=True):
        assert len(set(each)) == 5


def test_process_numbers_do_not_count_the_runs_of_others(backend: str, box: Run) -> None:
    program = "import os; print(os.getpid(), os.readlink('/proc/self'), os.fork() or os._exit(0))"
    seen = {box(program).stdout for _ in range(4)}
    if backend == "docker":  # what starts a container has threads, now more and now fewer, that count before its guest
        assert all(int(number) < 20 for line in seen for number in line.split())
        return
    assert len(seen) == 1
    assert seen <= {"2 2 3\n", "2 2 4\n"}  # natively the third is the anchor


WATCH_INOTIFY = """
import select
fd = libc.inotify_init1(0)
said['watch'] = 'none' if fd < 0 else 'set' if libc.inotify_add_watch(fd, b'/usr/bin', 0x20) >= 0 else 'refused'
while fd >= 0 and not said.get('told') and select.select([fd], [], [], 3)[0]:
    said['told'] = b'true' in os.read(fd, 65536)  # others on this machine start programs too
"""
WATCH_DIRECTORY = """
import fcntl
signal.signal(signal.SIGIO, signal.SIG_IGN)
said['watch'] = attempt(fcntl.fcntl, os.open('/usr/bin', os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS)
"""


def test_a_guest_cannot_watch_what_the_host_opens_in_a_tree_they_share(ask: Ask, unboxed: Ask) -> None:
    busy = subprocess.Popen(["/bin/sh", "-c", "while :; do /usr/bin/true; done"])
    try:
        assert unboxed(WATCH_INOTIFY) == {"watch": "set", "told": True}
    finally:
        busy.kill()
        busy.wait()
    assert ask(WATCH_INOTIFY) == {"watch": "none"}


def test_the_older_watches_and_leases_are_refused_too(ask: Ask, unboxed: Ask) -> None:
    assert unboxed(WATCH_DIRECTORY)["watch"] == "done"
    assert ask(WATCH_DIRECTORY)["watch"] == "EPERM"
    program = (
        "import fcntl\nsaid['lease'] = attempt(fcntl.fcntl, os.open('/usr/bin/env', os.O_RDONLY), fcntl.F_SETLEASE, 0)"
    )
    assert ask(program) == {"lease": "EPERM"}


def test_the_page_cache_and_keyrings_tell_nothing(ask: Ask) -> None:
    program = """
file = os.open('/usr/bin/env', os.O_RDONLY)
said['cachestat'] = call('cachestat', file, bytes(16), bytes(64), 0)
said['keyring'] = call('keyctl', 11, -4, 0, 0)
said['fanotify'] = call('fanotify_init', 0x200, 0)
"""
    assert set(ask(program).values()) <= {"EPERM", "ENOSYS"}


@pytest.mark.needs("native")
def test_a_session_sees_its_own_files_and_no_other_session_does(tmp_path: object) -> None:
    home = str(tmp_path)
    one = {"isolation": "native", "home": home, "session_id": "one"}
    assert ringfence.run("open('kept', 'w').write('1')", **one).success  # type: ignore[arg-type]
    assert ringfence.run("print(open('kept').read())", **one).stdout == "1\n"  # type: ignore[arg-type]
    other = ringfence.run("import os; print(os.listdir('.'))", isolation="native", home=home, session_id="two")
    assert other.stdout == "[]\n"
