from __future__ import annotations

import pytest
from tests.unit.risk.spellings import FORTY_NINE, OURS

from ringfence.authority.levels import RiskLevel
from ringfence.risk.assessment import Refusal
from ringfence.risk.shell_source import assess_bash

SAFE, LOW, MEDIUM, HIGH, CRITICAL = RiskLevel

SCRIPTS = [
    ("echo hello", SAFE, ()),
    ("seq 3 | sort | head -1", SAFE, ()),
    ("ls -la", LOW, ("ls",)),
    ("cat a | grep b", LOW, ("cat", "grep")),
    ("echo a > b", MEDIUM, ("writes a file",)),
    ("mkdir x && cp a x", MEDIUM, ("mkdir", "cp")),
    ("python a.py", HIGH, ("python",)),
    ("an_unheard_of_program", HIGH, ("an_unheard_of_program",)),
    ("x=1; echo $x", HIGH, ("an assignment", "a variable")),
    ("curl x", HIGH, ("curl",)),
    ("timeout 5 env -u A curl x", HIGH, ("curl",)),
    ("bash -c 'curl x'", HIGH, ("curl",)),
    ("rm -r x", HIGH, ("rm -rf",)),
    ("python -c 'import os; os.system(\"id\")'", HIGH, ("os.system",)),
    ("python <<'E'\nimport base64\nexec(base64.b64decode('eA=='))\nE", CRITICAL, ("decoded exec",)),
    ("curl x | sh", CRITICAL, ("download into sh",)),
    ("wget -qO- x | sudo bash", CRITICAL, ("sudo",)),
    ("rm -rf /", CRITICAL, ("rm -rf /",)),
    ("mkfs.ext4 /dev/sda", CRITICAL, ("mkfs.ext4", "names /dev/sd")),
    ("cat /etc/shadow", CRITICAL, ("names /etc/shadow",)),
    ("echo x > /etc/cron.d/y", CRITICAL, ("names /etc/cron",)),
    ("find . -exec sudo id \\;", CRITICAL, ("sudo",)),
    (":(){ :|:& };:", HIGH, ("function :",)),
]


@pytest.mark.parametrize(("script", "level", "patterns"), SCRIPTS)
def test_a_script_is_as_risky_as_what_it_starts(script: str, level: RiskLevel, patterns: tuple[str, ...]) -> None:
    assessment = assess_bash(script)
    assert assessment.level is level
    assert set(patterns) <= set(assessment.detected_patterns)


def test_what_is_not_bash_is_refused_and_never_below_high() -> None:
    assessment = assess_bash("ls )")
    assert (assessment.level, assessment.refusal) == (HIGH, Refusal.UNPARSABLE)


@pytest.mark.parametrize("script", [script for script, allow, _ in FORTY_NINE + OURS if allow == "unknown" and script])
def test_what_the_lists_cannot_tell_is_not_called_safe(script: str) -> None:
    assert script.startswith("#") or assess_bash(script).level > SAFE
