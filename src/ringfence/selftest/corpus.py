"""The probes that ship: each is short, works in any box with Python, and bites where there is none."""

from __future__ import annotations

from typing import Final

from ringfence.selftest.doors import DOORS
from ringfence.selftest.probe import Probe

_MIB: Final = 1 << 20

_FILES: Final = (
    Probe(
        "host_file",
        1,
        "read a file of the host, by its path and through /proc",
        """
ways = ['', '/proc/self/root', '/proc/1/root', '/proc/%d/root' % given['pid'], '/proc/%d/cwd' % given['pid'],
        '/../../../../../../../..']
for way in ways:
    try:
        if given['secret'] in open(way + given['secret_path']).read():
            got.append('read through ' + (way or 'its path'))
    except OSError:
        pass
""",
    ),
    Probe(
        "host_file_by_descriptor",
        1,
        "find a directory of the host among the open descriptors",
        """
relative = given['secret_path'].lstrip('/')
os.open('/', os.O_RDONLY)
for number in range(256):
    for way in (relative, '../' * 16 + relative):
        try:
            found = os.open(way, os.O_RDONLY, dir_fd=number)
        except OSError:
            continue
        if given['secret'].encode() in os.read(found, 4096):
            got.append('descriptor %d leads to the host' % number)
""",
    ),
    Probe(
        "host_write",
        2,
        "make a file in a directory of the host that anybody may write to",
        """
for way in ('', '/proc/self/root', '/proc/1/root'):
    try:
        open(way + given['directory'] + '/left-by-probe', 'w').close()
    except OSError:
        pass
""",
    ),
    Probe(
        "environment",
        10,
        "find a secret of the application in the environment of any process",
        """
if given['secret'] in repr(dict(os.environ)):
    got.append('it is in its own environment')
for entry in os.listdir('/proc'):
    if entry.isdecimal() and int(entry) != os.getpid():
        try:
            if given['secret'].encode() in open('/proc/' + entry + '/environ', 'rb').read():
                got.append('it is in that of process ' + entry)
        except OSError:
            pass
""",
    ),
    Probe(
        "links_to_collect",
        11,
        "have the host read its own secret by collecting a link among the artifacts",
        """
os.makedirs('../artifacts', exist_ok=True)
os.symlink(given['secret_path'], '../artifacts/link')
os.symlink(given['directory'], '../artifacts/directory')
os.mkfifo('../artifacts/fifo')
try:
    with open('../artifacts/holes', 'wb') as holes:
        holes.truncate(1 << 40)
except OSError:
    pass
""",
    ),
    Probe(
        "next_run",
        9,
        "leave something behind that the next run finds",
        """
for place in ('/tmp', '/dev/shm', '/var/tmp', '/run', '.', '..', os.environ.get('HOME', '/')):
    try:
        open(place + '/left-for-the-next', 'w').write(given['secret'])
    except OSError:
        pass
""",
        again="""
for place in ('/tmp', '/dev/shm', '/var/tmp', '/run', '.', '..', os.environ.get('HOME', '/')):
    try:
        if open(place + '/left-for-the-next').read() == given['secret']:
            got.append('found it in ' + place)
            os.unlink(place + '/left-for-the-next')
    except OSError:
        pass
""",
    ),
)

_BOUNDS: Final = (
    Probe(
        "memory",
        7,
        "use more memory than it was given",
        """
held = bytearray(512 << 20)
for at in range(0, len(held), 4096):
    held[at] = 1
got.append('512 MiB of 96')
""",
        limits={"memory_bytes": 96 * _MIB},
    ),
    Probe(
        "processes",
        7,
        "have more processes than it was given",
        """
children = []
try:
    for _ in range(120):
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        children.append(pid)
except OSError:
    pass
if len(children) >= 120:
    got.append('%d processes of 40' % len(children))
for pid in children:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
""",
        limits={"pids": 40},
    ),
    Probe(
        "disk",
        7,
        "write more bytes to its disk than it was given",
        """
written = 0
try:
    with open('filler', 'wb') as filler:
        for _ in range(64):
            filler.write(b'x' * (1 << 20))
            filler.flush()
            written += 1
except OSError:
    pass
if written >= 64:
    got.append('64 MiB of 8')
try:
    os.unlink('filler')
except OSError:
    pass
""",
        limits={"disk_bytes": 8 * _MIB},
    ),
    Probe(
        "inodes",
        7,
        "make more files than it was given",
        """
made = 0
try:
    os.mkdir('many')
    for number in range(4000):
        os.close(os.open('many/%d' % number, os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError:
    pass
if made >= 4000:
    got.append('4000 files of 1000')
for number in range(made):
    os.unlink('many/%d' % number)
""",
        limits={"inodes": 1000},
    ),
    Probe(
        "time",
        7,
        "go on after its time is over",
        """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
end = time.monotonic() + 8
while time.monotonic() < end:
    pass
got.append('8 seconds of 1')
""",
        limits={"wall_seconds": 1.0},
    ),
    Probe(
        "output",
        7,
        "have the host keep all of an endless output",
        "for _ in range(64):\n    sys.stdout.write('x' * 65536)\n",
        limits={"stdout_bytes": 65536},
        most_output=70_000,
    ),
    Probe(
        "left_running",
        8,
        "leave a process behind that outlives its run",
        """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        null = os.open('/dev/null', os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(120)', given['secret']])
    os._exit(0)
os.wait()
time.sleep(0.2)
""",
    ),
    Probe(
        "forged_end",
        13,
        "have its end told as another than it was",
        """
tell()
for number in {*range(3, 256), *map(int, os.listdir('/proc/self/fd'))} - {0, 1, 2}:
    for words in (b'EXIT 0\\n', struct.pack('>IB', 1, 5) + b'0', b'{"exit_code": 0}\\n'):
        try:
            os.write(number, words)
        except OSError:
            pass
sys.stdout.flush()
os._exit(41)
""",
        exits_with=41,
    ),
)

CORPUS: Final = (*_FILES, *DOORS, *_BOUNDS)
