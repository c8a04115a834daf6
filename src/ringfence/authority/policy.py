"""The operator's policy: one document, immutable once read, known by the hash of its very bytes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ringfence.authority.catalogue import tool_name
from ringfence.authority.levels import ApprovalMode, Decision, NetMode
from ringfence.authority.limit_names import Stated, nothing
from ringfence.authority.profile import SecurityMode
from ringfence.capability.budget import INHERITED, Budget
from ringfence.capability.canonical import digest_of
from ringfence.capability.denials import NO_DENIALS, PRIVATE_NETWORKS, Denials
from ringfence.dataclass import dataclass, field

if TYPE_CHECKING:
    from ringfence.authority.finding import Finding
    from ringfence.authority.policy_view import PolicyView
    from ringfence.authority.rule import Rule
    from ringfence.authority.taint import TaintPolicy
    from ringfence.operation.form import Operation

EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
_PRIVATE: Final = Denials(networks=PRIVATE_NETWORKS)


@dataclass(frozen=True, slots=True)
class Scope:
    """What one place of the policy states; a key that is not in `values` says nothing."""

    where: str
    values: Mapping[str, Any] = field(default_factory=nothing)
    denials: Denials = NO_DENIALS
    lines: Mapping[str, int] = field(default_factory=nothing)


@dataclass(frozen=True, slots=True)
class Role:
    """An agent role: which tools it may be granted, and what it states for all or one of them."""

    name: str
    scope: Scope
    inherits: str | None = None
    tools: tuple[str, ...] | None = None
    by_tool: Mapping[str, Scope] = field(default_factory=nothing)
    lines: Mapping[str, int] = field(default_factory=nothing)
    """Where it names what it inherits, and each of its tools; its own line has no name."""

    def line(self, key: str = "") -> int:
        """Return the line of one of its names, or else its own."""
        return self.lines.get(key) or self.lines.get("", 0)


@dataclass(frozen=True, slots=True)
class Network:
    """The `network` section: what applies where no tool or role says more."""

    default: NetMode = NetMode.NONE
    allowed: tuple[str, ...] | None = None
    denials: Denials = _PRIVATE


@dataclass(frozen=True, slots=True)
class Secret:
    """Who may have a secret within reach; no tools or no roles listed means all of them."""

    name: str
    tools: tuple[str, ...] | None = None
    roles: tuple[str, ...] | None = None
    scope: str = "task"
    line: int = 0


@dataclass(frozen=True, slots=True)
class PolicyTest:
    """An operation and what the policy's author expects of it."""

    name: str
    tool: str
    operation: Operation
    expect: Decision
    role: str | None = None
    line: int = 0
    tainted: bool = False
    """Whether it is asked as in a session that has read untrusted content."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the document says, place by place; `policy_view` puts it together for one role and tool."""

    default: Scope = Scope("default")
    tools: Mapping[str, Scope] = field(default_factory=nothing)
    roles: Mapping[str, Role] = field(default_factory=nothing)
    network: Network = Network()
    mode: ApprovalMode = ApprovalMode.COWORK
    security_mode: SecurityMode | None = None
    ceilings: Stated = field(default_factory=nothing)
    ceiling_lines: Mapping[str, int] = field(default_factory=nothing, compare=False)
    budgets: Mapping[str, Mapping[str, Budget]] = field(default_factory=nothing)
    secrets: tuple[Secret, ...] = ()
    rules: tuple[Rule, ...] = ()
    approvals: tuple[Rule, ...] = ()
    tests: tuple[PolicyTest, ...] = ()
    taint: TaintPolicy | None = None
    """What holds after untrusted content; without the section nobody is marked."""

    def budget_of(self, scope: str, name: str = "*") -> Budget:
        """Return what the policy gives one tenant, space, user, session or the instance; `*` is everyone else."""
        by_name = self.budgets.get(scope, EMPTY)
        budget: Budget = by_name.get(name) or by_name.get("*") or INHERITED
        return budget


@dataclass(frozen=True)
class PolicySnapshot:
    """A policy as it was at one moment; a call keeps the one it began with."""

    policy: Policy
    text: bytes
    file: str = ""
    findings: tuple[Finding, ...] = ()
    _views: dict[tuple[str | None, str], PolicyView] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def policy_version_hash(self) -> str:
        """The hash of the very bytes the policy was read from."""
        return digest_of(self.text)

    def view(self, tool: str, role: str | None = None) -> PolicyView:
        """Return what the policy says about one tool for one role; found again by one lookup, however long it is."""
        tool = tool_name(tool)
        known = self._views.get((role, tool))
        if known is None:
            from ringfence.authority.policy_view import view

            known = view(self.policy, tool, role)
            # names come from callers: without a bound, inventing them would fill the memory
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            self._views[role, tool] = known
        return known


_MOST_VIEWS = 4096
BUILT_IN: Final = PolicySnapshot(Policy(), b"policies: {}\n", "built-in")
