"""Attack: from inside a real container, the parts of the kernel that the profile for engines is there to close.

The same attempts are made without the profile first, so that a door which this kernel has not got proves nothing.
What people run in a sandbox must still run.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from tests import container_engine
from tests.security.conftest import EPILOGUE, NUMBERS, PRELUDE

from ringfence.isolation.linux.seccomp.container import PROFILE

pytestmark = [pytest.mark.guarantee(29), pytest.mark.needs("docker")]

DOORS = """
import mmap, subprocess
page = ctypes.create_string_buffer(4096)
child = subprocess.Popen(['sleep', '100'])
NEWUSER, NEWNS = 0x10000000, 0x20000
said['ptrace'] = call('ptrace', 16, child.pid, 0, 0)                      # PTRACE_ATTACH
local, remote = struct.pack('QQ', ctypes.addressof(page), 8), struct.pack('QQ', ctypes.addressof(page), 8)
said['process_vm_readv'] = call('process_vm_readv', os.getpid(), local, 1, remote, 1, 0)
said['process_vm_writev'] = call('process_vm_writev', os.getpid(), local, 1, remote, 1, 0)
said['mount'] = call('mount', b'x', b'/tmp', b'tmpfs', 0, 0)
said['fsopen'] = call('fsopen', b'tmpfs', 0)
said['unshare user'] = call('unshare', NEWUSER)
said['clone user'] = call('clone', NEWUSER | 17, 0, 0, 0, 0)
said['clone3'] = call('clone3', struct.pack('11Q', NEWUSER, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88)
said['setns'] = call('setns', os.open('/proc/self/ns/uts', os.O_RDONLY), 0)
said['keyctl'] = call('keyctl', 0, -3, 1)                                  # GET_KEYRING_ID of the session
said['add_key'] = call('add_key', b'user', b'note', b'x', 1, -3)
said['io_uring'] = call('io_uring_setup', 1, page)
said['bpf'] = call('bpf', 0, page, 72)
said['perf'] = call('perf_event_open', page, 0, -1, -1, 0)
said['userfaultfd'] = call('userfaultfd', 1)
said['vsock'] = call('socket', 40, 1, 0)
said['netlink'] = call('socket', 16, 3, 0)
said['alg'] = call('socket', 38, 5, 0)
said['sctp'] = call('socket', 2, 5, 0)
said['vsock, high bits'] = call('socket', 40 | 1 << 32, 1, 0)
said['TIOCSTI'] = call('ioctl', 0, 0x5412, page)
said['TIOCSTI, high bits'] = call('ioctl', 0, 0x5412 | 1 << 32, page)
said['personality'] = call('personality', 0x0040000)                       # ADDR_NO_RANDOMIZE
said['open_by_handle_at'] = call('open_by_handle_at', 0, page, 0)
said['filter on a socket'] = attempt(
    socket.socketpair()[0].setsockopt, 1, 26, struct.pack('HxxxxxxQ', 1, ctypes.addressof(page)))
said['new listener'] = call('seccomp', 1, 8, page)                         # SECCOMP_FILTER_FLAG_NEW_LISTENER
said['module'] = call('init_module', page, 1, b'')
child.kill()
"""
EPERM_OR_ABSENT = {"EPERM", "ENOSYS"}


def run(*words: str, profile: str | None = None, options: tuple[str, ...] = ()) -> Any:
    return container_engine.engine().docker(
        *("run", "--rm", "--network=none", "--cap-drop=ALL", "--read-only", "--tmpfs=/tmp:exec,mode=1777"),
        *(
            "--security-opt=no-new-privileges",
            f"--security-opt=seccomp={profile or PROFILE}",
            "--env=HOME=/tmp",
            *options,
        ),
        *(container_engine.sandbox_image(), *words),
    )


@cache
def answers(profile: str | None = None) -> dict[str, str]:
    done = run("python3", "-c", PRELUDE + DOORS + EPILOGUE, NUMBERS, profile=profile)
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = json.loads(done.stdout)
    return said


def test_without_the_profile_doors_stand_open() -> None:
    opened = {name for name, said in answers("unconfined").items() if said == "done"}
    assert {"ptrace", "process_vm_readv", "unshare user", "netlink", "personality"} <= opened


def test_with_it_every_door_is_shut() -> None:
    assert {name: said for name, said in answers().items() if said not in EPERM_OR_ABSENT} == {}


def test_looking_into_another_process_is_refused_with_eperm_and_not_as_unknown() -> None:
    said = answers()
    assert {said[name] for name in ("ptrace", "process_vm_readv", "process_vm_writev", "mount")} == {"EPERM"}


def test_a_process_of_the_container_says_that_it_is_filtered() -> None:
    assert "Seccomp:\t2" in run("cat", "/proc/self/status").stdout


def test_a_container_that_could_gain_privileges_does_not_start_under_it() -> None:
    """The engine would have to change identities under the filter, which no guest may."""
    engine, image = container_engine.engine(), container_engine.sandbox_image()
    done = engine.docker("run", "--rm", "--network=none", f"--security-opt=seccomp={PROFILE}", image, "true")
    assert done.returncode == 125
    assert "operation not permitted" in done.stderr


# --- what must run ---

THREADS = """
import concurrent.futures, multiprocessing, threading
with concurrent.futures.ThreadPoolExecutor(8) as pool: print(sum(pool.map(lambda n: n * n, range(100))))
if __name__ == '__main__':
    with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, -2]))
"""
SUBPROCESS = "import subprocess; print(subprocess.check_output('echo a | tr a b', shell=True, text=True), end='')"
ASYNCIO = """
import asyncio
async def main():
    server = await asyncio.start_unix_server(lambda r, w: (w.write(b'hi'), w.close()), '/tmp/s')
    reader, _ = await asyncio.open_unix_connection('/tmp/s')
    child = await asyncio.create_subprocess_exec('echo', 'child', stdout=asyncio.subprocess.PIPE)
    print(await reader.read(), (await child.communicate())[0], await asyncio.to_thread(abs, -3))
asyncio.run(main())
"""
STANDARD_LIBRARY = """
import ctypes, decimal, hashlib, mmap, os, secrets, select, shutil, signal, socket, sqlite3, tempfile, time
sqlite3.connect('/tmp/d').execute('create table t(a)'); os.posix_spawn('/bin/true', ['true'], {}); os.wait()
memory = mmap.mmap(-1, 4096); os.memfd_create('m'); os.eventfd(0); select.epoll()
socket.create_server(('127.0.0.1', 0)).close(); shutil.copytree('/etc/ssl/certs', '/tmp/copy')
time.sleep(0.001)
signal.setitimer(signal.ITIMER_REAL, 9); signal.setitimer(signal.ITIMER_REAL, 0); os.sched_getaffinity(0)
os.nice(1); print('all')
"""
NODE = """
const { Worker } = require('worker_threads'); const cp = require('child_process'); const fs = require('fs');
fs.promises.writeFile('/tmp/f', 'x').then(() => fs.promises.readFile('/tmp/f', 'utf8')).then(text => {
  const child = cp.execSync('echo child').toString().trim();
  new Worker('require("worker_threads").parentPort.postMessage(7)', { eval: true })
    .on('message', seven => console.log(text, child, seven, require('crypto').randomBytes(4).length));
});
"""
BASH = """
set -euo pipefail; cd /tmp; mkfifo p; (echo one >p &) ; read -r line <p; coproc cat; echo two >&"${COPROC[1]}"
read -r other <&"${COPROC[0]}"; echo "$line $other $(seq 3 | paste -sd+) $(find /etc -maxdepth 1 -name passwd)"
jq -r .a <<<'{"a": 4}'; kill "$COPROC_PID"
"""
PIP = """
set -e; mkdir -p /tmp/p/thing && cd /tmp/p && echo 'answer = 42' >thing/__init__.py
printf '[project]\\nname = "thing"\\nversion = "1"\\n' >pyproject.toml
printf '[build-system]\\nrequires = []\\nbuild-backend = "setuptools.build_meta"\\n' >>pyproject.toml
pip install -q --disable-pip-version-check --no-index --no-build-isolation --no-cache-dir --target /tmp/t /tmp/p
PYTHONPATH=/tmp/t python -c 'import thing; print(thing.answer)'
"""
NPM = """
set -e; mkdir /tmp/a /tmp/b; cd /tmp/a; echo '{"name": "a", "version": "1.0.0", "main": "i.js"}' >package.json
echo 'module.exports = 7' >i.js; npm pack --silent >/dev/null; cd /tmp/b; npm init -y >/dev/null
npm install --silent --offline ../a/a-1.0.0.tgz; node -e 'console.log(require("a"))'
"""
GIT = """
set -e; cd /tmp; git init -q r; cd r; git config user.email a@b; git config user.name a; echo x >f; git add f
git commit -qm one; git clone -q /tmp/r /tmp/c; git -C /tmp/c log --format=%s
"""
PROGRAMS = {
    "threads and processes": (("python", "-c", THREADS), "328350\n[1, 2]\n"),
    "subprocess": (("python", "-c", SUBPROCESS), "b\n"),
    "asyncio": (("python", "-c", ASYNCIO), "b'hi' b'child\\n' 3\n"),
    "the standard library": (("python", "-c", STANDARD_LIBRARY), "all\n"),
    "node": (("node", "-e", NODE), "x child 7 4\n"),
    "bash": (("bash", "-c", BASH), "one two 1+2+3 /etc/passwd\n4\n"),
    "pip": (("bash", "-c", PIP), "42\n"),
    "npm": (("bash", "-c", NPM), "7\n"),
    "git": (("bash", "-c", GIT), "one\n"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_people_run_runs(name: str) -> None:
    words, expected = PROGRAMS[name]
    done = run(*words)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


C = """
#include <pthread.h>
#include <stdio.h>
static void *work(void *_) { return (void *)41; }
int main() { pthread_t t; void *r; pthread_create(&t, 0, work, 0); pthread_join(t, &r); printf("%ld\\n", (long)r + 1); }
"""


@pytest.mark.needs("gcc")
def test_a_compiler_compiles_and_what_it_made_runs() -> None:
    """The host's compiler, over the image's own: everything it needs is below /usr."""
    script = 'printf "%s" "$1" >/tmp/a.c && gcc -O2 -pthread -o /tmp/a /tmp/a.c && /tmp/a'
    done = run("bash", "-c", script, "-", C, options=("--volume=/usr:/usr:ro", "--entrypoint="))
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
