"""The composition root: the only package that knows every class."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ringfence.authority.caller import Caller
from ringfence.authority.credential import ProposedCall
from ringfence.authority.grant import Grant
from ringfence.authority.local import LocalAuthority
from ringfence.authority.policy import BUILT_IN, PolicySnapshot
from ringfence.clock import SystemClock
from ringfence.database.address import default_database as default_database
from ringfence.database.address import open_database
from ringfence.database.sqlite import DATABASE_NAME, SqliteDatabase
from ringfence.dataclass import dataclass, replace
from ringfence.errors import InternalError, RingfenceError
from ringfence.executors.cells import CodeOrCell
from ringfence.executors.code import CodeExecutor
from ringfence.grants.issuer import LocalIssuer
from ringfence.guard.policy_guard import PolicyGuard
from ringfence.identifiers import TimeOrdered
from ringfence.isolation.pool.pools import Pools
from ringfence.journal.journal import Journal
from ringfence.journal.noted import Noted
from ringfence.journal.room import require_room
from ringfence.orchestrator.pipeline import Executors, Orchestrator
from ringfence.ports import Clock, Taints
from ringfence.stores.guests import Guests
from ringfence.stores.keepsakes import Keepsakes
from ringfence.wiring import box
from ringfence.wiring.box import build_box as build_box
from ringfence.wiring.box import registry_of
from ringfence.wiring.network import net_settings
from ringfence.wiring.settings import Settings as Settings
from ringfence.workspaces.home import default_home as default_home

if TYPE_CHECKING:
    from ringfence.audience import Audience
    from ringfence.browser.port import Browsers
    from ringfence.budgets.admission import Admission
    from ringfence.budgets.port import BudgetMeter
    from ringfence.content import ContentStore
    from ringfence.database.port import Database
    from ringfence.executors.browser import BrowserExecutor
    from ringfence.executors.fs import FsExecutor
    from ringfence.executors.net import NetExecutor
    from ringfence.executors.proc import ProcExecutor
    from ringfence.executors.proposals import ProposalExecutor
    from ringfence.executors.tmp import TmpBroker, TmpExecutor
    from ringfence.executors.ways_out import WaysOut
    from ringfence.executors.workspace import WorkspaceExecutor
    from ringfence.grants.door import GrantDoor
    from ringfence.journal.signer import Signer
    from ringfence.processes.registry import Registry
    from ringfence.risk.assessment import RiskAssessment
    from ringfence.risk.policy import UnifiedRiskPolicy
    from ringfence.stores.troubles import Troubles

DOMAINS = ("code", "fs", "workspace", "proposals", "tmp", "proc", "net", "browser")
"""What can be switched off."""
WATCHED_BY = ("RINGFENCE_OBSERVE", "RINGFENCE_WEBHOOK", "RINGFENCE_CHECKPOINT_COPIES")
"""The variables that name somebody who watches."""
_Part = TypeVar("_Part")


class Once(Generic[_Part]):
    """A part that is made when it is first asked for, and once, whichever threads ask."""

    def __init__(self, make: Callable[[], _Part]) -> None:
        """`make` is called at most once, unless it fails."""
        self._make = make
        self._lock = Lock()
        self.made: _Part | None = None

    def __call__(self) -> _Part:
        """Return the part."""
        with self._lock:
            if self.made is None:
                self.made = self._make()
            return self.made


@dataclass(frozen=True, slots=True)
class Engine:
    """A working core: who allows, the pipeline, and the pool behind it."""

    orchestrator: Orchestrator
    pools: Pools
    authority: LocalAuthority
    temporary: Once[TmpBroker] | None = None
    grants: Once[GrantDoor] | None = None
    journal: Journal | None = None
    background: Once[Registry] | None = None
    ways_out: Once[WaysOut] | None = None
    browsers: Once[Browsers] | None = None
    guests: Guests | None = None

    def processes(self) -> Registry:
        """Return the processes that run in the background.

        Raises:
            InternalError: This engine was put together without.
        """
        if self.background is None:
            raise InternalError("this engine keeps no processes")
        return self.background()

    async def end_processes(self, owner: object) -> None:
        """End the processes that `owner` started, and wait until nothing is left of them."""
        if self.background is not None and self.background.made is not None:
            await self.background.made.end_all(owner)

    def release(self, scope: str) -> None:
        """Give back the temporary space that was taken under `scope`; may block."""
        if self.temporary is not None and self.temporary.made is not None:
            self.temporary.made.release(scope)

    def close(self) -> None:
        """End everything; blocks until it is gone."""
        with ExitStack() as ending:
            # last of all, and so the first that is put here: nothing ends unrecorded
            if self.journal is not None:
                ending.callback(self.journal.close)
            ending.callback(self.pools.close)
            if self.temporary is not None and self.temporary.made is not None:
                ending.callback(self.temporary.made.close)
            if self.ways_out is not None and self.ways_out.made is not None:
                ending.callback(self.ways_out.made.close)
            # before the proxy that their pages go through
            if self.browsers is not None and self.browsers.made is not None:
                from ringfence.wiring.pages import end_browsers

                ending.callback(end_browsers, self.browsers.made)


def build(settings: Settings) -> Engine:
    """Put the parts together; nothing is started before the first run or the pool's first refill."""
    settings = replace(settings, net=net_settings(settings.home, os.environ, settings.net))
    clock = SystemClock()
    authority = make_authority(settings.policy_file, clock)  # first: a broken policy must not leave a pool behind
    database = open_database(settings.home, settings.database)
    journal = make_journal(settings, database, clock)
    ways_out = Once(lambda: box.make_ways_out(settings))
    troubles = Once(lambda: make_troubles(journal, clock))
    code, pools = build_box(settings, ways_out, lambda kind, error: troubles().failed(kind, error))
    temporary = Once(lambda: make_tmp_broker(settings.home))
    background = Once(lambda: make_registry(journal, clock))
    browsers = Once(lambda: make_browsers(ways_out()))
    executors = {
        domain: executor
        for domain, executor in make_executors(settings, code, temporary, background, browsers).items()
        if domain.partition(".")[0] not in settings.switched_off
    }
    service = settings.budget_service
    admission = Once(lambda: make_admission(make_meter(database) if service is None else make_remote_meter(service)))
    guests = Guests(Keepsakes(settings.files_home, content_store_of(settings.home)))
    orchestrator = Orchestrator(
        executors,
        TimeOrdered(),
        PolicyGuard(assess),
        clock,
        admission,
        journal,
        keep=guests,
        always_metered=service is not None,
        taints=Once(lambda: make_taints(database)),
    )
    door = Once(lambda: make_grant_door(settings.home, database, clock))
    return Engine(orchestrator, pools, authority, temporary, door, journal, background, ways_out, browsers, guests)


def make_browsers(ways_out: WaysOut) -> Browsers:
    """Return the browsers of an engine, whose pages go through its proxy."""
    from ringfence.wiring import pages  # not at the top: most engines show none

    return pages.make_browsers(ways_out)


def content_store_of(home: Path) -> Callable[[], ContentStore | None]:
    """Return what finds out, once, whether content is kept in this home."""

    def find() -> tuple[ContentStore | None]:
        # a home where nobody ever switched it on has no such directory
        if not (home / "content").is_dir():
            return (None,)
        from ringfence.content import ContentStore

        return (ContentStore.if_switched_on(home),)

    found = Once(find)
    return lambda: found()[0]


def make_journal(settings: Settings, database: Database, clock: Clock) -> Journal:
    """Return the journal of this process, in `database`, signed with the key of this home."""
    home, elsewhere = settings.home, settings.database is not None

    def make_signer() -> Signer:
        from ringfence.journal.signer import Signer  # not at the top: a log is signed now and then

        return Signer.in_home(home)

    audience = make_audience(home, database)
    told: dict[str, Any] = {}
    if audience is not None:
        told = {"on_written": audience.written, "on_checkpoint": audience.checkpointed, "on_close": audience.close}
    return Journal(
        database,
        Once(make_signer),
        clock,
        TimeOrdered(),
        room=(lambda: None) if elsewhere else (lambda: require_room(home)),
        in_thread=elsewhere,
        ends_on_disk=waits_for_disk(home),
        noted=Noted(home / DATABASE_NAME, database.could_write) if isinstance(database, SqliteDatabase) else None,
        **told,
    )


def waits_for_disk(home: Path) -> bool:
    """Return whether results wait until their end is on the disk: `wait_for_disk` under `[evidence]` of `config.toml`.

    Raises:
        InvalidRequest: It is not written so.
    """
    if not (home / "config.toml").exists():
        return False
    from ringfence.workspaces import home_config  # not at the top: most homes have no such file

    section = home_config.section_of(home, "evidence")
    if unknown := ", ".join(section.keys() - {"wait_for_disk"}):
        raise home_config.wrong(f"evidence.{unknown}", "is no setting of this section, which has wait_for_disk")
    waits = section.get("wait_for_disk", False)
    if not isinstance(waits, bool):
        raise home_config.wrong("evidence.wait_for_disk", f"must be true or false, not {waits!r}")
    return waits


def make_audience(home: Path, database: Database) -> Audience | None:
    """Return those who watch, or nobody where neither the home nor the environment names any.

    Raises:
        InvalidRequest: What they say is not written as it should be.
    """
    if not any(os.environ.get(name) for name in WATCHED_BY) and not (home / "config.toml").exists():
        return None  # without importing what most processes do not need
    from ringfence.audience import Audience
    from ringfence.observe.home import settings_of
    from ringfence.version import __version__

    settings = settings_of(home, os.environ)
    if not settings.active_sinks and not settings.active_checkpoints:
        return None
    return Audience(home, database, settings, __version__)


def make_taints(database: Database) -> Taints:
    """Return the marks of whoever reached for untrusted content."""
    from ringfence.journal.taints import TaintsInDatabase  # not at the top: most policies mark nobody

    return TaintsInDatabase(database)


def make_troubles(journal: Journal, clock: Clock) -> Troubles:
    """Return what writes down that boxes cannot be had."""
    from ringfence.stores.troubles import Troubles  # not at the top: most engines have none

    return Troubles(journal, TimeOrdered(), clock)


def make_registry(journal: Journal, clock: Clock) -> Registry:
    """Return what keeps the processes of an engine."""
    from ringfence.processes.registry import Registry  # not at the top: most engines run none

    return Registry(journal, TimeOrdered(), clock)


def make_grant_door(home: Path, database: Database, clock: Clock) -> GrantDoor:
    """Return where grants signed with the keys of this home are presented.

    Raises:
        Unavailable: The token library is not installed.
        InvalidRequest: The name of the deployment is not written as it should be.
    """
    from ringfence.grants.biscuit import BiscuitCodec
    from ringfence.grants.deployment import audience_of
    from ringfence.grants.door import GrantDoor
    from ringfence.grants.keyring import KeyRing
    from ringfence.grants.revocations import RevocationFile
    from ringfence.grants.verifier import GrantVerifier
    from ringfence.journal.calls import CallsInDatabase

    codec, calls, revocations = BiscuitCodec(), CallsInDatabase(database, clock), RevocationFile(home, clock)
    keys = KeyRing(home, codec, clock, revocations)
    verifier = GrantVerifier(codec=codec, find_key=keys.find, revocations=revocations, calls=calls, clock=clock)
    return GrantDoor(verifier, calls, audience_of(home))


def make_executors(
    settings: Settings,
    code: CodeExecutor,
    temporary: Once[TmpBroker],
    processes: Once[Registry],
    browsers: Callable[[], Browsers],
) -> Executors:
    """Return what carries out each domain; what is not for code is imported when it is first asked for."""
    home = settings.files_home

    def make_fs() -> FsExecutor:
        from ringfence.executors.fs import FsExecutor

        return FsExecutor(home, lambda scope: {} if temporary.made is None else temporary.made.areas(scope))

    def make_tmp() -> TmpExecutor:
        from ringfence.executors.tmp import TmpExecutor

        return TmpExecutor(temporary)

    def make_proc() -> ProcExecutor:
        from ringfence.executors.proc import ProcExecutor

        return ProcExecutor(code)

    def make_proposals() -> ProposalExecutor:
        from ringfence.executors.proposals import ProposalExecutor

        return ProposalExecutor(home)

    def make_workspace() -> WorkspaceExecutor:
        from ringfence.executors.workspace import WorkspaceExecutor

        return WorkspaceExecutor(home, TimeOrdered(), SystemClock(), config_home=settings.home)

    def make_net() -> NetExecutor:
        from ringfence.executors.net import NetExecutor

        return NetExecutor(settings.net, lambda: registry_of(settings.home))

    def make_browser() -> BrowserExecutor:
        from ringfence.wiring.pages import make_browser_executor

        return make_browser_executor(settings, browsers)

    code_or_cell = CodeOrCell(code, processes)
    return {
        "code": lambda: code_or_cell,
        "fs": Once(make_fs),
        "workspace": Once(make_workspace),
        "proposals": Once(make_proposals),
        "tmp": Once(make_tmp),
        "proc": Once(make_proc),
        "net.http": Once(make_net),
        "browser": Once(make_browser),
    }


def make_tmp_broker(home: Path) -> TmpBroker:
    """Return what gives out temporary space on the disk of this home."""
    from ringfence.executors.tmp import TmpBroker

    return TmpBroker(home / "tmp")


def make_meter(database: Database) -> BudgetMeter:
    """Return the budgets that every process which shares `database` draws on."""
    from ringfence.budgets.sqlite import SqliteMeter

    return SqliteMeter(database)


def default_budget_service() -> str | None:
    """Return the quota service that the environment names, if any."""
    return os.environ.get("RINGFENCE_BUDGET_SERVICE") or None


def make_remote_meter(url: str) -> BudgetMeter:
    """Return the budgets of a quota service; its token is in the environment, so that no setting shows it.

    Raises:
        InvalidRequest: `url` is neither https nor on this machine.
    """
    from ringfence.budgets.remote import RemoteMeter

    return RemoteMeter(url, token=os.environ.get("RINGFENCE_BUDGET_TOKEN") or None)


def make_admission(meter: BudgetMeter) -> Admission:
    """Return the way to `meter`."""
    from ringfence.budgets.admission import Admission

    return Admission(meter)


def assess(code: str, language: str) -> RiskAssessment:
    """Ask the static analysis how risky a program looks."""
    return _analysis().assess(code, language)


@cache
def _analysis() -> type[UnifiedRiskPolicy]:
    from ringfence.risk.policy import UnifiedRiskPolicy

    return UnifiedRiskPolicy


def make_authority(policy_file: Path | None, clock: Clock) -> LocalAuthority:
    """Return what gives calls of this process their profiles, under the policy of the file or the built-in one.

    Raises:
        InvalidRequest: The policy file is broken or cannot be read.
    """
    if policy_file is None:
        return authority_over(lambda: BUILT_IN, clock)
    from ringfence.authority.policy_source import PolicySource
    from ringfence.stores.policy_file import PolicyFile

    source = PolicySource(PolicyFile(policy_file), on_problem=_policy_stays)
    return authority_over(source.current, clock, lambda: source.problem)


def _policy_stays(problem: RingfenceError) -> None:
    import logging  # not at the top: most policies stay as they are

    fix = f" Fix: {problem.fix}" if problem.fix else ""
    logging.getLogger("ringfence.policy").warning(
        "%s %s: the policy in use stays: %s.%s", problem.code, problem.reason, problem, fix
    )


def authority_over(
    policy: Callable[[], PolicySnapshot], clock: Clock, problem: Callable[[], RingfenceError | None] = lambda: None
) -> LocalAuthority:
    """Return what gives calls their profiles under whatever policy holds at the moment, with grants of our own."""
    issuer = LocalIssuer(clock, TimeOrdered())

    def issue(snapshot: PolicySnapshot, tool: str, role: str | None, call_id: str, caller: Caller) -> Grant:
        call = ProposedCall(caller.tenant, caller.subject_id, tool, call_id)
        return issuer.grant(snapshot, call, role=role)

    return LocalAuthority(policy, issue, problem=problem)
