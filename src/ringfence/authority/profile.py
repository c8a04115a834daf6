"""The profile: what one run may do, after every authority has had its say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ringfence.authority.caller import LOCAL
from ringfence.authority.levels import ApprovalMode, Commit, IsolationLevel, NetMode, RiskLevel, SideEffect
from ringfence.authority.limit_names import nothing
from ringfence.capability.budget import INHERITED, Budget
from ringfence.capability.capabilities import NO_CAPABILITIES, Capabilities
from ringfence.capability.denials import NO_DENIALS, Denials
from ringfence.capability.limits import SYSTEM_CEILING, UNBOUNDED, Limits
from ringfence.dataclass import dataclass, field, fields

if TYPE_CHECKING:
    from ringfence.authority.grant import Grant
    from ringfence.authority.layers import Request
    from ringfence.authority.manifest import Manifest
    from ringfence.authority.policy import PolicySnapshot
    from ringfence.authority.rule import Rule
    from ringfence.authority.taint import TaintPolicy
    from ringfence.authority.whitelists import Mappings, Whitelists
    from ringfence.operation.form import Operation


class SecurityMode(StrEnum):
    """How much the declared risk may lower the isolation."""

    PERMISSIVE = "permissive"
    STRICT = "strict"


class Isolation(StrEnum):
    """Which backend a caller asks for; `AUTO` is the strongest this machine gives by default."""

    AUTO = "auto"
    NATIVE = "native"
    BWRAP = "bwrap"
    DOCKER = "docker"
    GVISOR = "gvisor"
    AIO = "aio"


@dataclass(frozen=True, slots=True)
class Sources:
    """Whose words a profile was made of: with them anybody can make it again, and see that it is the same."""

    policy: PolicySnapshot
    request: Request
    grant: Grant | None = None
    """The grant that was presented; one that was minted here follows from the policy."""
    manifest: Manifest | None = None
    """The manifest of the skill; that of a built-in tool follows from the policy."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The resolved bounds of one run; one that was made by nobody allows nothing but its limits."""

    limits: Limits = Limits()
    security_mode: SecurityMode = SecurityMode.STRICT
    isolation: Isolation = Isolation.AUTO
    require_cgroups: bool = False
    tenant: str = LOCAL
    subject_id: str = ""
    tool_name: str = ""
    call_id: str = ""
    role: str | None = None
    capabilities: Capabilities = NO_CAPABILITIES
    denials: Denials = NO_DENIALS
    safety: RiskLevel = RiskLevel.HIGH
    side_effects: frozenset[SideEffect] = frozenset()
    net_mode: NetMode = NetMode.NONE
    isolation_floor: IsolationLevel = IsolationLevel.OS
    critical_isolation: IsolationLevel = IsolationLevel.CONTAINER
    """The least that critical code gets in strict mode."""
    mime_allow: frozenset[str] | None = None
    env_allow: frozenset[str] | None = None
    """Names of variables, perhaps with `*` at the end; nobody said anything means any."""
    declared: Capabilities = NO_CAPABILITIES
    """What the tool's manifest declares."""
    granted: Capabilities = NO_CAPABILITIES
    """What the grant gives."""
    mode: ApprovalMode = ApprovalMode.COWORK
    rules: tuple[Rule, ...] = ()
    allowed_commands: tuple[str, ...] | None = None
    output_inline: bool = True
    intercept_tls: bool = False
    """Whether what code in a box says over TLS is read by the host, and judged request by request."""
    commit: Commit = Commit.ALWAYS
    """What becomes of what a run changes in its project."""
    budget: Budget = INHERITED
    scope_budgets: Mapping[str, Mapping[str, Budget]] = field(default_factory=nothing)
    """What the policy gives each tenant, user or session, by scope and name."""
    concurrency: int | None = None
    """How many calls of the tool may run at once for the tenant and role; nothing where nobody said so."""
    expires_at: int | None = None
    dangers: tuple[str, ...] = ()
    refusal: str | None = None
    clamped: tuple[str, ...] = ()
    manifest_version: str = ""
    policy_version_hash: str = ""
    profile_hash: str = ""
    grant_id: str = ""
    decision_key_fingerprint: str = ""
    sources: Sources | None = None
    taint: TaintPolicy | None = None
    """What holds once untrusted content was reached for; nothing where the policy has no such section."""
    lasting_secrets: frozenset[str] = frozenset()
    """The secrets that may be asked for once for a whole conversation; a person has to agree even so."""
    confined: bool = False
    """Whether what a run leaves is held against the capabilities: a skill writes where its manifest says so."""

    @property
    def timeout_ms(self) -> int:
        """The wall time in milliseconds."""
        return round(self.limits.wall_seconds * 1000)

    @property
    def side_effect(self) -> SideEffect:
        """The strongest of the side effects."""
        return max(self.side_effects, key=list(SideEffect).index, default=SideEffect.NONE)

    @property
    def whitelists(self) -> Whitelists:
        """The capabilities as lists."""
        from ringfence.authority.whitelists import whitelists  # for people, not for a run

        return whitelists(self.capabilities, self.mime_allow)

    @property
    def mappings(self) -> Mappings:
        """Where the files of an operation are, as it sees them itself."""
        from ringfence.authority.whitelists import Mappings

        return Mappings()

    def allows(self, operation: Operation) -> bool:
        """Whether `operation` is within the capabilities and on no deny list; the guard asks more than this."""
        return self.refusal_of(operation) is None

    def refusal_of(self, operation: Operation) -> str | None:
        """Return why `operation` is outside the profile, or nothing when it is within."""
        return self.refusal or self.denials.refusal(operation) or self.capabilities.refusal(operation)

    def keeps(self, area: str) -> Callable[[str], bool] | None:
        """Return what tells whether a file of `work` or `artifacts` may stay; nothing where all of them may."""
        from ringfence.capability.fs import FsWrite
        from ringfence.operation import brokered

        if not self.confined or (
            not self.denials.paths and self.capabilities.covers(Capabilities([FsWrite(f"{area}/**")]))
        ):
            return None
        return lambda path: self.allows(brokered.FsWrite(f"{area}/{path}"))

    def normal_form(self) -> dict[str, Any]:
        """Return everything that decides what may be done, and nothing about who asked or when."""
        return {
            "budget": self.budget.to_json(),
            "capabilities": self.capabilities.to_json(),
            "dangers": list(self.dangers),
            "denials": self.denials.to_json(),
            "allowed_commands": None if self.allowed_commands is None else list(self.allowed_commands),
            "env_allow": None if self.env_allow is None else sorted(self.env_allow),
            "mode": str(self.mode),
            "rules": [rule.id for rule in self.rules],
            "isolation": str(self.isolation),
            "isolation_floor": str(self.isolation_floor),
            "limits": _bounded(self.limits),
            "manifest_version": self.manifest_version,
            "mime_allow": None if self.mime_allow is None else sorted(self.mime_allow),
            "net_mode": str(self.net_mode),
            "output_inline": self.output_inline,
            "policy_version_hash": self.policy_version_hash,
            "refusal": self.refusal,
            "require_cgroups": self.require_cgroups,
            "role": self.role,
            "safety": str(self.safety),
            "security_mode": str(self.security_mode),
            "side_effects": sorted(self.side_effects),
            "tool_name": self.tool_name,
            # not where nobody asks: profiles from before there was such a question keep their hashes
            **({} if self.commit is Commit.ALWAYS else {"commit": str(self.commit)}),
            **({"intercept_tls": True} if self.intercept_tls else {}),
            **({} if self.taint is None else {"taint": self.taint.to_json()}),
            **({} if self._plain_critical else {"critical_isolation": str(self.critical_isolation)}),
        }

    @property
    def _plain_critical(self) -> bool:
        return self.critical_isolation is IsolationLevel.CONTAINER

    def to_json(self) -> dict[str, Any]:
        """Return all of it, as `ringfence policy explain` and evidence show it."""
        lists = self.whitelists
        return {
            **self.normal_form(),
            "tenant": self.tenant,
            "subject_id": self.subject_id,
            "call_id": self.call_id,
            "side_effect": str(self.side_effect),
            "timeout_ms": self.timeout_ms,
            "whitelists": {name: list(getattr(lists, name)) for name in (each.name for each in fields(lists))},
            "mappings": {"root_fs": self.mappings.root_fs, "tmp_dir": self.mappings.tmp_dir},
            "expires_at": self.expires_at,
            "clamped": list(self.clamped),
            "profile_hash": self.profile_hash,
        }


_LIMITS = tuple(each.name for each in fields(Limits))


def _bounded(limits: Limits) -> dict[str, float]:
    """Return every limit but those that hold nobody: what was recorded before there were such keeps its hash."""
    stated = {name: getattr(limits, name) for name in _LIMITS}
    return {
        name: value for name, value in stated.items() if name not in UNBOUNDED or value < getattr(SYSTEM_CEILING, name)
    }
