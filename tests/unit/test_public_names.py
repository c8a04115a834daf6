"""The names that readers of the source documents know are where they look for them, and cost nothing until used."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest

import ringfence
from ringfence import capability
from ringfence.capability.form import KINDS
from ringfence.operation.brokered import FsRead
from ringfence.operation.form import from_json as read_operation
from ringfence.ports import ExecCtx
from ringfence.testing import orchestrator_over

KNOWN = (
    "SandboxManager", "ExecutionRequest", "SecurityMode", "RiskLevel", "UnifiedRiskPolicy", "RiskAssessment",
    "AgentWorkspace", "PathTraversalError", "SandboxType", "Grant", "Budget", "Profile", "ProfileBuilder", "Executor",
    "Capability", "Capabilities", "Manifest", "PolicySnapshot", "PolicyGuard", "BudgetMeter", "Orchestrator",
    "SandboxConfig", "WorldInterface", "EvidenceSink", "Correlation", "DockerSimpleSandbox",
    "AIOSandboxPool", "AIOSandboxClient", "PoolConfig", "SessionState",
)  # fmt: skip
PARTS = (
    "authority.profile_builder",
    "budgets.port",
    "capability",
    "content.store",
    "errors",
    "evidence.bundle",
    "evidence.records",
    "evidence.replay",
    "evidence.verify",
    "executors.fs",
    "executors.tmp",
    "guard.policy_guard",
    "journal.journal",
    "metrics.recorder",
    "observe.observers",
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


class Cautious:
    """A builder of somebody else's making: whatever was granted, nothing but what is public."""

    def build(self, grant: ringfence.Grant, manifest: ringfence.Manifest, policy: ringfence.PolicySnapshot) -> Any:
        public = ringfence.Capabilities([capability.FsRead("inputs/public")])
        return ringfence.ProfileBuilder().build(replace(grant, capabilities=public), manifest, policy)


@dataclass
class Files:
    """An executor that reads nothing, and remembers what it was asked for."""

    asked: list[str] = field(default_factory=list)

    def capability_domain(self) -> str:
        return "fs"

    async def execute(self, ctx: ExecCtx, operation: FsRead) -> ringfence.BrokerOutcome:
        self.asked.append(operation.path)
        return ringfence.BrokerOutcome(operation.kind, exec_id=ctx.exec_id)


async def test_a_builder_of_ones_own_decides_what_a_call_may_do() -> None:
    policy = ringfence.load_policy(b"policies: {tools: {file_read: {allowed_paths: [inputs]}}}\n")
    allowed = ringfence.Capabilities([capability.FsRead("inputs")])
    grant = ringfence.Grant("t", "s", "file_read", "c", allowed, 1 << 52, ringfence.Budget(), "f")
    manifest = ringfence.Manifest("file_read", capabilities=allowed)
    files = Files()
    orchestrator = orchestrator_over(files)
    profile = Cautious().build(grant, manifest, policy)
    await orchestrator.run(FsRead("inputs/public/a"), profile)
    with pytest.raises(ringfence.Denied):
        await orchestrator.run(FsRead("inputs/a"), profile)
    await orchestrator.run(FsRead("inputs/a"), ringfence.ProfileBuilder().build(grant, manifest, policy))
    assert files.asked == ["inputs/public/a", "inputs/a"]


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
