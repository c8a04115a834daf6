"""The unit for systemd and the profile for AppArmor: read by their own programs where those can."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ringfence.doctor.fixes import apparmor_profile

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


@pytest.mark.needs("systemd")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "ringfence.service"
    text = (DEPLOY / "systemd/ringfence.service").read_text()
    here = text.replace("ExecStart=/opt/ringfence/bin/ringfence serve", f"ExecStart={shutil.which('true')}")
    assert here != text
    unit.write_text(here)
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_gives_each_run_room_for_a_cgroup_and_keeps_no_privilege() -> None:
    lines = (DEPLOY / "systemd/ringfence.service").read_text().splitlines()
    assert "Delegate=cpu cpuset io memory pids" in lines
    assert "CapabilityBoundingSet=" in lines
    assert "NoNewPrivileges=yes" in lines
    assert "DynamicUser=yes" in lines


def test_the_profile_is_the_one_that_the_doctor_prints() -> None:
    shipped = (DEPLOY / "apparmor/ringfence").read_text()
    rules = [line for line in shipped.splitlines() if line and not line.startswith("#")]
    printed = apparmor_profile("/opt/ringfence/bin/python3*").replace('"', "")
    assert "\n".join(line for line in printed.splitlines() if line).find("\n".join(rules)) >= 0


def test_the_image_of_the_service_runs_as_nobody_in_particular() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    assert "USER 10001:10001" in lines
    assert not [line for line in lines if line.startswith("FROM") and line.endswith(":latest")]
