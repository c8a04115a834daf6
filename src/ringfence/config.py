"""How a manager runs things, as one value that can be kept, compared and passed on; the only place of its defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ringfence.authority import units
from ringfence.authority.levels import NetMode
from ringfence.authority.profile import Isolation, SecurityMode
from ringfence.capability.limits import Limits, as_limits
from ringfence.dataclass import dataclass, field, replace
from ringfence.egress.settings import NetSettings
from ringfence.errors import InvalidRequest

if TYPE_CHECKING:
    from ringfence.isolation.aio.pool import AIOSandboxPool

_OF_THE_HOST: Final = (
    *("home", "policy_file", "executors", "budget_service", "database", "docker_url", "aio_pool", "pool_size"),
)


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
    docker_url: str | None = None
    aio_pool: AIOSandboxPool | None = None
    """Whose instances code runs in, where nobody names another kind of box."""
    skills: Iterable[str | Path] = ()
    workspace_root: str | Path | None = None
    net: NetSettings = field(default_factory=NetSettings)
    ceilings: Mapping[str, float] | None = None
    """What no run gets more of, by the names of `Limits`, whatever a policy says."""
    net_ceiling: NetMode | None = None

    def asked_limits(self) -> tuple[Limits, frozenset[str]]:
        """Return the limits, and the names of those that were asked for in a policy's words.

        Raises:
            InvalidRequest: A time, a size or a number of processors is not written as one.
        """
        asked: dict[str, float] = {}
        if self.max_execution_time is not None:
            asked["wall_seconds"] = units.seconds(self.max_execution_time)
        if self.max_memory is not None:
            asked["memory_bytes"] = units.size(self.max_memory)
        if self.max_cpu is not None:
            if isinstance(self.max_cpu, bool) or not isinstance(self.max_cpu, int | float):
                raise InvalidRequest(f"max_cpu must be a number, not {self.max_cpu!r}", reason="invalid_limit")
            asked["cpus"] = float(self.max_cpu)
        limits = Limits() if self.limits is None else as_limits(self.limits)
        return (replace(limits, **asked) if asked else limits), frozenset(asked)  # type: ignore[arg-type]

    def kind_of_box(self) -> Isolation | str:
        """Return which kind of box was asked for: who gives a pool of AIO instances asks for those."""
        is_said = self.aio_pool is None or self.isolation != Isolation.AUTO
        return self.isolation if is_said else Isolation.AIO

    def refuse_host_settings(self) -> None:
        """Refuse what only whoever starts a service can say, where the manager is to ask a service.

        Raises:
            InvalidRequest: Naming the first of it.
        """
        for name in _OF_THE_HOST:
            if getattr(self, name) is not None:
                raise of_the_service(name)

    def with_limits(self, limits: Limits | None) -> SandboxConfig:
        """Return it with all of these limits instead of its own; `None` leaves them."""
        if limits is None:
            return self
        return replace(self, limits=limits, max_execution_time=None, max_memory=None, max_cpu=None)


def of_the_service(what: str) -> InvalidRequest:
    """Return the error for what a manager with an address cannot be asked for."""
    return InvalidRequest(
        f"{what} is the service's own, and cannot be had or set through its address",
        reason="of_the_service",
        fix="leave it out, or leave out url=",
    )
