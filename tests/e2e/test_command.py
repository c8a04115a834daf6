"""The real command against the real box, as a person or a script would use it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs("native")

COMMAND = [sys.executable, "-m", "ringfence"]
PATIENCE_SECONDS = 60


def ringfence(*words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run([*COMMAND, *words], capture_output=True, timeout=PATIENCE_SECONDS, check=False, **options)


def start(*words: str, **options: Any) -> subprocess.Popen[bytes]:
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    # a shell starts background jobs with SIGINT ignored, and the command would rightly leave it so
    return subprocess.Popen(
        [*COMMAND, *words], preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options
    )


def test_a_program_runs_and_its_output_is_all_there_is() -> None:
    done = ringfence("run", "-c", "print(1)")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n", b"")


def test_both_streams_arrive_byte_for_byte() -> None:
    code = r"import os; os.write(1, b'\x00\xff\x1b[31m'); os.write(2, b'\xfe')"
    done = ringfence("run", "-c", code)
    assert (done.stdout, done.stderr) == (b"\x00\xff\x1b[31m", b"\xfe")


@pytest.mark.parametrize(("words", "code"), [((), 1), (("--passthrough",), 7)])
def test_a_failing_program_gives_1_or_its_own_code(words: Sequence[str], code: int) -> None:
    assert ringfence("run", *words, "-c", "raise SystemExit(7)").returncode == code


def test_a_timeout_keeps_the_partial_output_and_gives_6() -> None:
    done = ringfence("run", "--timeout", "1", "-c", "print('partial', flush=True)\nwhile True: pass")
    assert (done.returncode, done.stdout) == (6, b"partial\n")
    assert done.stderr.startswith(b"ringfence: ")
    assert done.stderr.count(b"\n") == 1


def test_json_is_the_whole_result_with_the_layers_observed() -> None:
    done = ringfence("run", "--json", "-c", "print(1)")
    result = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (result["success"], result["status"], result["exit_code"], result["stdout"]) == (True, "succeeded", 0, "1\n")
    assert {"user", "mnt", "pid", "net", "ipc", "uts"} <= set(result["isolation"]["namespaces"])
    assert result["isolation"]["host_uid"] != 0
    assert result["isolation"]["seccomp_filters"] > 0


def test_an_error_in_json_is_one_object_too() -> None:
    done = ringfence("run", "--json", "-c", "print(1)", "--env", "1BAD=x")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error_code"] == "SCHEMA.VALIDATION_FAILED"


def test_a_file_gets_its_arguments_and_piped_standard_input(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys; print(sys.argv[1:], sys.stdin.buffer.read())")
    done = ringfence("run", str(program), "--", "--json", "a b", input=b"\0data")
    assert done.stdout == b"['--json', 'a b'] b'\\x00data'\n"


def test_the_program_itself_may_come_from_standard_input() -> None:
    assert ringfence("run", "-", input=b"print(2)").stdout == b"2\n"


def test_inputs_go_in_and_artifacts_come_out(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_bytes(b"a,b\n")
    code = (
        "import os, shutil; os.makedirs('/workspace/artifacts/deep');"
        "shutil.copy('/workspace/inputs/data/a.csv', '/workspace/artifacts/deep/copy.csv')"
    )
    out = tmp_path / "out"
    done = ringfence("run", "-c", code, "--input", str(tmp_path / "data"), "--artifacts", str(out))
    assert done.returncode == 0, done.stderr
    assert (out / "deep" / "copy.csv").read_bytes() == b"a,b\n"


def test_only_the_variables_given_are_there() -> None:
    code = "import os; print(os.environ.get('GIVEN'), os.environ.get('SECRET_OF_THE_HOST'))"
    env = {**os.environ, "SECRET_OF_THE_HOST": "SECRET-HOST-CONTENT"}
    assert ringfence("run", "--env", "GIVEN=yes", "-c", code, env=env).stdout == b"yes None\n"


def test_a_memory_limit_is_kept() -> None:
    done = ringfence("run", "--memory", "64", "--json", "-c", "x = b'x' * (256 << 20); print('grew')")
    assert json.loads(done.stdout)["success"] is False
    assert b"grew" not in done.stdout.replace(b"print('grew')", b"")


def test_a_shell_command_of_several_words_arrives_exactly() -> None:
    assert ringfence("shell", "--", "printf", "%s|", "a b", "$HOME", "'").stdout == b"a b|$HOME|'|"


def test_a_shell_command_of_one_word_is_a_script() -> None:
    assert ringfence("shell", "--", "echo hi | tr a-z A-Z; exit 0").stdout == b"HI\n"


def test_a_secret_that_no_policy_lends_is_refused_and_nothing_runs() -> None:
    done = ringfence("run", "--secret", "TOKEN=env", "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (3, b"")
    assert b"lends no secret TOKEN" in done.stderr


def test_a_host_that_no_policy_grants_is_refused_and_nothing_runs() -> None:
    done = ringfence("run", "--allow-domain", "example.org", "-c", "print('ran')")
    assert done.returncode != 0
    assert done.stdout == b""
    assert b"no way to example.org" in done.stderr


def test_output_on_a_terminal_is_disarmed() -> None:
    ours, theirs = os.openpty()
    try:
        process = start("run", "-c", r"print('\x1b]0;owned\x07', end='')", stdout=theirs, stderr=None)
        assert process.wait(PATIENCE_SECONDS) == 0
        assert os.read(ours, 1000) == rb"\x1b]0;owned\x07"
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_output_is_live_and_an_interrupt_leaves_no_process(signum: signal.Signals, code: int) -> None:
    ignoring = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    guest = f"{ignoring}; print('ready', flush=True); time.sleep(600)"
    process = start("run", "-c", guest)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    family = [os.pidfd_open(pid) for pid in descendants(process.pid)]
    assert family
    process.send_signal(signum)
    assert process.wait(PATIENCE_SECONDS) == code
    for pidfd in family:
        assert select.select([pidfd], [], [], 5)[0], "a process outlived the command"
        os.close(pidfd)
    process.communicate()


def test_a_reader_that_goes_away_ends_an_endless_program() -> None:
    process = start("run", "-c", "while True: print('x' * 1000)")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(PATIENCE_SECONDS) == 141
    assert process.stderr is not None
    process.stderr.close()


def test_the_doctor_says_yes_where_the_box_works() -> None:
    done = ringfence("doctor", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["isolated"], answer["tier"]) == (0, True, "native")
    statuses = {check["id"]: check["status"] for check in answer["checks"]}
    assert [statuses[name] for name in ("S1-140", "S1-141", "S1-142")] == ["ok", "ok", "ok"]


def test_the_bench_measures_what_it_promises() -> None:
    done = subprocess.run(
        [*COMMAND, "bench", "--quick", "--json", "--only", "warm"], capture_output=True, timeout=300, check=True
    )
    lines = {line["promise"]["id"]: line for line in json.loads(done.stdout)["lines"] if line["promise"]}
    assert lines["warm_p50"]["measured"] > 0
    assert lines["governed_p50"]["measured"] > 0


def test_the_bench_measures_how_soon_a_change_of_the_law_holds() -> None:
    done = subprocess.run(
        [*COMMAND, "bench", "--quick", "--json", "--only", "law", "--only", "changes"],
        capture_output=True,
        timeout=300,
        check=True,
    )
    told = json.loads(done.stdout)
    lines = {line["title"]: line["measured"] for line in told["lines"]}
    for what in (
        "a budget reserved and settled, p95",
        "a grant revoked, until it is refused, p95",
        "a policy changed, until it is in force, p95",
    ):
        assert lines[what] > 0
    assert {line["promise"]["id"] for line in told["lines"] if line["promise"]} == {"law_p95", "law_scale"}


def descendants(pid: int) -> list[int]:
    """Return every live process below `pid`."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
