"""Budgets of every scope, spent by many processes at once, one of them killed: no more than there is, nothing lost."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.command_line import COMMAND, ringfence, said, surroundings

pytestmark = [pytest.mark.needs("native")]

AT_ONCE = 4
# each scope has less than the one around it; a run of ann's in the space `one`, in its project, is in all of them
BUDGETS = """
policies: {}
budgets:
  instance: {calls: 9}
  tenant: {local: {calls: 8}}
  space: {one: {calls: 6}}
  user: {ann: {calls: 4}}
  session: {p: {calls: 2}}
"""
WHOSE = {
    "session": (("--project", "p", "--correlate", "user=ann", "--correlate", "space=one"), 2),
    "user": (("--correlate", "user=ann", "--correlate", "space=one"), 2),
    "space": (("--correlate", "space=one"), 2),
    "tenant": ((), 2),
}


def test_a_storm_of_commands_spends_each_scope_to_its_end_and_no_further(tmp_path: Path) -> None:
    policy, home = tmp_path / "policy.yaml", tmp_path / "home"
    policy.write_text(BUDGETS)

    def run(words: tuple[str, ...]) -> int:
        return ringfence(home, "run", "--policy", str(policy), *words, "-c", "1").returncode

    for words, left in WHOSE.values():
        with ThreadPoolExecutor(AT_ONCE) as many:
            ends = Counter(many.map(run, [words] * (left + 3)))
        assert ends == {0: left, 5: 3}
    records = [json.loads(line) for line in said(home, "evidence", "export", "--format", "log").splitlines()]
    charged = [each for each in records if each["type"] == "exec.end" and each["status"] == "ok"]
    assert len(charged) == 8


def test_what_a_killed_command_had_reserved_is_charged_and_its_place_is_free_again(tmp_path: Path) -> None:
    """Killed between reserving and settling: the call counts, and nobody waits for the dead."""
    policy, home = tmp_path / "policy.yaml", tmp_path / "home"
    policy.write_text("policies: {tools: {code_run: {max_concurrency: 1}}}\nbudgets: {tenant: {local: {calls: 3}}}\n")
    words = ("run", "--policy", str(policy))
    running = subprocess.Popen(
        [*COMMAND, *words, "-c", "import time; print('here', flush=True); time.sleep(60)"],
        env=surroundings(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert running.stdout is not None
    with running, running.stdout:
        assert running.stdout.readline() == b"here\n"
        running.kill()
    ends = [ringfence(home, *words, "-c", "1").returncode for _ in range(3)]
    assert ends == [0, 0, 5]  # of three calls the dead one had one, and it holds no place
