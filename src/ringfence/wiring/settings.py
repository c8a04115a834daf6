"""What an engine is put together from; parsed once, at the edge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ringfence.authority.profile import Isolation
from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass, field
from ringfence.egress.settings import NetSettings
from ringfence.isolation.pool.decide import PoolPolicy

if TYPE_CHECKING:
    from ringfence.isolation.aio.pool import AIOSandboxPool


@dataclass(frozen=True, slots=True)
class Settings:
    """What a manager is made from; parsed once, at the edge."""

    home: Path
    isolation: Isolation = Isolation.AUTO
    limits: Limits = field(default_factory=Limits)
    pool: PoolPolicy = field(default_factory=PoolPolicy)
    packages: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    policy_file: Path | None = None
    switched_off: frozenset[str] = frozenset()
    """The domains whose executors are not to be there."""
    budget_service: str | None = None
    """Where the quota service is that counts instead of this home."""
    database: str | None = None
    """The PostgreSQL server that keeps evidence and budgets instead of a file in this home."""
    docker_url: str | None = None
    """Where the container engine listens, instead of where this home or the engine's command says."""
    aio_pool: AIOSandboxPool | None = None
    """Whose instances code runs in where `aio` is asked for; its owner starts and stops it."""
    workspace_root: Path | None = None
    """Where the files of projects lie instead of in this home."""

    net: NetSettings = field(default_factory=NetSettings)
    """How this host reaches other ones."""

    @property
    def files_home(self) -> Path:
        """The directory whose `workspace` holds the files of projects."""
        return self.workspace_root or self.home
