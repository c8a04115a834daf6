"""Ringfence: run what a model wrote, in real isolation, with proof of what happened.

Names are imported on first use, so that `import ringfence` and the command stay quick to start.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ringfence.authority.grant import Grant
    from ringfence.authority.levels import IsolationLevel, NetMode, RiskLevel, SideEffect
    from ringfence.authority.manifest import Manifest
    from ringfence.authority.manifest_reader import load_manifest
    from ringfence.authority.policy import PolicySnapshot
    from ringfence.authority.policy_reader import load_policy
    from ringfence.authority.policy_source import PolicySource
    from ringfence.authority.profile import Isolation, Profile, SecurityMode
    from ringfence.authority.profile_builder import ProfileBuilder
    from ringfence.browser_router import BrowserAction, BrowserRouter
    from ringfence.budgets.port import BudgetMeter
    from ringfence.capability.budget import Budget
    from ringfence.capability.capabilities import Capabilities
    from ringfence.capability.kind import Kind as Capability
    from ringfence.capability.limits import Limits
    from ringfence.config import SandboxConfig
    from ringfence.errors import (
        CapabilityBlocked,
        Denied,
        ExecutionFailed,
        InternalError,
        InvalidRequest,
        IsolationUnavailable,
        PathTraversalError,
        QuotaExceeded,
        RingfenceError,
        RuntimeMissing,
        TimedOut,
        ToolDenied,
        Unavailable,
    )
    from ringfence.evidence.correlation import Correlation
    from ringfence.facade import SandboxManager
    from ringfence.guard.consent import Consent
    from ringfence.guard.policy_guard import PolicyGuard
    from ringfence.guard.verdict import Verdict
    from ringfence.isolation.aio.binding import PoolConfig, SessionState
    from ringfence.isolation.aio.client import AIOSandboxClient
    from ringfence.isolation.aio.pool import AIOSandboxPool
    from ringfence.isolation.aio.starting import CommandStarter
    from ringfence.oneline import fetch_url, perform, run
    from ringfence.operation import Language
    from ringfence.orchestrator.pipeline import Orchestrator
    from ringfence.outcome import Artifact, BrokerOutcome, ExecutionResult, Layers, SandboxType, Status
    from ringfence.ports import EvidenceSink, Executor
    from ringfence.processes.process import Process
    from ringfence.processes.running import ProcessInfo, ProcessOutput
    from ringfence.requests import ExecutionRequest
    from ringfence.risk.assessment import RiskAssessment
    from ringfence.risk.policy import UnifiedRiskPolicy
    from ringfence.simple import DockerSimpleSandbox
    from ringfence.skills.provider import SkillsProvider
    from ringfence.skills.skill import Skill, SkillOutcome
    from ringfence.version import __version__
    from ringfence.workspaces.agent import AgentWorkspace
    from ringfence.world import RunCodeTool, ToolCall, WorldInterface, act_node

_HOME_OF = {
    "Grant": "authority.grant",
    "IsolationLevel": "authority.levels",
    "NetMode": "authority.levels",
    "RiskLevel": "authority.levels",
    "SideEffect": "authority.levels",
    "Manifest": "authority.manifest",
    "load_manifest": "authority.manifest_reader",
    "PolicySnapshot": "authority.policy",
    "load_policy": "authority.policy_reader",
    "PolicySource": "authority.policy_source",
    "Isolation": "authority.profile",
    "Profile": "authority.profile",
    "SecurityMode": "authority.profile",
    "ProfileBuilder": "authority.profile_builder",
    "BrowserAction": "browser_router",
    "BrowserRouter": "browser_router",
    "BudgetMeter": "budgets.port",
    "Budget": "capability.budget",
    "Capabilities": "capability.capabilities",
    "Capability": "capability.kind:Kind",
    "Limits": "capability.limits",
    "SandboxConfig": "config",
    "CapabilityBlocked": "errors",
    "Denied": "errors",
    "ExecutionFailed": "errors",
    "InternalError": "errors",
    "InvalidRequest": "errors",
    "IsolationUnavailable": "errors",
    "PathTraversalError": "errors",
    "QuotaExceeded": "errors",
    "RingfenceError": "errors",
    "RuntimeMissing": "errors",
    "TimedOut": "errors",
    "ToolDenied": "errors",
    "Unavailable": "errors",
    "Correlation": "evidence.correlation",
    "SandboxManager": "facade",
    "Consent": "guard.consent",
    "PolicyGuard": "guard.policy_guard",
    "Verdict": "guard.verdict",
    "PoolConfig": "isolation.aio.binding",
    "SessionState": "isolation.aio.binding",
    "AIOSandboxClient": "isolation.aio.client",
    "AIOSandboxPool": "isolation.aio.pool",
    "CommandStarter": "isolation.aio.starting",
    "Language": "operation",
    "fetch_url": "oneline",
    "perform": "oneline",
    "run": "oneline",
    "Orchestrator": "orchestrator.pipeline",
    "Artifact": "outcome",
    "BrokerOutcome": "outcome",
    "ExecutionResult": "outcome",
    "Layers": "outcome",
    "SandboxType": "outcome",
    "Status": "outcome",
    "EvidenceSink": "ports",
    "Process": "processes.process",
    "ProcessInfo": "processes.running",
    "ProcessOutput": "processes.running",
    "Executor": "ports",
    "DockerSimpleSandbox": "simple",
    "ExecutionRequest": "requests",
    "RiskAssessment": "risk.assessment",
    "UnifiedRiskPolicy": "risk.policy",
    "__version__": "version",
    "AgentWorkspace": "workspaces.agent",
    "Skill": "skills.skill",
    "SkillOutcome": "skills.skill",
    "SkillsProvider": "skills.provider",
    "RunCodeTool": "world",
    "ToolCall": "world",
    "WorldInterface": "world",
    "act_node": "world",
}

__all__ = [
    "AIOSandboxClient",
    "AIOSandboxPool",
    "AgentWorkspace",
    "Artifact",
    "BrokerOutcome",
    "BrowserAction",
    "BrowserRouter",
    "Budget",
    "BudgetMeter",
    "Capabilities",
    "Capability",
    "CapabilityBlocked",
    "CommandStarter",
    "Consent",
    "Correlation",
    "Denied",
    "DockerSimpleSandbox",
    "EvidenceSink",
    "ExecutionFailed",
    "ExecutionRequest",
    "ExecutionResult",
    "Executor",
    "Grant",
    "InternalError",
    "InvalidRequest",
    "Isolation",
    "IsolationLevel",
    "IsolationUnavailable",
    "Language",
    "Layers",
    "Limits",
    "Manifest",
    "NetMode",
    "Orchestrator",
    "PathTraversalError",
    "PolicyGuard",
    "PolicySnapshot",
    "PolicySource",
    "PoolConfig",
    "Process",
    "ProcessInfo",
    "ProcessOutput",
    "Profile",
    "ProfileBuilder",
    "QuotaExceeded",
    "RingfenceError",
    "RiskAssessment",
    "RiskLevel",
    "RunCodeTool",
    "RuntimeMissing",
    "SandboxConfig",
    "SandboxManager",
    "SandboxType",
    "SecurityMode",
    "SessionState",
    "SideEffect",
    "Skill",
    "SkillOutcome",
    "SkillsProvider",
    "Status",
    "TimedOut",
    "ToolCall",
    "ToolDenied",
    "Unavailable",
    "UnifiedRiskPolicy",
    "Verdict",
    "WorldInterface",
    "__version__",
    "act_node",
    "fetch_url",
    "load_manifest",
    "load_policy",
    "perform",
    "run",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'ringfence' has no attribute {name!r}")
    module, _, own_name = home.partition(":")
    value = getattr(import_module(f"ringfence.{module}"), own_name or name)
    globals()[name] = value
    return value
