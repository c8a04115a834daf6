"""A parked Node is `node -e` for one job, and nothing after it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from ringfence.isolation.protocol import Decoder, Kind, encode
from ringfence.runtimes.node import BOOTSTRAP, find_node, require_node

pytestmark = pytest.mark.needs("node")


@dataclass(frozen=True)
class Done:
    code: int
    stdout: str
    stderr: str


class Parked:
    """A Node outside any box, parked the way a worker parks it: its channel on fd 3."""

    def __init__(self, cwd: Path, *, typescript: bool = False) -> None:
        runtime = require_node(typescript=typescript)
        _, *flags, _, language = runtime.argv(typescript=typescript)
        self.channel, theirs = socket.socketpair()
        # The shell puts the inherited socket where the bootstrap expects it.
        script = f'exec "$@" 3<&{theirs.fileno()} {theirs.fileno()}<&-'
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", script, "bash", runtime.path, *flags, BOOTSTRAP, language],
            cwd=cwd,
            env={"LAUNCHER": "kept"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self.decoder = Decoder()
        assert self.hear() == [(Kind.READY, b"")]

    def run(self, code: str, *, typescript: bool = False, args: tuple[str, ...] = (), stdin: bytes = b"") -> Done:
        env = {"GREETING": "hello", "PATH": "/usr/bin:/bin"}
        self.send(job(code, language="typescript" if typescript else "javascript", args=args, env=env))
        assert self.hear() == [(Kind.STARTED, b"")]
        return self.finish(stdin)

    def hear(self) -> list[tuple[Kind, bytes]]:
        """Wait for the next thing it says."""
        while not (said := self.decoder.feed(self.channel.recv(64))):
            pass
        return said

    def send(self, job: bytes) -> None:
        self.channel.sendall(encode(Kind.JOB, job) + encode(Kind.START))

    def finish(self, stdin: bytes = b"") -> Done:
        stdout, stderr = self.process.communicate(stdin)
        self.channel.close()
        return Done(self.process.returncode, stdout.decode(), stderr.decode())


def job(
    code: str, *, language: str = "javascript", args: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> bytes:
    return json.dumps({"language": language, "code": code, "args": args, "env": env or {}}).encode()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "module.mjs").write_text("export const answer = 42;")
    (tmp_path / "script.cjs").write_text("module.exports = 43;")
    (tmp_path / "typed.ts").write_text("export const typed: number = 44;")
    return tmp_path


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("console.log(1)", "1\n"),
        ("console.log(require('./script.cjs'), __filename, typeof module.exports)", "43 [eval] object\n"),
        ("import('./module.mjs').then((m) => console.log(m.answer))", "42\n"),
        ("import { answer } from './module.mjs'; import s from './script.cjs'; console.log(answer, s)", "42 43\n"),
        ("export const x = 1; console.log(import.meta.url.startsWith('file:///'))", "true\n"),
        ("console.log(await Promise.resolve(5))", "5\n"),
        ("for await (const x of [1, 2]) console.log(x)", "1\n2\n"),
        ("console.log(process.argv.slice(1).join(), process.argv[0] === process.execPath)", "a,b true\n"),
        ("console.log(process.env.GREETING, process.env.LAUNCHER)", "hello kept\n"),
        ("console.log(require.main, process.execArgv.length)", "undefined 0\n"),
        ("process.stdin.on('data', (d) => process.stdout.write(d))", "said\n"),
        (
            "process.nextTick(() => console.log(1)); Promise.resolve().then(() => console.log(2)); console.log(0)",
            "0\n1\n2\n",
        ),
        ("process.on('exit', (c) => console.log('bye', c)); setTimeout(() => console.log('late'), 1)", "late\nbye 0\n"),
        ("process.on('beforeExit', () => process.on('exit', () => console.log('last')))", "last\n"),
    ],
)
def test_javascript_runs_as_it_does_with_node_e(work: Path, code: str, output: str) -> None:
    assert Parked(work).run(code, args=("a", "b"), stdin=b"said\n") == Done(0, output, "")


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("throw new Error('boom')", 1, "Error: boom"),
        ("await 1; throw new Error('boom')", 1, "Error: boom"),
        ("Promise.reject(new Error('rejected'))", 1, "Error: rejected"),
        ("let = = 3", 1, "SyntaxError"),
        ("import 'no-such-package'", 1, "ERR_MODULE_NOT_FOUND"),
        ("process.exit(7)", 7, ""),
        ("process.exitCode = 9", 9, ""),
        ("export {}; process.exitCode = 9", 9, ""),
        ("process.on('exit', () => { process.exitCode = 5 })", 5, ""),
        ("await new Promise(() => {})", 13, ""),
        ("process.kill(process.pid, 'SIGKILL'); setTimeout(() => {}, 60000)", -9, ""),
    ],
)
def test_an_ending_is_the_guests_own(work: Path, code: str, status: int, said: str) -> None:
    done = Parked(work).run(code)
    assert done.code == status
    assert said in done.stderr


def test_output_before_an_exit_is_not_lost_in_the_pipe(work: Path) -> None:
    done = Parked(work).run(
        "process.stdout.write('x'.repeat(1e6)); process.stderr.write('y'.repeat(1e6)); process.exit(3)"
    )
    assert (done.code, len(done.stdout), len(done.stderr)) == (3, 1_000_000, 1_000_000)


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("const n: number = 3; console.log(n as unknown)", "3\n"),
        ("enum Colour { Red = 2 }; console.log(Colour.Red)", "2\n"),
        ("import { typed } from './typed.ts'; interface A { b: string }; console.log(typed)", "44\n"),
        ("const n: number = await Promise.resolve(6); console.log(n)", "6\n"),
    ],
)
def test_typescript_runs_without_a_compiler(work: Path, code: str, output: str) -> None:
    _skip_without_type_stripping()
    assert Parked(work, typescript=True).run(code, typescript=True) == Done(0, output, "")


def test_broken_typescript_is_the_guests_error(work: Path) -> None:
    _skip_without_type_stripping()
    done = Parked(work, typescript=True).run("const x: = 3", typescript=True)
    assert done.code == 1
    assert "ERR_INVALID_TYPESCRIPT_SYNTAX" in done.stderr


def test_the_channel_is_gone_before_the_guest_starts(work: Path) -> None:
    parked = Parked(work)
    parked.send(job(PROBE_CHANNEL))
    with suppress(BrokenPipeError):  # already closed, which is the point
        parked.send(job("console.log('second')"))
    assert parked.finish() == Done(0, "EBADF no socket\n", "")


PROBE_CHANNEL = """
const fs = require('fs');
let answer;
try { fs.readSync(3, Buffer.alloc(1)); answer = 'readable'; } catch (error) { answer = error.code; }
const sockets = fs.readdirSync('/proc/self/fd').filter((fd) => {
  try { return Number(fd) > 2 && fs.readlinkSync(`/proc/self/fd/${fd}`).startsWith('socket:'); } catch { return false; }
});
fs.writeSync(1, `${answer} ${sockets.length ? sockets : 'no socket'}\\n`);
"""


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\0\0",
        b"\0\0\0\x10\x02abc",
        b"\0\0\0\x04\x02abc",
        b"\xff\xff\xff\xff\x02",
        b"\0\0\0\0\x02",
        encode(Kind.STDIN, job("console.log('not a job')")),
    ],
)
def test_a_host_that_dies_or_speaks_nonsense_ends_the_worker_quietly(work: Path, sent: bytes) -> None:
    parked = Parked(work)
    parked.channel.sendall(sent)
    parked.channel.close()
    assert parked.finish() == Done(0, "", "")


def test_parking_touches_no_stream_of_the_guest(work: Path) -> None:
    parked = Parked(work)
    flags = [
        Path(f"/proc/{parked.process.pid}/fdinfo/{fd}").read_text().split("flags:")[1].split()[0] for fd in (0, 1, 2)
    ]
    assert [int(flag, 8) & os.O_NONBLOCK for flag in flags] == [0, 0, 0]
    parked.channel.close()
    assert parked.finish() == Done(0, "", "")


def _skip_without_type_stripping() -> None:
    runtime = find_node()
    if runtime is None or not runtime.strips_types:
        pytest.skip("this Node is good for javascript only")
