"""Attack: find what the host application has in its environment, its memory and its descriptors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.guarantee(10)

Application = Callable[[str], dict[str, Any]]

# The pattern does not match its own text, so a hit is the secret and not this program.
SEARCH = r"""
import glob, re
pattern = re.compile(rb'RFSECRET-[0-9a-f]{32}')
said['hits'] = []
for path in ['/proc/1/environ', *glob.glob('/proc/[0-9]*/environ'), *glob.glob('/proc/[0-9]*/cmdline')]:
    try:
        if pattern.search(open(path, 'rb').read()):
            said['hits'].append(path)
    except OSError:
        pass
if pattern.search(repr(dict(os.environ)).encode()):
    said['hits'].append('os.environ')
memory = os.open('/proc/self/mem', os.O_RDONLY)
for line in open('/proc/self/maps'):
    span, mode = line.split()[:2]
    start, end = (int(each, 16) for each in span.split('-'))
    if not mode.startswith('r') or '[v' in line:
        continue
    for at in range(start, end, 1 << 24):
        try:
            found = pattern.search(os.pread(memory, min(1 << 24, end - at), at))
        except OSError:
            continue
        if found:
            said['hits'].append('memory')
"""

DESCRIPTORS = """
import stat
said['open'] = []
said['kinds'] = []
for number in range(4096):
    try:
        mode = os.fstat(number).st_mode
    except OSError:
        continue
    said['open'].append(number)
    said['kinds'].append(stat.filemode(mode)[0])
    if attempt(os.fchdir, number) == 'done':
        said['entered'] = number
"""

HOST = """
import secrets
token = 'RFSECRET-' + secrets.token_hex(16)
os.environ['API_KEY'] = token
in_memory = [token + str(n) for n in range(1000)]
program = PRELUDE + {program!r} + EPILOGUE
inherited = [os.open('/', os.O_RDONLY), os.open('/etc/passwd', os.O_RDONLY)]
ends = socket.socketpair()
listener = socket.create_server(('127.0.0.1', 0))
for fd in (*inherited, *(each.fileno() for each in (*ends, listener))):
    os.set_inheritable(fd, True)
bare = subprocess.run([sys._base_executable, '-I', '-c', program, NUMBERS], close_fds=False, capture_output=True)
result = ringfence.run(program, args=[NUMBERS], isolation=backend)
assert result.exit_code == 0, result.stderr
answer = dict(bare=json.loads(bare.stdout), boxed=json.loads(result.stdout))
"""


def test_no_secret_of_the_application_is_in_any_environment_or_memory_of_the_box(application: Application) -> None:
    answer = application(HOST.format(program=SEARCH))
    assert "os.environ" in answer["bare"]["hits"]
    assert "memory" in answer["bare"]["hits"]
    assert answer["boxed"]["hits"] == []


def test_no_descriptor_of_the_application_is_open_in_the_box(application: Application) -> None:
    answer = application(HOST.format(program=DESCRIPTORS))
    assert len(answer["bare"]["open"]) >= 3 + 5
    assert "entered" in answer["bare"]
    assert answer["boxed"] == {"open": [0, 1, 2], "kinds": ["p", "p", "p"]}


def test_no_descriptor_is_open_in_a_bash_that_was_started_either(application: Application) -> None:
    program = "import os, subprocess\nsubprocess.run(['bash', '-c', 'cd /proc/$$/fd && echo *'], close_fds=False)"
    text = f"""
fd = os.open('/', os.O_RDONLY)
os.set_inheritable(fd, True)
answer = dict(
    bash=ringfence.run('echo /proc/$$/fd/*', language='bash', isolation=backend).stdout,
    child=ringfence.run({program!r}, isolation=backend).stdout,
)
"""
    answer = application(text)
    assert [path.rpartition("/")[2] for path in answer["bash"].split()] == ["0", "1", "2", "3"]  # 3 reads the directory
    assert answer["child"].split() == ["0", "1", "2", "3"]


@pytest.mark.needs("node")
def test_no_descriptor_and_no_environment_reaches_a_parked_node(application: Application) -> None:
    program = """
const fs = require('fs');
const open = [];
for (let fd = 0; fd < 64; fd++) try { open.push(fd + ' ' + fs.readlinkSync('/proc/self/fd/' + fd)); } catch {}
const ours = (line) => !/anon_inode|pipe:|\\/dev\\/null/.test(line);
console.log(JSON.stringify({ strange: open.filter(ours), environment: JSON.stringify(process.env) }));
"""
    text = f"""
os.environ['API_KEY'] = 'RFSECRET'
fd = os.open('/', os.O_RDONLY)
os.set_inheritable(fd, True)
answer = json.loads(ringfence.run({program!r}, language='javascript', isolation=backend).stdout)
"""
    answer = application(text)
    assert answer["strange"] == []
    assert "RFSECRET" not in answer["environment"]
