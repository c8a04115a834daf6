from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringfence.errors import InvalidRequest
from ringfence.evidence.correlation import Correlation
from ringfence.interfaces.cli.help_text import PENDING_COMMANDS
from ringfence.interfaces.cli.main import main
from ringfence.interfaces.cli.run import run_command
from ringfence.interfaces.cli.usage import UsageError
from ringfence.outcome import Artifact, ExecutionResult, Status


class ScriptedRun:
    """Stands in for `ringfence.run`: remembers what was asked and plays a script."""

    def __init__(self, result: ExecutionResult, chunks: tuple[tuple[str, bytes], ...] = ()) -> None:
        self.result = result
        self.chunks = chunks
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, code: str, **options: Any) -> ExecutionResult:
        on_output = options.pop("on_output", None)
        self.asked.append((code, options))
        for stream, chunk in self.chunks:
            if on_output is not None:
                on_output(stream, chunk)
        return self.result


SUCCEEDED = ExecutionResult(status=Status.SUCCEEDED, exit_code=0, stdout_raw=b"1\n", stdout_bytes=2)


@pytest.fixture(autouse=True)
def signals_restored() -> Any:
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_what_the_person_asked_for_is_what_runs(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(b"a,b\n")
    run = ScriptedRun(SUCCEEDED)
    words = [
        "-c",
        "x",
        "--no-stdin",
        "--input",
        str(tmp_path / "data.csv"),
        "--memory",
        "64",
        "--project",
        "p",
        "--",
        "1",
    ]
    assert run_command("run", words, run=run) == 0
    assert run.asked == [
        (
            "x",
            {
                "language": "python",
                "args": ("1",),
                "stdin": b"",
                "env": None,
                "packages": (),
                "preload": (),
                "timeout": None,
                "memory_mb": 64,
                "policy_file": None,
                "role": None,
                "session_id": "p",
                "isolation": "auto",
                "security_mode": "strict",
                "pool_size": 0,
                "correlation": Correlation(project_id="p"),
                "inputs": {"data.csv": b"a,b\n"},
            },
        )
    ]


def test_whose_work_it_is_and_where_its_evidence_goes_is_passed_on() -> None:
    run = ScriptedRun(SUCCEEDED)
    words = ["-c", "x", "--no-stdin", "--home", "h", "--correlate", "task=T-7", "--correlate", "user_id=ada=1"]
    assert run_command("run", words, run=run) == 0
    (_, asked), *_ = run.asked
    assert asked["home"] == "h"
    assert asked["correlation"] == Correlation(task_id="T-7", user_id="ada=1")


@pytest.mark.parametrize("pairs", [["task"], ["nobody=1"], ["task=1", "task_id=2"], ["exec=1"]])
def test_a_correlation_that_is_none_is_refused_before_anything_runs(pairs: list[str]) -> None:
    run = ScriptedRun(SUCCEEDED)
    with pytest.raises(UsageError, match="--correlate"):
        run_command("run", ["-c", "x", *(word for pair in pairs for word in ("--correlate", pair))], run=run)
    assert run.asked == []


def test_output_comes_through_raw_when_it_is_not_a_terminal(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run = ScriptedRun(SUCCEEDED, (("stdout", b"\x1b[31m\xff"), ("stderr", b"oops"), ("stdout", b"\n")))
    assert run_command("run", ["-c", "x", "--no-stdin"], run=run) == 0
    assert capfdbinary.readouterr() == (b"\x1b[31m\xff\n", b"oops")


def test_output_on_a_terminal_is_disarmed() -> None:
    ours, theirs = os.openpty()
    try:
        _in_child("ScriptedRun(SUCCEEDED, (('stdout', b'\\x1b]0;owned\\x07'), ('stdout', b'ok')))", stdout=theirs)
        assert os.read(ours, 1000) == b"\\x1b]0;owned\\x07ok"
    finally:
        os.close(ours)
        os.close(theirs)


def test_json_is_one_object_and_nothing_else(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run = ScriptedRun(SUCCEEDED, (("stdout", b"1\n"), ("stderr", b"noise")))
    assert run_command("run", ["-c", "x", "--no-stdin", "--json"], run=run) == 0
    out, err = capfdbinary.readouterr()
    assert json.loads(out)["stdout"] == "1\n"
    assert (out.count(b"\n"), err) == (1, b"")


def test_artifacts_are_kept_where_asked(tmp_path: Path) -> None:
    result = ExecutionResult(status=Status.FAILED, exit_code=3, artifacts=(Artifact("d/plot.svg", 1, "", b"<"),))
    words = ["-c", "x", "--no-stdin", "--artifacts", str(tmp_path / "out")]
    assert run_command("run", words, run=ScriptedRun(result)) == 1
    assert (tmp_path / "out" / "d" / "plot.svg").read_bytes() == b"<"


def test_a_full_artifact_directory_stops_the_command_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"")
    run = ScriptedRun(SUCCEEDED)
    with pytest.raises(InvalidRequest):
        run_command("run", ["-c", "x", "--no-stdin", "--artifacts", str(tmp_path)], run=run)
    assert run.asked == []


def test_shell_runs_bash(capfd: pytest.CaptureFixture[str]) -> None:
    run = ScriptedRun(SUCCEEDED)
    assert run_command("shell", ["--no-stdin", "--", "ls", "a b"], run=run) == 0
    assert (run.asked[0][0], run.asked[0][1]["language"]) == ("ls 'a b'", "bash")


def test_piped_standard_input_is_the_programs() -> None:
    done = _in_child("EchoStdin()", input=b"a\0b")
    assert done.stdout == b"a\0b"


def test_a_reader_that_goes_away_ends_the_run() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = _in_child("Flood()", stdout=theirs)
    finally:
        os.close(theirs)
    assert (done.returncode, done.stderr) == (141, b"unwound\n")


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_unwinds_the_run_and_gives_its_code(signum: signal.Signals, code: int) -> None:
    done = _in_child(f"SignalMe({int(signum)})", stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (code, b"unwound\n")


def test_a_usage_error_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-c", "1", "--nope"]) == 2
    assert capsys.readouterr() == (
        "",
        "ringfence: SCHEMA.VALIDATION_FAILED usage: unrecognized arguments: --nope. Fix: see 'ringfence run --help'\n",
    )


def test_a_usage_error_in_json_is_one_object_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--json", "--nope", "-c", "1"]) == 2
    out, err = capsys.readouterr()
    assert (json.loads(out)["reason"], err) == ("usage", "")


def test_a_json_flag_of_the_guest_is_not_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--", "--json"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", sorted(PENDING_COMMANDS))
def test_a_command_whose_part_has_not_landed_says_so(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 2
    assert "not_in_this_version" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["shell", "-h"], ["doctor", "--help"], ["bench", "-h"]]
)
def test_help_is_on_stdout_and_exits_with_0(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert "ringfence" in capsys.readouterr().out


def test_help_and_a_refused_command_line_import_only_what_they_need() -> None:
    program = (
        "import sys; from ringfence.interfaces.cli.main import main; main(['run', '--help']);"
        "print(sorted({'argparse', 'dataclasses'} & set(sys.modules)));"
        "main(['run', '-c', '1', '--nope']);"
        "print(sorted({'asyncio', 'ringfence.facade', 'subprocess', 'json', 'pathlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n[]\n")


def _in_child(run: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process of its own, with standard streams of its own, against a scripted `run`."""
    program = f"""
import sys, os, threading, signal
sys.path[:0] = {sys.path!r}
from {__name__} import ScriptedRun, SUCCEEDED, EchoStdin, Flood, SignalMe
from ringfence.interfaces.cli import main, run as module
import ringfence
ringfence.run = {run}
sys.exit(main.main(["run", "-c", "x"]))
"""
    options.setdefault("stdout", subprocess.PIPE)
    if "input" not in options:
        options["stdin"] = subprocess.DEVNULL
    command = [sys.executable, "-c", program]
    return subprocess.run(command, stderr=subprocess.PIPE, timeout=15, check=False, **options)


class EchoStdin:
    """Prints what the program was given on standard input."""

    def __call__(self, code: str, **options: Any) -> ExecutionResult:
        options["on_output"]("stdout", options["stdin"])
        return SUCCEEDED


class Flood:
    """Prints from another thread without end, while the main thread waits: as the real one does."""

    def __call__(self, code: str, **options: Any) -> ExecutionResult:
        import threading

        done = threading.Event()

        def pump() -> None:
            while not done.is_set():
                options["on_output"]("stdout", b"x" * 4096)

        thread = threading.Thread(target=pump, daemon=True)
        try:
            thread.start()
            thread.join()
        finally:
            done.set()
            os.write(2, b"unwound\n")
        return SUCCEEDED


class SignalMe:
    """Is hit by a signal while it waits."""

    def __init__(self, signum: int) -> None:
        self.signum = signum

    def __call__(self, code: str, **options: Any) -> ExecutionResult:
        try:
            signal.raise_signal(self.signum)
        finally:
            os.write(2, b"unwound\n")
        return SUCCEEDED
