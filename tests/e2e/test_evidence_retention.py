"""Evidence that grows old: what is pruned, what a hold keeps, and that the rest still verifies."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import PATIENCE_SECONDS, ringfence, said, surroundings, told
from tests.e2e.evidence_homes import edit
from tests.e2e.evidence_homes import home as home
from tests.e2e.evidence_homes import lived_in as lived_in

pytestmark = pytest.mark.needs("native")


def test_pruned_evidence_still_verifies_and_what_is_held_stays(home: Path) -> None:
    hold = told(home, "evidence", "hold", "add", "task_id=T-7", "--reason", "case 9")["hold_id"]
    assert "task_id=T-7  case 9" in said(home, "evidence", "hold", "list")
    asked = ringfence(home, "evidence", "prune", "--older-than", "0s")
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "--yes" in asked.stderr
    gone = told(home, "evidence", "prune", "--older-than", "0s", "--yes")["gone"]
    assert gone["texts"] >= 5
    rows = {row.get("task_id"): row["integrity"] for row in told(home, "evidence", "list")["execs"]}
    assert rows["T-7"] == "intact"
    assert {integrity for task, integrity in rows.items() if task != "T-7"} == {"pruned"}
    assert told(home, "evidence", "verify")["logs"][0]["pruned"] >= 5
    said(home, "evidence", "hold", "release", hold)
    assert told(home, "evidence", "prune", "--older-than", "0s", "--rows", "--yes")["gone"]["rows"] >= 7
    answer = told(home, "evidence", "verify")
    assert answer["verdict"] == "proven"
    assert answer["logs"][0]["first_seq"] >= 7
    assert told(home, "evidence", "list")["execs"] == []


KILLED_AFTER_RUNS = """
import asyncio, os, signal, sys
from ringfence import Correlation, SandboxManager
async def main():
    async with SandboxManager(correlation=Correlation(user_id=sys.argv[1])) as manager:
        for _ in range(8):
            await manager.execute_code("python", "print(1)")
        print("ready", flush=True)
        sys.stdin.readline()
        await manager.execute_code("python", "print(1)")
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A home with the logs of two processes that were killed after their runs, with all of them noted."""
    command = [sys.executable, "-c", KILLED_AFTER_RUNS, "ada-in-person"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, env=surroundings(tmp_path), **pipes) for _ in range(2)]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        process.communicate("\n", timeout=PATIENCE_SECONDS)
        assert process.returncode == -signal.SIGKILL
    return tmp_path


def test_what_killed_processes_wrote_is_signed_by_the_next_one(killed: Path) -> None:
    said(killed, "run", "-c", "print(1)")
    answer = told(killed, "evidence", "verify")
    assert answer["verdict"] == "proven"
    assert len(answer["logs"]) == 2


def test_what_was_pruned_is_gone_from_the_notes_of_killed_processes_too(killed: Path) -> None:
    assert any(b"ada-in-person" in path.read_bytes() for path in killed.glob("ringfence.db.begun-*"))
    said(killed, "evidence", "prune", "--older-than", "0s", "--yes")
    assert [path.name for path in killed.glob("ringfence.db.begun-*")] == []
    assert told(killed, "evidence", "verify")["verdict"] == "proven"
    assert {row["integrity"] for row in told(killed, "evidence", "list")["execs"]} == {"pruned"}


def test_an_end_that_a_clock_made_older_than_its_beginning_and_that_was_pruned_is_not_called_open(
    tmp_path: Path,
) -> None:
    program = """
import asyncio, time
from ringfence import SandboxManager
now, back = time.time_ns, [0]
time.time_ns = lambda: now() - back[0]
async def main():
    async with SandboxManager() as manager:
        run = asyncio.create_task(manager.execute_code("python", "import time; time.sleep(0.3)"))
        await asyncio.sleep(0.15)
        back[0] = 10**9 * 86400 * 365 * 80
        await run
        await manager.execute_code("python", "print(1)")
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], env=surroundings(tmp_path), check=True, timeout=PATIENCE_SECONDS)
    for row in told(tmp_path, "evidence", "list")["execs"]:
        assert re.fullmatch("ex_[0-9a-f]{32}", row["exec_id"])  # also before 1970
    said(tmp_path, "evidence", "prune", "--older-than", "1d", "--yes")
    answer = said(tmp_path, "evidence", "verify")
    assert "1 whose end is only a hash" in answer
    assert "still open" not in answer


def test_what_was_pruned_held_and_released_is_evidence_itself(home: Path, tmp_path: Path) -> None:
    hold = told(home, "evidence", "hold", "add", "task_id=T-7")["hold_id"]
    said(home, "evidence", "hold", "release", hold)
    said(home, "evidence", "prune", "--older-than", "90d", "--yes")
    file = tmp_path / "log"
    said(home, "evidence", "export", "--format", "log", "--output", str(file))
    kinds = [json.loads(line)["type"] for line in file.read_text().splitlines()]
    assert [kind for kind in kinds if kind.startswith("admin.")] == [
        "admin.held",
        "admin.released",
        "admin.pruned",
        "admin.pruned",
    ]


def test_what_was_pruned_is_explained_though_the_record_of_it_was_pruned_too(home: Path, tmp_path: Path) -> None:
    for options in ((), ("--rows",), (), ("--rows",)):
        said(home, "run", "-c", "print(1)")
        said(home, "evidence", "prune", "--older-than", "0s", "--yes", *options)
        assert told(home, "evidence", "verify")["verdict"] == "proven"
    said(home, "run", "-c", "print(1)")
    edit(home, "UPDATE journal_record SET body = NULL WHERE place = (SELECT max(place) FROM journal_record)")
    done = ringfence(home, "evidence", "verify")
    assert done.returncode == 3
    assert "nobody wrote down that it was taken away" in done.stdout + done.stderr


@pytest.mark.parametrize("options", [(), ("--rows",)])
def test_evidence_that_was_tampered_with_is_not_pruned_until_nobody_can_tell(
    home: Path, options: tuple[str, ...]
) -> None:
    edit(home, "UPDATE journal_record SET body = NULL WHERE seq = 3")
    done = ringfence(home, "evidence", "prune", "--older-than", "0s", "--yes", *options)
    assert (done.returncode, done.stdout) == (7, "")
    assert "not whole" in done.stderr
    assert ringfence(home, "evidence", "verify").returncode == 3


def test_the_files_of_runs_grow_old_unless_a_hold_is_on_them(tmp_path: Path) -> None:
    home = tmp_path / "home"
    said(home, "run", "--project", "p1", "-c", "print(1)")
    said(home, "run", "--project", "p2", "-c", "print(2)")
    said(home, "evidence", "hold", "add", "session_id=p1", "--reason", "a letter came")
    answer = told(home, "evidence", "prune", "--older-than", "0s", "--files", "--yes")
    assert answer["gone"] == {"files": 1}
    left = {path.parent.parent.name for path in (home / "workspace/projects").glob("*/artifacts/ex_*")}
    assert left == {"p1"}
    assert told(home, "evidence", "verify")["verdict"] == "proven"
