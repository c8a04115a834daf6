"""How two policies differ in what they allow: for every role and tool, what became wider and what narrower."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from ringfence.authority.catalogue import TOOLS
from ringfence.authority.limit_names import FIELDS
from ringfence.authority.policy import Policy, PolicySnapshot
from ringfence.authority.policy_keys import KEY_OF_LIMIT
from ringfence.authority.policy_view import PolicyView, lineage, tools_of
from ringfence.authority.taint import Outward, Reach, TaintPolicy
from ringfence.capability.budget import KINDS, Budget
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.denials import Denials
from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass


class Direction(StrEnum):
    """Which way a change goes; `CHANGED` is both ways, or neither."""

    WIDENED = "widened"
    NARROWED = "narrowed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that is no longer what it was, for one role (or callers without one) and one tool."""

    direction: Direction
    role: str | None
    tool: str
    setting: str
    before: Any
    after: Any

    def __str__(self) -> str:
        whose = f"{self.role or 'no role'}, {self.tool}"
        return f"{self.direction}: {whose}: {self.setting}: {_shown(self.before)} → {_shown(self.after)}"


def diff(before: PolicySnapshot, after: PolicySnapshot) -> list[Change]:
    """Return every change in what a call may do, the widened first."""
    order = list(Direction)
    changes = [
        change
        for role, tool in _calls(before.policy, after.policy)
        for change in _changes(before.view(tool, role), after.view(tool, role))
    ]
    changes += _whole(before.policy, after.policy)
    return sorted(changes, key=lambda change: (order.index(change.direction), change.role or "", change.tool))


def _calls(before: Policy, after: Policy) -> list[tuple[str | None, str]]:
    tools = sorted({*TOOLS, *before.tools, *after.tools})
    calls: list[tuple[str | None, str]] = [(None, tool) for tool in tools]
    for role in sorted({*before.roles, *after.roles}):
        named = {tool for policy in (before, after) for tool in tools_of(lineage(policy, role))}
        calls += [(role, tool) for tool in sorted(named)]
    return calls


def _changes(before: PolicyView, after: PolicyView) -> Iterator[Change]:
    def change(setting: str, old: Any, new: Any, wider: bool, narrower: bool) -> Change:
        direction = Direction.CHANGED if wider == narrower else Direction.WIDENED if wider else Direction.NARROWED
        return Change(direction, before.role, before.tool, setting, old, new)

    if before.refusal != after.refusal:
        yield change("access", before.refusal, after.refusal, after.refusal is None, before.refusal is None)
        if after.refusal or before.refusal:
            return
    for name in FIELDS:
        old, new = _limit(before, name), _limit(after, name)
        if old != new:
            yield change(KEY_OF_LIMIT[name], old, new, new > old, new < old)
    if before.capabilities != after.capabilities:
        for name in sorted({item.name for side in (before, after) for item in side.capabilities}):
            had, has = (Capabilities(side.capabilities.of(name)) for side in (before, after))
            if had != has:
                yield change(name, _texts(had), _texts(has), not had.covers(has), not has.covers(had))
    for name in Denials.__dataclass_fields__:
        lost, won = (getattr(side.denials, name) for side in (before, after))
        if lost != won:
            yield change(f"denied_{name}", tuple(sorted(lost)), tuple(sorted(won)), bool(lost - won), bool(won - lost))
    words = (("net_mode", 1), ("risk", -1), ("isolation", -1), ("critical_isolation", -1), ("commit", -1))
    for name, sense in words:
        was, now = getattr(before, name), getattr(after, name)
        if was != now:
            yield change(name, str(was), str(now), (now.rank - was.rank) * sense > 0, (now.rank - was.rank) * sense < 0)
    yield from _others(before, after, change)


def _others(before: PolicyView, after: PolicyView, change: Any) -> Iterator[Change]:
    if before.output_inline != after.output_inline:
        yield change(
            "output_inline", before.output_inline, after.output_inline, after.output_inline, before.output_inline
        )
    if before.require_cgroups != after.require_cgroups:
        yield change(
            "require_cgroups",
            *(before.require_cgroups, after.require_cgroups),
            *(before.require_cgroups, after.require_cgroups),
        )
    if before.intercept_tls != after.intercept_tls:
        # it opens hosts that are granted in part, and secrets of the host to code
        yield change(
            "intercept_tls", before.intercept_tls, after.intercept_tls, after.intercept_tls, before.intercept_tls
        )
    if before.env_allow != after.env_allow:
        had, has = before.env_allow, after.env_allow
        wider = has is None or (had is not None and bool(has - had))
        narrower = had is None or (has is not None and bool(had - has))
        yield change("env_allow", _names(had), _names(has), wider, narrower)
    if before.mime_allow != after.mime_allow:
        old, new = before.mime_allow, after.mime_allow
        wider = new is None or (old is not None and bool(new - old))
        narrower = old is None or (new is not None and bool(old - new))
        yield change("mime_allow", old and tuple(sorted(old)), new and tuple(sorted(new)), wider, narrower)
    lasted, last = (
        {item.resource() for item in side.capabilities.of("secret.use")} & side.lasting_secrets
        for side in (before, after)
    )
    if lasted != last:
        yield change(
            "lasting_secrets", tuple(sorted(lasted)), tuple(sorted(last)), bool(last - lasted), bool(lasted - last)
        )
    yield from _budget_changes(before.budget, after.budget, change)


def _budget_changes(before: Budget, after: Budget, change: Any) -> Iterator[Change]:
    for kind in KINDS:
        old, new = getattr(before, kind), getattr(after, kind)
        if old != new:
            met = getattr(before.meet(after), kind)
            yield change(f"budget.{kind}", old, new, met == old, met == new)


def _whole(before: Policy, after: Policy) -> Iterator[Change]:
    """Compare what is said for every call at once; rules are compared as a whole, because they may overlap."""
    yield from _taints(before.taint or TaintPolicy(), after.taint or TaintPolicy())
    for setting in ("mode", "security_mode", "rules", "approvals", "ceilings", "budgets"):
        old, new = getattr(before, setting), getattr(after, setting)
        if old != new:
            yield Change(Direction.CHANGED, None, "every tool", setting, old, new)


def _taints(before: TaintPolicy, after: TaintPolicy) -> Iterator[Change]:
    for use in Outward:
        old, new = (side.about((use,))[1] for side in (before, after))
        if old is not new:
            direction = Direction.WIDENED if new < old else Direction.NARROWED
            yield Change(direction, None, "every tool", f"taint.{use}", str(old), str(new))
    if before.reach is not after.reach:
        order = list(Reach)
        wider = order.index(after.reach) < order.index(before.reach)
        direction = Direction.WIDENED if wider else Direction.NARROWED
        yield Change(direction, None, "every tool", "taint.reach", str(before.reach), str(after.reach))


def _limit(view: PolicyView, name: str) -> float:
    value: float = view.limits.get(name, getattr(Limits(), name))
    return min(value, view.ceilings.get(name, value))


def _texts(capabilities: Capabilities) -> tuple[str, ...]:
    return tuple(map(str, capabilities))


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "—" if value is None else str(value)


def _names(allowed: frozenset[str] | None) -> tuple[str, ...]:
    return ("any",) if allowed is None else tuple(sorted(allowed))
