"""How a manager runs things, as one value that can be kept, compared and passed on; the only place of its defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ringfence.authority import units
from ringfence.authority.profile import Isolation, SecurityMode
from ringfence.capability.limits import Limits
from ringfence.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """The arguments of `SandboxManager`; `SandboxManager(config=…)` takes from it what it is not told itself.

    `max_execution_time`, `max_memory` and `max_cpu` are written as in a policy (`30s`, `512MB`, `1.0`) and stand above
    the same ones of `limits`. What a policy or the system holds a run to cannot be widened here.
    """

    security_mode: SecurityMode | str = SecurityMode.STRICT
    isolation: Isolation | str = Isolation.AUTO
    pool_size: int | None = None
    packages: Iterable[str] = ()
    preload: Iterable[str] = ()
    limits: Limits | None = None
    max_execution_time: str | None = None
    max_memory: str | None = None
    max_cpu: float | None = None
    require_cgroups: bool = False
    home: str | Path | None = None
    policy_file: str | Path | None = None
    role: str | None = None
    executors: Mapping[str, bool] | None = None
    budget_service: str | None = None
    database: str | None = None
    workspace_root: str | Path | None = None
