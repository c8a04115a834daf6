"""The audit fails on a finding, and never takes silence for a clean bill."""

from __future__ import annotations

import json
from typing import Any

from tools.audit import judge

CLEAN = {"name": "pytest", "version": "9.2.0", "vulns": []}
UNKNOWN = {"name": "inhouse", "skip_reason": "not found"}
FOUND = {"name": "ruff", "version": "0.1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["0.2", "0.3"]}]}


def report(*dependencies: dict[str, Any]) -> str:
    return json.dumps({"dependencies": dependencies, "fixes": []})


def test_a_finding_fails_and_names_the_fix() -> None:
    assert judge(report(CLEAN, FOUND), "Found 1 known vulnerability") == (1, ["ruff 0.1: PYSEC-1, fixed in 0.2, 0.3"])


def test_a_finding_beside_an_unknown_package_still_fails() -> None:
    status, lines = judge(report(UNKNOWN, FOUND), "")
    assert (status, lines[-1]) == (1, "ruff 0.1: PYSEC-1, fixed in 0.2, 0.3")


def test_no_finding_passes_and_counts_what_was_audited() -> None:
    assert judge(report(CLEAN, UNKNOWN), "") == (
        0,
        ["inhouse: NOT audited, the advisory service does not know it", "no findings in 1 packages"],
    )


def test_a_service_that_knows_nothing_is_not_a_clean_bill() -> None:
    assert judge(report(UNKNOWN), "No known vulnerabilities found") == (
        0,
        ["NOT audited: the advisory service answers for none of the 1 packages"],
    )


def test_a_service_out_of_reach_is_said_in_one_line() -> None:
    trace = "Traceback …\nrequests.exceptions.ProxyError: … Max retries exceeded with url …"
    assert judge("", trace) == (0, ["NOT audited: the advisory service cannot be reached from here"])


def test_any_other_failure_of_the_auditor_is_a_failure() -> None:
    assert judge("", "unhashed requirement") == (1, ["pip-audit failed", "unhashed requirement"])
