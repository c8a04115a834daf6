"""What dead owners left of their inputs is removed by the next; the living, and strangers, are left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ringfence.isolation.gvisor.inputs import Inputs, sweep
from ringfence.isolation.linux.cgroup_owner import Owner, current_owner, directory_name, pid_namespace


def dead_owner() -> Owner:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return Owner(ended.pid, 1, pid_namespace())


def test_only_what_dead_owners_left_is_swept(tmp_path: Path) -> None:
    dead, alive = directory_name(dead_owner()), directory_name(current_owner())
    elsewhere = directory_name(Owner(1, 1, pid_namespace() + 1))
    for name in (dead, alive, elsewhere, "somebody-elses", "ringfence-"):
        (tmp_path / name / "rf-1").mkdir(parents=True)
    sweep(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {alive, elsewhere, "somebody-elses", "ringfence-"}


def test_a_new_owner_sweeps_before_it_makes_its_own(tmp_path: Path) -> None:
    left = tmp_path / "gvisor" / directory_name(dead_owner())
    left.mkdir(parents=True)
    inputs = Inputs(tmp_path)
    assert not left.exists()
    assert inputs.make("rf-1").is_dir()
    inputs.remove("rf-1")
    inputs.remove("rf-1")
    assert list(inputs.path.iterdir()) == []
    inputs.close()
    assert list((tmp_path / "gvisor").iterdir()) == []


def test_nobody_else_finds_the_inputs(tmp_path: Path) -> None:
    inputs = Inputs(tmp_path)
    assert (tmp_path / "gvisor").stat().st_mode & 0o077 == 0
    inputs.close()
