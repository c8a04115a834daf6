"""The command beside a running service: it goes through it, and nobody who reads its answer can tell."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import service_process
from tests.command_line import COMMAND, PATIENCE_SECONDS, surroundings
from tests.service_process import ServiceProcess

pytestmark = [pytest.mark.needs("native"), pytest.mark.timeout(180)]
SHORT = """
policies:
  default:
    max_execution_time: 3s
"""
LONGER = ("--timeout", "4", "-c", "print(1)")
OF_THIS_RUN = frozenset(
    {"exec_id", "evidence_id", "sandbox_id", "elapsed_ms", "cpu_ms", "memory_peak_bytes", "used", "isolation"}
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with service_process.running(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service that lets nobody run for longer than three seconds, so that one can tell whether it was asked."""
    home = tmp_path_factory.mktemp("strict")
    policy = home / "policy.yaml"
    policy.write_text(SHORT)
    with service_process.running(home, "--policy", str(policy)) as running:
        yield running


def command(home: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(
        [*COMMAND, *words],
        env=surroundings(home, PYTHONPATH=service_process.SOURCE),
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        **options,
    )


LINES = {
    "output": ("run", "-c", r"import os; os.write(1, b'\x00\xff'); os.write(2, b'\xfe')"),
    "a failure": ("run", "-c", "raise SystemExit(7)"),
    "its own exit code": ("run", "--passthrough", "-c", "raise SystemExit(7)"),
    "arguments": ("run", "-c", "import sys; print(sys.argv[1:])", "--", "a", "--json"),
    "a time limit": ("run", "--timeout", "1", "-c", "print('partial', flush=True)\nwhile True: pass"),
    "a memory limit": ("run", "--memory", "64", "-c", "x = bytearray(10**9)"),
    "environment": ("run", "--env", "A=b c", "-c", "import os; print(os.environ['A'])"),
    "a shell": ("shell", "--", "echo", "$HOME", ";", "ls"),
    "a shell that fails": ("shell", "--", "exit 4"),
    "a limit beyond the ceiling": ("run", "--timeout", "999999", "-c", "1"),
    "a variable that is none": ("run", "--env", "A-B=c", "-c", "1"),
    "a project that is none": ("run", "--project", "../x", "-c", "1"),
    "much output": ("run", "-c", "for i in range(100_000): print(i)"),
    "a signal": ("run", "-c", "import os; os.kill(os.getpid(), 9)"),
    "a usage error": ("run",),
    "a dry run": ("run", "--project", "dry", "--dry-run", "-c", "open('new.txt', 'w').write('n')"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_person_sees_the_same(service: ServiceProcess, tmp_path: Path, name: str) -> None:
    through, beside = command(service.home, *LINES[name]), command(tmp_path, *LINES[name])
    assert (through.returncode, through.stdout, through.stderr) == (beside.returncode, beside.stdout, beside.stderr)


@pytest.mark.parametrize("name", LINES)
def test_a_script_reads_the_same(service: ServiceProcess, tmp_path: Path, name: str) -> None:
    first, *rest = LINES[name]
    through, beside = (command(home, first, "--json", *rest) for home in (service.home, tmp_path))
    assert (through.returncode, through.stderr) == (beside.returncode, beside.stderr)
    assert _shared(through.stdout) == _shared(beside.stdout)


def _shared(line: bytes) -> dict[str, Any]:
    form = {name: value for name, value in json.loads(line).items() if name not in OF_THIS_RUN}
    form.get("details", {}).pop("evidence_id", None)
    if form.get("pending"):
        form["pending"]["exec_id"] = ""
    if form.get("kept_in"):
        form["kept_in"], form["out"]["handle"] = "", form["out"]["handle"].replace(form["kept_in"], "")
    return form


def test_a_person_sees_the_head_and_the_tail_of_what_was_too_much_to_keep(service: ServiceProcess) -> None:
    """A service keeps a bounded part for whoever reads more slowly than a guest writes, and says what is missing."""
    done = command(service.home, "run", "-c", "print('a' * 3_000_000 + 'z')")
    assert done.returncode == 0
    assert (done.stdout[:1], done.stdout[-2:]) == (b"a", b"z\n")
    assert len(done.stdout) == 3_000_002 or b" bytes " in done.stdout


def test_what_goes_in_and_comes_out_is_the_same(service: ServiceProcess, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("from the host")
    code = "import sys; open('/workspace/artifacts/out', 'w').write(open('/workspace/inputs/in.txt').read() + input())"
    kept = tmp_path / "kept"
    done = command(
        service.home,
        "run",
        "--input",
        str(tmp_path / "in.txt"),
        "--artifacts",
        str(kept),
        "-c",
        code,
        input=b" and in\n",
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert (kept / "out").read_text() == "from the host and in"


def test_it_is_the_service_that_runs_it(strict: ServiceProcess) -> None:
    done = command(strict.home, "run", *LONGER)
    assert done.returncode == 2
    assert b" limit_exceeds_ceiling: " in done.stderr
    assert command(strict.home, "run", "-c", "print(1)").stdout == b"1\n"


@pytest.mark.parametrize(
    "words",
    [("--isolation", "native"), ("--security", "permissive"), ("--role", "nobody"), ("--policy",), ("--home",)],
    ids=lambda words: words[0],
)
def test_what_the_service_could_not_honour_runs_in_an_engine_of_its_own(
    strict: ServiceProcess, tmp_path: Path, words: tuple[str, ...]
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies:\n  agent_roles:\n    nobody:\n      inherits: default\n      tools: [code_run]\n")
    given = {"--policy": str(policy), "--home": str(tmp_path / "home")}
    more = [*words, given[words[0]]] if words[0] in given else list(words)
    if words[0] == "--role":
        more += ["--policy", str(policy)]
    done = command(strict.home, "run", *more, *LONGER)
    assert (done.returncode, done.stdout) == (0, b"1\n"), done.stderr


def test_an_environment_that_names_another_database_is_not_ignored(strict: ServiceProcess) -> None:
    done = subprocess.run(
        [*COMMAND, "run", *LONGER],
        env=surroundings(
            strict.home, PYTHONPATH=service_process.SOURCE, RINGFENCE_DATABASE="postgresql://127.0.0.1:1/x"
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 7  # that database is not there; the service would have refused the time


def test_output_is_shown_while_it_comes_and_an_interrupt_ends_the_run(service: ServiceProcess) -> None:
    session = "interrupted"
    code = "import time\nprint('on', flush=True)\nwhile True:\n    open('alive', 'a').write('x'); time.sleep(0.01)"
    process = subprocess.Popen(
        [*COMMAND, "run", "--project", session, "-c", code],
        env=surroundings(service.home, PYTHONPATH=service_process.SOURCE),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], PATIENCE_SECONDS)[0]
    assert os.read(process.stdout.fileno(), 3) == b"on\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_SECONDS) == 130
    process.communicate()
    # the session is free again, which it is not while somebody runs in it
    done = command(service.home, "run", "--project", session, "--json", "-c", "print(2)")
    assert json.loads(done.stdout)["stdout"] == "2\n"


def test_a_pipe_that_is_closed_ends_the_run(service: ServiceProcess) -> None:
    line = [*COMMAND, "run", "-c", "while True: print('y')"]
    env = surroundings(service.home, PYTHONPATH=service_process.SOURCE)
    with subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(PATIENCE_SECONDS) == 141


def test_a_service_that_was_killed_is_as_good_as_none(tmp_path: Path) -> None:
    service = service_process.start(tmp_path)
    service_process.stop(service, signal.SIGKILL)
    assert (tmp_path / "service.sock").exists()
    done = command(tmp_path, "run", "-c", "print(1)")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n", b"")


def test_a_service_that_is_about_to_end_is_said_to_be_and_not_waited_for(tmp_path: Path) -> None:
    service = service_process.start(tmp_path)
    held = subprocess.Popen(
        [*COMMAND, "run", "-c", "print('on', flush=True)\nwhile True: pass"],
        env=surroundings(tmp_path, PYTHONPATH=service_process.SOURCE),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert held.stdout is not None
    assert held.stdout.read(3) == b"on\n"
    service.process.send_signal(signal.SIGTERM)  # it lets that run go on for as long as it may
    done = command(tmp_path, "run", "-c", "print(1)")
    assert (done.returncode, done.stdout) == (7, b"")
    assert b" draining: " in done.stderr
    held.send_signal(signal.SIGINT)
    held.communicate(timeout=PATIENCE_SECONDS)
    service_process.stop(service, signal.SIGKILL)


def test_the_command_imports_neither_an_engine_nor_tls_to_ask_a_service(service: ServiceProcess) -> None:
    code = (
        "import sys\nfrom ringfence.interfaces.cli.main import main\ncode = main(['run', '-c', 'print(1)'])\n"
        "print(*sorted(sys.modules), file=sys.stderr)\nraise SystemExit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=surroundings(service.home, PYTHONPATH=service_process.SOURCE),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    imported = set(done.stderr.split())
    assert "ringfence.client.service" in imported
    assert not imported & {"ssl", "asyncio", "sqlite3", "ringfence.facade", "ringfence.wiring", "fastapi", "hashlib"}
