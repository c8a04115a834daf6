"""What every door of one service shares: the manager, the keys, the settings; opened together, closed together."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfence.authority.levels import NetMode
from ringfence.authority.profile import Isolation
from ringfence.clock import SystemClock
from ringfence.config import SandboxConfig
from ringfence.database.address import default_database, open_database
from ringfence.dataclass import dataclass, field
from ringfence.errors import InternalError
from ringfence.evidence.correlation import UNKNOWN, Correlation
from ringfence.facade import SandboxManager
from ringfence.finishing import all_finished
from ringfence.identifiers import TimeOrdered
from ringfence.service.calls import Calls
from ringfence.service.keys import ApiKeys
from ringfence.service.readers import Readers
from ringfence.service.stricter import NOTHING, Stricter
from ringfence.service.surroundings import files_root
from ringfence.service.tally import Tallies
from ringfence.skills.shelf import shelf_of

if TYPE_CHECKING:
    from ringfence.database.port import Database
    from ringfence.ports import Clock
    from ringfence.service.callers import Principal
    from ringfence.service.calls import GrantShown
    from ringfence.service.settings import ServiceSettings

_ids = TimeOrdered()


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(slots=True, kw_only=True)
class House:
    """One running service; routes find it with `door.house_of`."""

    manager: SandboxManager
    keys: ApiKeys
    settings: ServiceSettings
    home: Path
    database: Database
    clock: Clock
    execs: Any = None
    """The queue of executions, where there is one (`service.execs`)."""
    skills: Any = None
    """The skills that are offered, where there are any."""
    tallies: Tallies = field(default_factory=Tallies)
    readers: Readers = field(default_factory=Readers)
    draining: bool = False
    """Whether no new work is taken any more."""
    opened: bool = True
    under_way: int = 0
    """How many requests that change something are being answered."""
    idle: asyncio.Event = field(default_factory=_set_event)
    calls: Calls = field(default_factory=Calls)
    requests: Counter[str] = field(default_factory=Counter)
    """How many requests of each tenant are being answered, streams and terminals among them."""
    bodies: Counter[str] = field(default_factory=Counter)
    """How many bytes of requests that are not answered yet each tenant has here."""
    looked_at: float = float("-inf")
    """When the disk was last looked at for whoever has no key; see `health.is_well`."""
    was_writable: bool = True

    @property
    def files_home(self) -> Path:
        """The directory whose `workspace` holds the files of projects."""
        return files_root(self.settings) or self.home

    def manager_for(
        self,
        principal: Principal,
        project_id: str | None = None,
        correlation: Correlation = UNKNOWN,
        stricter: Stricter = NOTHING,
    ) -> SandboxManager:
        """Return a manager that acts for the caller, in one of its projects, and shares the engine of the house.

        Raises:
            Denied: The request asks for another role than the caller's, or for less caution than the house has.
        """
        stricter.require_role_of(principal)
        return self.manager.acting_for(
            caller=principal.caller,
            session_id=project_id,
            correlation=correlation,
            role=principal.role,
            isolation=stricter.isolation,
            require_cgroups=stricter.require_cgroups,
        )

    async def manager_under(
        self,
        principal: Principal,
        shown: GrantShown | None,
        project_id: str | None,
        correlation: Correlation,
        stricter: Stricter = NOTHING,
    ) -> SandboxManager:
        """Return a manager that acts for the caller, under the grant that came with the request, if one did.

        Raises:
            Denied: The call was begun under another grant.
            Unavailable: Grants cannot be checked here.
        """
        if shown is None:
            return self.manager_for(principal, project_id, correlation, stricter)
        governed = await self.calls.manager(self.manager_for(principal, stricter=stricter), principal, shown)
        return governed.acting_for(session_id=project_id, correlation=correlation)

    async def note(self, kind: str, members: Mapping[str, Any]) -> None:
        """Write down what was done to the rules themselves.

        Raises:
            Unavailable: It cannot be written down.
        """
        journal = self.manager.engine.journal
        if journal is None:
            raise InternalError("this engine keeps no evidence")
        known = {"envelope_id": _ids.new("ev"), "time_ms": self.clock.now_ms(), "tenant": "local"}
        await journal.record({"type": kind, **known, **members})

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a request that changes something, while it is answered."""
        self.under_way += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.under_way -= 1
            if not self.under_way:
                self.idle.set()

    def begin_draining(self) -> None:
        """Take no new work from now on."""
        self.draining = True

    async def start(self) -> None:
        """Begin to fill the pool, open the queue, and take over what a service that is gone had promised.

        Raises:
            Unavailable: The database cannot be used.
        """
        from ringfence.service.exec_opening import open_execs

        _ = self.manager.engine
        if self.execs is None:
            self.execs = open_execs(self)
        await self.execs.start()

    async def drain(self) -> None:
        """Take nothing new; let what runs end within `drain_seconds`, and cancel the rest."""
        self.begin_draining()
        ending = asyncio.ensure_future(self.execs.close()) if self.execs is not None else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_seconds):
                await self.idle.wait()
        if ending is not None:
            await ending

    async def close(self) -> None:
        """Close the engine with its journal, and the database."""
        self.begin_draining()
        if self.opened:
            self.opened = False
            await all_finished(
                self.calls.close,
                partial(asyncio.to_thread, self.readers.close),
                self.manager.cleanup,
                partial(asyncio.to_thread, self.database.close),
            )


def open_house(home: Path, settings: ServiceSettings, *, execs: Any = None, skills: Any = None) -> House:
    """Put a house together; nothing runs before the first request.

    Raises:
        InvalidRequest: The policy is broken or missing, or the database's address is none.
    """
    settings.require_rules_for_network()
    url = settings.database or default_database()
    database, clock = open_database(home, url), SystemClock()
    directories = (settings.skills,) if settings.skills else ()
    manager = SandboxManager(
        config=SandboxConfig(
            home=home,
            policy_file=settings.policy,
            database=url,
            pool_size=settings.pool_size,
            isolation=settings.isolation or Isolation.AUTO,
            workspace_root=files_root(settings),
            skills=directories,
            ceilings=settings.ceilings(),
            net_ceiling=None if settings.network is None else NetMode(settings.network),
        )
    )
    return House(
        manager=manager,
        keys=ApiKeys(database, clock, home, shared=url is not None),
        settings=settings,
        home=home,
        database=database,
        clock=clock,
        execs=execs,
        skills=skills if skills is not None else shelf_of(home, tuple(map(Path, directories))),
    )
