"""`ringfence evidence replay`: decisions made again, and programs run again where their contents were kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.command_line import PATIENCE_SECONDS, ringfence, said, surroundings, told
from tests.e2e.evidence_homes import BASH_ONLY, by_outcome
from tests.e2e.evidence_homes import home as home
from tests.e2e.evidence_homes import lived_in as lived_in

pytestmark = pytest.mark.needs("native")


def test_decisions_are_made_again_and_come_out_the_same(home: Path) -> None:
    answer = told(home, "evidence", "replay", "--since", "1d")
    assert (answer["same"], answer["differs"], answer["cannot_tell"]) == (4, 0, 0)


def test_another_policy_says_which_past_calls_it_would_deny(home: Path, tmp_path: Path) -> None:
    policy = tmp_path / "candidate.yaml"
    policy.write_text(BASH_ONLY)
    answer = told(home, "evidence", "replay", "--since", "1d", "--policy", str(policy), code=1)
    assert (answer["same"], answer["differs"]) == (1, 3)
    text = said(home, "policy", "replay", "--policy", str(policy), code=1)
    assert "3 past calls of code_run would now be denied by manifest" in text
    assert told(home, "policy", "replay", "--policy", str(policy), code=1)["differs"] == 3


@pytest.mark.parametrize("level", ["simulate", "reexecute"])
def test_without_contents_nothing_is_made_up(level: str, home: Path) -> None:
    name = by_outcome(home, "failed")["exec_id"]
    done = ringfence(home, "evidence", "replay", name, "--level", level)
    assert done.returncode == 7
    assert "was not kept" in done.stdout
    assert len(told(home, "evidence", "list")["execs"]) == 4  # and nothing ran


@pytest.fixture
def keeping(tmp_path: Path) -> Path:
    """Return a home in which contents are kept."""
    said(tmp_path, "evidence", "content", "on")
    return tmp_path


def test_a_kept_program_is_told_and_run_again_and_compared_by_digests(keeping: Path) -> None:
    data = keeping / "data.csv"
    data.write_text("a,b")
    program = "import os, sys; print(sys.argv[1:], os.environ['A'], open('/workspace/inputs/data.csv').read())"
    said(keeping, "run", "-c", program, "--env", "A=secret", "--input", str(data), "--", "one", "two")
    for level in ("simulate", "reexecute"):
        answer = told(keeping, "evidence", "replay", "--status", "ok", "--level", level)
        assert (answer["same"], answer["differs"], answer["cannot_tell"]) == (1, 0, 0), level
    again, first = told(keeping, "evidence", "list")["execs"]  # running again leaves evidence of its own
    record = told(keeping, "evidence", "show", again["exec_id"])["records"][0]["record"]
    assert record["request_id"] == f"replay of {first['exec_id']}"


def test_a_program_that_comes_out_otherwise_says_in_what(keeping: Path) -> None:
    said(keeping, "run", "-c", "import os; print(os.urandom(8).hex())")
    name = by_outcome(keeping, "succeeded")["exec_id"]
    assert "came out the same" in said(keeping, "evidence", "replay", name, "--level", "simulate")
    assert "stdout: then 17 bytes" in said(keeping, "evidence", "replay", name, "--level", "reexecute", code=1)


def test_a_program_is_run_again_in_the_directory_it_ran_in(keeping: Path) -> None:
    program = (
        "import ringfence; print(ringfence.run('import os; print(os.getcwd())', cwd='/workspace/artifacts').stdout)"
    )
    subprocess.run([sys.executable, "-c", program], env=surroundings(keeping), check=True, timeout=PATIENCE_SECONDS)
    assert told(keeping, "evidence", "replay", "--status", "ok", "--level", "reexecute")["same"] == 1


def test_a_program_that_could_reach_others_is_not_run_again_without_them_and_not_with_them(keeping: Path) -> None:
    policy = keeping / "net.yaml"
    policy.write_text(
        "policies:\n  tools:\n    code_run:\n      net_mode: allowlist\n      allowed_domains: [a.test]\n"
    )
    said(keeping, "run", "-c", "import os; print(os.environ)", "--allow-domain", "a.test", "--policy", str(policy))
    answer = said(keeping, "evidence", "replay", "--status", "ok", "--level", "reexecute", code=7)
    assert "cannot tell: what could reach others is not run again" in answer
    assert len(told(keeping, "evidence", "list")["execs"]) == 1


def test_contents_are_forgotten_for_good_and_the_evidence_still_verifies(keeping: Path) -> None:
    said(keeping, "run", "-c", "print(1)")
    assert "--yes" in ringfence(keeping, "evidence", "content", "forget").stderr
    assert told(keeping, "evidence", "content", "forget", "--yes")["gone"] >= 2
    name = by_outcome(keeping, "succeeded")["exec_id"]
    assert "was not kept" in said(keeping, "evidence", "replay", name, "--level", "simulate", code=7)
    said(keeping, "evidence", "verify")
    said(keeping, "evidence", "content", "off")
    assert told(keeping, "evidence", "content", "status")["kept"] is False


def test_held_contents_outlive_the_others(keeping: Path) -> None:
    said(keeping, "run", "-c", "print(1)", "--correlate", "task=held")
    said(keeping, "run", "-c", "print(2)", "--correlate", "task=other")
    said(keeping, "evidence", "hold", "add", "task_id=held")
    said(keeping, "evidence", "prune", "--older-than", "0s", "--content", "--yes")
    told(keeping, "evidence", "replay", "--task", "held", "--level", "simulate")
    told(keeping, "evidence", "replay", "--task", "other", "--level", "simulate", code=7)
