"""Ringfence: run what a model wrote, in real isolation, with proof of what happened.

Names are imported on first use, so that `import ringfence` and the command stay quick to start.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ringfence.authority.profile import Isolation, Profile, SecurityMode
    from ringfence.capability.limits import Limits
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
    from ringfence.facade import ExecutionRequest, SandboxManager, run
    from ringfence.operation import Language
    from ringfence.outcome import Artifact, Budget, ExecutionResult, Layers, SandboxType, Status
    from ringfence.workspaces.agent import AgentWorkspace

__version__ = "0.1.0"

_HOME_OF = {
    "Isolation": "authority.profile",
    "Profile": "authority.profile",
    "SecurityMode": "authority.profile",
    "Limits": "capability.limits",
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
    "ExecutionRequest": "facade",
    "SandboxManager": "facade",
    "run": "facade",
    "Language": "operation",
    "Artifact": "outcome",
    "Budget": "outcome",
    "ExecutionResult": "outcome",
    "Layers": "outcome",
    "SandboxType": "outcome",
    "Status": "outcome",
    "AgentWorkspace": "workspaces.agent",
}

__all__ = [
    "AgentWorkspace",
    "Artifact",
    "Budget",
    "CapabilityBlocked",
    "Denied",
    "ExecutionFailed",
    "ExecutionRequest",
    "ExecutionResult",
    "InternalError",
    "InvalidRequest",
    "Isolation",
    "IsolationUnavailable",
    "Language",
    "Layers",
    "Limits",
    "PathTraversalError",
    "Profile",
    "QuotaExceeded",
    "RingfenceError",
    "RuntimeMissing",
    "SandboxManager",
    "SandboxType",
    "SecurityMode",
    "Status",
    "TimedOut",
    "ToolDenied",
    "Unavailable",
    "run",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'ringfence' has no attribute {name!r}")
    value = getattr(import_module(f"ringfence.{home}"), name)
    globals()[name] = value
    return value
