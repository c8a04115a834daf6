"""The names that readers of the source documents know are where they look for them, and cost nothing until used."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest

import ringfence
from ringfence import capability
from ringfence.capability.form import KINDS
from ringfence.operation.form import from_json as read_operation

KNOWN = (
    "SandboxManager", "ExecutionRequest", "SecurityMode", "RiskLevel", "UnifiedRiskPolicy", "RiskAssessment",
    "AgentWorkspace", "PathTraversalError", "SandboxType", "Grant", "Budget", "Profile", "ProfileBuilder", "Executor",
    "Capability", "Capabilities", "Manifest", "PolicySnapshot", "PolicyGuard", "BudgetMeter", "Orchestrator",
    "SandboxConfig", "WorldInterface",
)  # fmt: skip
PARTS = (
    "authority.profile_builder",
    "budgets.port",
    "capability",
    "errors",
    "executors.fs",
    "executors.tmp",
    "guard.policy_guard",
    "operation",
    "orchestrator.pipeline",
    "ports",
    "risk.policy",
    "stores.policy_file",
)


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_name_is_imported_from_the_package(name: str) -> None:
    assert getattr(ringfence, name).__module__.startswith("ringfence.")


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_imported_alone_and_brings_nothing_from_outside(part: str) -> None:
    program = (
        f"import sys; before = set(sys.modules); import ringfence.{part}; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "sys.exit(', '.join(new - set(sys.stdlib_module_names) - {'ringfence'}) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_kind_of_capability_is_found_by_its_name() -> None:
    assert sorted(KINDS) == capability.__all__
    for name in KINDS:
        kind = getattr(capability, name)
        assert (kind.tag, issubclass(kind, ringfence.Capability)) == (name, True)
    with pytest.raises(AttributeError, match="no attribute 'FsEverything'"):
        _ = capability.FsEverything


def test_a_profile_is_made_from_what_the_package_exports() -> None:
    policy = ringfence.load_policy(b"policies: {tools: {file_read: {allowed_paths: [inputs, work]}}}\n")
    allowed = ringfence.Capabilities([capability.FsRead("inputs"), capability.FsRead("artifacts")])
    grant = ringfence.Grant("t", "s", "file_read", "c", allowed, 1, ringfence.Budget(calls=1), "f")
    manifest = ringfence.Manifest("file_read", capabilities=ringfence.Capabilities([capability.FsRead("/workspace")]))
    profile = ringfence.ProfileBuilder().build(grant, manifest, policy)
    assert isinstance(profile, ringfence.Profile)
    assert [str(item) for item in profile.capabilities] == ["fs.read:/workspace/inputs"]
    assert json.loads(json.dumps(profile.to_json()))["profile_hash"] == profile.profile_hash


def test_what_a_run_used_is_a_budget_with_all_six_numbers() -> None:
    used = ringfence.ExecutionResult(ringfence.Status.SUCCEEDED, cpu_ms=3).used
    assert isinstance(used, ringfence.Budget)
    six = {"calls": 1, "bytes_out": 0, "bytes_in": 0, "cpu_ms": 3, "gpu_ms": 0, "file_count": 0}
    assert six.items() <= asdict(used).items()
    assert ringfence.Budget(calls=5).meet(used).calls == 1


@pytest.mark.parametrize(
    ("kind", "operation"),
    [
        (capability.TmpUse(), {"op": "tmp_alloc", "size_bytes": 1}),
        (capability.FsRead("inputs"), {"op": "fs_read", "path": "inputs/a"}),
        (capability.ProcExec("git"), {"op": "proc_exec", "tool": "git", "args": ["status"]}),
    ],
)
def test_what_is_not_granted_is_not_allowed(kind: Any, operation: dict[str, object]) -> None:
    wanted = read_operation(operation)
    assert ringfence.Capabilities([kind]).allows(wanted)
    assert not ringfence.Capabilities([capability.SysGpu("any")]).allows(wanted)
    assert not ringfence.Capabilities().allows(wanted)
