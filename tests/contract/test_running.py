"""What every backend does with a job: the same streams, endings and surroundings."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import select
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ringfence.authority.levels import IsolationLevel
from ringfence.capability.limits import MIB, Limits
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.operation import Language
from ringfence.outcome import SandboxType
from ringfence.ports import Job, Worker, WorkerLost
from ringfence.risk.isolation import isolation_of

if TYPE_CHECKING:
    from tests.contract.conftest import Bench

NODE = pytest.mark.needs("node")


@pytest.mark.parametrize(
    ("language", "code"),
    [
        (Language.PYTHON, "import sys; print(40 + 2, *sys.argv[1:])"),
        (Language.BASH, 'echo $((40 + 2)) "$@"'),
        pytest.param(Language.JAVASCRIPT, "console.log(40 + 2, ...process.argv.slice(1))", marks=NODE),
        pytest.param(Language.TYPESCRIPT, "const n: number = 42; console.log(n, ...process.argv.slice(1))", marks=NODE),
    ],
)
async def test_every_language_runs(bench: Bench, language: Language, code: str) -> None:
    done = await bench.run(code, language, args=("a b", "c"))
    assert (done.stdout, done.stderr, done.ending.exit_code) == ("42 a b c\n", "", 0)
    assert done.ending.killed_by is None


def test_a_worker_is_sealed_and_seen_before_it_is_given_anything(bench: Bench) -> None:
    worker = bench.start()
    try:
        layers = worker.layers
        # a user namespace of its own is what an engine's operator may have chosen
        assert set(layers.namespaces) | {"user"} == {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"}
        assert isolation_of(worker.sandbox_type, layers) >= IsolationLevel.CONTAINER
        assert layers.no_new_privs
        if worker.sandbox_type is not SandboxType.GVISOR:  # what is seen there is its kernel, not the worker in it
            assert layers.capabilities_empty
            assert layers.seccomp_filters >= 2
        assert layers.host_uid > 0
        assert os.readlink(f"/proc/{worker.init_pid}/ns/pid") == os.readlink(f"/proc/{worker.worker_pid}/ns/pid")
    finally:
        worker.discard()


@pytest.mark.parametrize("size", [0, 1, 65_536, 8 * MIB])
async def test_standard_input_arrives_whole_and_ends(bench: Bench, size: int) -> None:
    data = os.urandom(size)
    code = "import sys, hashlib; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    done = await bench.run(code, stdin=data)
    assert done.stdout.strip() == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("code", ["print(1)", "import os; os.close(0); print(1)"])
async def test_input_nobody_reads_disturbs_neither_this_run_nor_the_next(bench: Bench, code: str) -> None:
    for _ in range(3):
        assert (await bench.run(code, stdin=bytes(4 * MIB))).stdout == "1\n"
        timed_out = await bench.run("while True: pass", stdin=bytes(4 * MIB), wall_seconds=0.05)
        assert timed_out.ending.killed_by == "wall_timeout"


@pytest.mark.parametrize("status", [0, 1, 7, 255])
@pytest.mark.parametrize("code", ["import sys; sys.exit({})", "import os; os._exit({})"])
async def test_an_exit_code_is_the_guests(bench: Bench, code: str, status: int) -> None:
    ending = (await bench.run(code.format(status))).ending
    assert (ending.exit_code, ending.signal, ending.killed_by) == (status, None, None)


async def test_an_exception_ends_like_that_of_python(bench: Bench) -> None:
    done = await bench.run("def f():\n    raise ValueError('boom')\nf()")
    assert done.ending.exit_code == 1
    assert done.stderr.splitlines() == [
        "Traceback (most recent call last):",
        '  File "<string>", line 3, in <module>',
        '  File "<string>", line 2, in f',
        "ValueError: boom",
    ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT, 40])
async def test_a_signal_the_guest_dies_of_is_reported(bench: Bench, number: int) -> None:
    ending = (await bench.run(f"import os; os.kill(os.getpid(), {int(number)})")).ending
    assert (ending.exit_code, ending.signal, ending.killed_by) == (None, int(number), None)


async def test_output_and_errors_are_kept_apart_and_each_in_order(bench: Bench) -> None:
    heard: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    code = "import sys\nfor i in range(2000):\n    print(i)\n    print(-i, file=sys.stderr)"
    done = await bench.run(code, on_output=lambda name, data: heard[name].extend(data))
    assert done.stdout == "".join(f"{i}\n" for i in range(2000))
    assert done.stderr == "".join(f"{-i}\n" for i in range(2000))
    assert {name: bytes(data) for name, data in heard.items()} == {
        "stdout": done.ending.stdout,
        "stderr": done.ending.stderr,
    }


async def test_output_is_heard_while_the_guest_still_runs(bench: Bench) -> None:
    worker = bench.start()
    heard = asyncio.Event()
    job = Job(Language.PYTHON, "print('now'); input()", (), {}, b"x", Limits())
    try:
        run = asyncio.ensure_future(worker.run(job, lambda *_: heard.set()))
        await heard.wait()
        await run
    finally:
        worker.discard()


async def test_of_output_beyond_the_cap_head_and_tail_are_kept_and_the_rest_is_counted(bench: Bench) -> None:
    code = "import sys; sys.stdout.write('o' * 300_000); sys.stderr.write('e' * 5)"
    ending = (await bench.run(code, stdout_bytes=1000, stderr_bytes=5)).ending
    assert ending.stdout == b"o" * 500 + "\n[… 299000 bytes left out …]\n".encode() + b"o" * 500
    assert (ending.stdout_bytes, ending.stdout_left_out, ending.stderr_left_out) == (300_000, 299_000, 0)
    assert (ending.stderr, ending.stderr_bytes) == (b"e" * 5, 5)
    assert ending.exit_code == 0


async def test_the_guest_finds_itself_in_its_workspace(bench: Bench) -> None:
    code = (
        "import os, json, getpass; print(json.dumps([os.getcwd(), os.getuid(), os.getgid(), os.uname().nodename,"
        " getpass.getuser(), os.path.expanduser('~'), dict(os.environ)]))"
    )
    done = await bench.run(code, env={"GREETING": "hello", "LANG": "C"})
    cwd, uid, gid, hostname, user, home, env = json.loads(done.stdout)
    assert (cwd, uid, gid, user, home) == ("/workspace/work", 1000, 1000, "sandbox", "/home/sandbox")
    assert hostname == done.worker.sandbox_id
    assert env["GREETING"] == "hello"
    assert env["LANG"] == "C"
    assert not env.keys() - {
        "GREETING", "HOME", "LANG", "LC_CTYPE", "LOGNAME", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
        "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE", "TMPDIR", "USER",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("alias", "meant"),
    [
        ("/output", "/workspace/artifacts"),
        ("/workspace/output", "/workspace/artifacts"),
        ("/workspace/code", "/workspace/work"),
        ("/workspace/data", "/workspace/work"),
        ("/var/tmp", "/tmp"),
    ],
)
async def test_other_layouts_names_lead_to_the_same_places(bench: Bench, alias: str, meant: str) -> None:
    code = f"open('{alias}/x', 'w').write('1'); print(open('{meant}/x').read())"
    assert (await bench.run(code)).stdout == "1\n"


async def test_a_worker_runs_one_job_and_no_other(bench: Bench) -> None:
    worker = bench.start()
    job = Job(Language.PYTHON, "print(1)", (), {}, b"", Limits())
    try:
        assert (await worker.run(job, None)).stdout == b"1\n"
        with pytest.raises((WorkerLost, OSError)):
            await worker.run(job, None)
    finally:
        worker.discard()


SAYS_SO = {
    Language.PYTHON: "print('ran')",
    Language.BASH: "echo ran",
    Language.JAVASCRIPT: "console.log('ran')",
}


@pytest.mark.parametrize(
    ("language", "filler"),
    [
        (Language.PYTHON, 0),
        (Language.PYTHON, 2_000_000),
        (Language.BASH, 0),
        pytest.param(Language.JAVASCRIPT, 0, marks=pytest.mark.needs("node")),
        pytest.param(Language.JAVASCRIPT, 2_000_000, marks=pytest.mark.needs("node")),
    ],
)
async def test_nothing_of_a_job_happens_before_its_beginning_is_written(
    bench: Bench, language: Language, filler: int
) -> None:
    worker = bench.start(Language.PYTHON if language is Language.BASH else language)
    heard: list[bytes] = []
    before: list[bytes] = []
    # larger than any channel takes at once, too
    job = Job(language, SAYS_SO[language] + " " * filler, (), {}, b"", Limits())

    async def begin() -> None:
        for _ in range(200):  # turns in which a guest that had started would be heard
            await asyncio.sleep(0.001)
        before.extend(heard)

    try:
        ending = await worker.run(job, lambda _, data: heard.append(data), begin)
    finally:
        worker.discard()
    assert before == []
    assert (ending.stdout, ending.exit_code) == (b"ran\n", 0)


async def test_a_text_is_read_without_anything_of_the_guests(bench: Bench) -> None:
    """What the interpreter imports to warn of a text must not be found among the files that came with it."""
    heard: list[bytes] = []
    planted = b"print('ran early', flush=True)"

    async def begin(worker: Worker) -> None:
        for _ in range(200):  # turns in which it would be heard
            await asyncio.sleep(0.001)

    done = await bench.run(
        "print(1 is 1)",
        files={f"{name}.py": planted for name in ("linecache", "tokenize", "tracemalloc", "unicodedata")},
        on_output=lambda _, data: heard.append(data),
        begin=begin,
        spec={"preload": ("warnings",)},
    )
    assert b"early" not in b"".join(heard)
    assert (done.stdout, "SyntaxWarning" in done.stderr) == ("True\n", True)


async def test_where_its_beginning_cannot_be_written_nothing_of_a_job_happens(bench: Bench) -> None:
    worker = bench.start()
    worker.place({}, {})
    job = Job(Language.PYTHON, "open('ran', 'w')", (), {}, b"", Limits())

    async def begin() -> None:
        raise Unavailable("the disk is full")

    try:
        with pytest.raises(Unavailable):
            await worker.run(job, None, begin)
        assert not worker.left_files()
    finally:
        worker.discard()


def until_gone(pid: int, most_ms: int | None = None) -> None:
    """Return when that process is dead, or after so long."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    gone = select.poll()
    gone.register(pidfd, select.POLLIN)
    gone.poll(most_ms)
    os.close(pidfd)


async def test_a_worker_that_died_while_parked_is_lost_and_not_the_guests_failure(bench: Bench) -> None:
    worker = bench.start()
    try:
        os.kill(worker.init_pid, signal.SIGKILL)
        until_gone(worker.init_pid)
        with pytest.raises(WorkerLost):
            await worker.run(Job(Language.PYTHON, "print(1)", (), {}, b"", Limits()), None)
    finally:
        worker.discard()


async def test_a_worker_that_dies_while_its_beginning_is_written_is_lost_and_not_the_guests_failure(
    bench: Bench,
) -> None:
    async def begin(worker: Worker) -> None:
        os.kill(worker.init_pid, signal.SIGKILL)
        await asyncio.to_thread(until_gone, worker.init_pid)

    with pytest.raises(WorkerLost):
        await bench.run("print(1)", begin=begin)


async def test_a_text_that_is_too_much_to_read_is_the_guests_failure_also_before_it_starts(bench: Bench) -> None:
    async def begin(worker: Worker) -> None:
        # where a text is read as soon as it is there, that is too much before this returns
        await asyncio.to_thread(until_gone, worker.worker_pid, most_ms=5000)

    done = await bench.run(f"[{'1,' * 1_900_000}]", begin=begin, memory_bytes=96 * MIB)
    # where no cgroup holds its memory, the interpreter finds out by itself
    assert (done.ending.killed_by, done.stderr) in (("memory", ""), (None, "MemoryError\n"))


async def test_modules_are_preloaded_only_where_asked_for(bench: Bench) -> None:
    code = "import sys; print('json.tool' in sys.modules, 'ringfence' in sys.modules)"
    assert (await bench.run(code)).stdout == "False False\n"
    assert (await bench.run(code, spec={"preload": ("json.tool",)})).stdout == "True False\n"


async def test_a_package_environment_is_shown_to_those_who_asked(bench: Bench, public: Path) -> None:
    (public / "sixpack.py").write_text("ANSWER = 6\n")
    code = "import sixpack, subprocess, sys; print(sixpack.ANSWER)"
    done = await bench.run(code, spec={"packages": str(public)})
    assert (done.stdout, done.stderr) == ("6\n", "")
    # and to the interpreters a guest starts itself
    child = await bench.run(
        'python -c "import sixpack; print(sixpack.ANSWER)"', Language.BASH, spec={"packages": str(public)}
    )
    assert child.stdout == "6\n"
    assert (await bench.run(code)).ending.exit_code == 1


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()", "starts threads"),
        ("raise SystemExit(3)", "importing troublesome failed: SystemExit: 3"),
        ("import no_such_module", "importing troublesome failed: ModuleNotFoundError"),
    ],
)
def test_a_preload_that_cannot_be_shared_is_a_wrong_request(bench: Bench, public: Path, module: str, said: str) -> None:
    (public / "troublesome.py").write_text(module)
    with pytest.raises(InvalidRequest, match=said) as refusal:
        bench.start(packages=str(public), preload=("troublesome",))
    assert refusal.value.reason == "preload_failed"
    bench.start().discard()


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that anybody can reach, which those below `tmp_path` are not."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)
