"""Which box a call gets from end to end: by its risk, by the policy, by its caller, and never a weaker one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ringfence
from ringfence.errors import IsolationUnavailable

CRITICAL = "open('/var/run/docker.sock')"
MANUAL = Path(__file__).parents[2] / "docs" / "gvisor.md"
POLICY = "policies: {tools: {code_run: {critical_isolation: gvisor}}}\n"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


@pytest.mark.needs("native")
def test_what_is_not_critical_stays_in_the_usual_box(policy: Path, tmp_path: Path) -> None:
    result = ringfence.run("print(1)", policy_file=policy, home=tmp_path / "home")
    assert (result.backend, result.isolation.chosen) == (
        "native",
        "native: the first that starts here; the call needs container",
    )


@pytest.mark.needs("gvisor")
@pytest.mark.usefixtures("gvisor_image")
def test_critical_code_gets_the_box_that_the_policy_wants_for_it(policy: Path, tmp_path: Path) -> None:
    result = ringfence.run(CRITICAL, policy_file=policy, home=tmp_path / "home", timeout=30)
    assert (result.risk, result.backend) == ("critical", "gvisor")
    assert result.isolation.chosen == "gvisor: the call needs gvisor"
    assert "FileNotFoundError" in result.stderr


@pytest.mark.needs("native")
@pytest.mark.needs("gvisor")
@pytest.mark.usefixtures("gvisor_image")
def test_what_the_manual_writes_holds_for_every_language(tmp_path: Path) -> None:
    line = next(line for line in MANUAL.read_text().splitlines() if "critical_isolation" in line)
    path = tmp_path / "policy.yaml"
    path.write_text(line)
    for language, code in (("python", CRITICAL), ("bash", "cat /var/run/docker.sock")):
        result = ringfence.run(code, language=language, policy_file=path, home=tmp_path / "home", timeout=30)
        assert (result.risk, result.backend) == ("critical", "gvisor")


def test_who_asks_for_a_weaker_box_is_refused_and_nothing_runs(policy: Path, tmp_path: Path) -> None:
    with pytest.raises(IsolationUnavailable, match="needs isolation of class gvisor, and native gives container"):
        ringfence.run(CRITICAL, policy_file=policy, home=tmp_path / "home", isolation="native")


@pytest.mark.needs("native")
def test_a_virtual_machine_is_refused_with_the_reason(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {tools: {code_run: {isolation: microvm}}}\n")
    with pytest.raises(IsolationUnavailable, match="no box here is a virtual machine"):
        ringfence.run("print(1)", policy_file=policy, home=tmp_path / "home")


def test_explain_shows_both_floors_and_where_they_come_from(policy: Path) -> None:
    command = [sys.executable, "-m", "ringfence", "policy", "explain", "--policy", str(policy), "--tool", "code_run"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["setting"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["critical_isolation"]["value"] == "gvisor"
    assert rows["isolation"]["value"] == "os"
