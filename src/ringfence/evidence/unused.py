"""Which parts of a policy a period of evidence never needed, and which gave far more than was used (S1-153)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, cast

from ringfence.authority.catalogue import tool_name
from ringfence.authority.finding import Finding, Severity
from ringfence.authority.policy_view import lineage, specific_first
from ringfence.authority.rule import Rule, Subject
from ringfence.capability.browser import BrowserUse
from ringfence.capability.denials import PRIVATE_NETWORKS, Denials
from ringfence.capability.glob import matches_below
from ringfence.capability.host import covers
from ringfence.dataclass import dataclass, field
from ringfence.errors import InvalidRequest
from ringfence.evidence.described import CannotTell, Record, called_of, operation_of
from ringfence.evidence.replay import DECISIONS
from ringfence.operation.code import CodeRun, Language
from ringfence.operation.path import host_path, is_beneath, workspace_path
from ringfence.operation.target import target
from ringfence.risk.shell_programs import program_of

if TYPE_CHECKING:
    from ringfence.authority.policy import Policy, PolicySnapshot, Role, Scope
    from ringfence.operation.form import Operation

ENOUGH: Final = 20
"""Fewer uses than these say nothing about how much would have been enough."""
_FEW: Final = 3


@dataclass(frozen=True, slots=True)
class Usage:
    """What a policy's author may want to take away, and how much evidence says so."""

    decisions: int
    findings: tuple[Finding, ...]
    not_told: int = 0
    """Decisions whose operations the records do not tell: an entry that only they needed looks unused."""

    def lines(self) -> Iterator[str]:
        """Say it in plain words."""
        doubt = f", {self.not_told} of them about operations that cannot be told" if self.not_told else ""
        yield f"{self.decisions} decisions looked at{doubt}"
        yield from map(str, self.findings)
        if not self.findings:
            yield "every rule, role and entry was needed"


@dataclass(frozen=True, slots=True)
class _Touched:
    """What one recorded operation touches, taken apart once for all entries."""

    operation: Operation | None
    path: str = ""
    host: str = ""
    port: int = 0
    programs: frozenset[str] = frozenset()


@dataclass
class _Entry:
    where: str
    key: str
    shown: str
    line: int
    test: Callable[[_Touched], bool]
    uses: int = 0
    below: str | None = None
    hosts: set[str] = field(default_factory=set)

    def use(self, touched: _Touched) -> None:
        if not self.test(touched):
            return
        self.uses += 1
        if touched.path:
            self.below = touched.path if self.below is None else _shared(self.below, touched.path)
        if touched.host and len(self.hosts) <= _FEW:
            self.hosts.add(touched.host)


def unused_rules(policy: PolicySnapshot, records: Iterable[Record]) -> Usage:
    """Hold every decision of `records` against every part of `policy`."""
    watch = _Watch(policy.policy)
    decisions = not_told = 0
    for record in records:
        if record.get("type") not in DECISIONS:
            continue
        decisions += 1
        touched = _touched(record)
        not_told += touched.operation is None
        role = record.get("role")
        watch.see(role if isinstance(role, str) else None, tool_name(str(record.get("tool_name", ""))), touched)
    findings = tuple(watch.findings(policy.file)) if decisions else ()
    return Usage(decisions, tuple(sorted(findings, key=lambda finding: (finding.line, finding.path))), not_told)


class _Watch:
    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._rules = dict.fromkeys((*policy.rules, *policy.approvals), 0)
        self._scopes: dict[str, int] = {}
        self._roles: dict[str, set[str]] = {}
        self._entries: dict[str, list[_Entry]] = {}
        self._network = [*_network_entries(policy)]
        # names come from callers: what the policy does not name is looked up again each time
        self._asked: dict[tuple[str | None, str], tuple[list[Role], list[Scope]]] = {}

    def see(self, role: str | None, tool: str, touched: _Touched) -> None:
        chain, scopes = self._speaking(role, tool)
        for each in chain:
            self._roles.setdefault(each.name, set()).add(tool)
        stated: set[str] = set()
        for scope in scopes:
            self._scopes[scope.where] = self._scopes.get(scope.where, 0) + 1
            for entry in self._of(scope):
                if entry.key not in stated:
                    entry.use(touched)
            stated |= {key for key in scope.values if key in _ALLOWING}
        for entry in self._network:
            if entry.key != "allowlist" or "allowed_domains" not in stated:
                entry.use(touched)
        for rule in self._rules:
            self._rules[rule] += _is_about(rule, touched)

    def findings(self, file: str) -> Iterator[Finding]:
        def warning(kind: str, path: str, message: str, fix: str, line: int = 0) -> Finding:
            return Finding(Severity.WARNING, kind, path, message, fix, file, line)

        for rule, uses in self._rules.items():
            if not uses:
                yield warning("unused_rule", f"rule {rule.id}", "was about no call", "remove it, or keep it as a guard",
                              rule.line)  # fmt: skip
        for name, role in self._policy.roles.items():
            yield from _of_role(role, self._roles.get(name), warning)
            for tool, scope in role.by_tool.items():
                if name in self._roles and scope.where not in self._scopes:
                    yield warning("unused_tool", scope.where, f"no call of {tool} in this role", "remove the section",
                                  min(scope.lines.values(), default=0))  # fmt: skip
        for tool, scope in self._policy.tools.items():
            if scope.where not in self._scopes:
                yield warning("unused_tool", scope.where, f"no call of {tool}", "remove the section",
                              min(scope.lines.values(), default=0))  # fmt: skip
        for entries in (*self._entries.values(), self._network):
            for entry in entries:
                yield from _of_entry(entry, warning)

    def _speaking(self, role: str | None, tool: str) -> tuple[list[Role], list[Scope]]:
        known = self._asked.get((role, tool))
        if known is None:
            chain = lineage(self._policy, role)
            known = chain, specific_first(self._policy, chain, tool)
            if len(self._asked) < 4096:
                self._asked[role, tool] = known
        return known

    def _of(self, scope: Scope) -> list[_Entry]:
        known = self._entries.get(scope.where)
        if known is None:
            known = self._entries[scope.where] = [*_scope_entries(scope)]
        return known


_Warn = Callable[..., Finding]


def _of_role(role: Role, tools: set[str] | None, warning: _Warn) -> Iterator[Finding]:
    if tools is None:
        yield warning("unused_role", f"role {role.name}", "made no call", "remove the role", role.line())
        return
    granted = role.tools or ()
    idle = [tool for tool in granted if tool not in tools]
    if not idle:
        return
    kind = "overbroad_role" if 2 * len(idle) > len(granted) else "unused_tool"
    yield warning(
        kind, f"role {role.name}.tools", f"may use {len(granted)} tools, and never used {', '.join(idle)}",
        "take them off the list", role.line(idle[0]),
    )  # fmt: skip


def _of_entry(entry: _Entry, warning: _Warn) -> Iterator[Finding]:
    place = f"{entry.where}.{entry.key}"
    if not entry.uses:
        yield warning("unused_entry", place, f"{entry.shown} was about no call", "take it off the list", entry.line)
    elif entry.uses < ENOUGH:
        return
    elif entry.key == "allowed_paths" and entry.below not in (None, entry.shown) and "*" not in entry.shown:
        yield warning("overbroad_entry", place, f"{entry.shown} was used below {entry.below} only",
                      f"allow {entry.below}", entry.line)  # fmt: skip
    elif entry.key in ("allowed_domains", "allowlist") and "*" in entry.shown and len(entry.hosts) <= _FEW:
        hosts = ", ".join(sorted(entry.hosts))
        yield warning(
            "overbroad_entry", place, f"{entry.shown} was used for {hosts} only", f"allow {hosts}", entry.line
        )


def _scope_entries(scope: Scope) -> Iterator[_Entry]:
    for key, test in _ALLOWING.items():
        for value in scope.values.get(key, ()):
            yield _Entry(scope.where, key, str(value), scope.lines.get(key, 0), _bound(test, value))
    for key, values in (
        ("denied_paths", scope.denials.paths),
        ("denied_domains", scope.denials.domains),
        ("denied_ports", scope.denials.ports),
        ("denied_commands", scope.denials.commands),
    ):
        for value in sorted(cast("frozenset[Any]", values)):
            denies = _denying(key.removeprefix("denied_"), value)
            yield _Entry(scope.where, key, str(value), scope.lines.get(key, 0), denies)


def _network_entries(policy: Policy) -> Iterator[_Entry]:
    for host in policy.network.allowed or ():
        yield _Entry("network", "allowlist", host, 0, _bound(_ALLOWING["allowed_domains"], host))
    denials = policy.network.denials
    # what is denied unless somebody says otherwise was written by nobody
    for name, values in (
        ("domains", denials.domains),
        ("ports", denials.ports),
        ("networks", denials.networks - PRIVATE_NETWORKS),
    ):
        for value in sorted(cast("frozenset[Any]", values)):
            yield _Entry("network", "denylist", str(value), 0, _denying(name, value))


def _bound(test: Callable[[Any, _Touched], bool], value: Any) -> Callable[[_Touched], bool]:
    return lambda touched: touched.operation is not None and test(value, touched)


def _denying(name: str, value: Any) -> Callable[[_Touched], bool]:
    denials = Denials(**{name: frozenset({value})})

    def test(touched: _Touched) -> bool:
        operation = touched.operation
        if operation is None:
            return False
        if name == "commands" and touched.programs:
            return str(value).split()[0] in touched.programs
        return denials.refusal(operation) is not None

    return test


def _env_name(pattern: str, touched: _Touched) -> bool:
    return isinstance(touched.operation, CodeRun) and any(fnmatchcase(name, pattern) for name in touched.operation.env)


_ALLOWING: Final[Mapping[str, Callable[[Any, _Touched], bool]]] = {
    "allowed_paths": lambda path, touched: bool(touched.path) and matches_below(path, touched.path),
    "allowed_domains": lambda host, touched: bool(touched.host) and covers(host, touched.host),
    "allowed_ports": lambda port, touched: port == touched.port,
    "allowed_methods": lambda method, touched: method == getattr(touched.operation, "method", None),
    "allowed_commands": lambda command, touched: command.split()[0] in touched.programs,
    "supported_languages": lambda language, touched: language == getattr(touched.operation, "language", None),
    "browser_scope": lambda verb, touched: (
        BrowserUse(frozenset({verb})).refusal(cast("Any", touched.operation)) is None
    ),
    "env_allow": _env_name,
    "open_ports": lambda port, touched: (
        port == getattr(touched.operation, "port", None) or port in getattr(touched.operation, "ports", ())
    ),
    "host_paths": lambda path, touched: (
        getattr(touched.operation, "kind", "") == "host_use" and is_beneath(touched.path, path)
    ),
    "gpu": lambda name, touched: name == getattr(touched.operation, "gpu_class", None),
}


def _is_about(rule: Rule, touched: _Touched) -> bool:
    """Whether a rule may have had a say; about the arguments of a command the benefit of the doubt is its own."""
    if rule.subject is Subject.COMMAND:
        return isinstance(rule.pattern, tuple) and bool(rule.pattern[0] & touched.programs)
    about = touched.host if rule.subject is Subject.DOMAIN else touched.path
    return bool(about) and rule.matches(about)


def _touched(record: Record) -> _Touched:
    operation = operation_of(record)
    if isinstance(operation, CannotTell):
        return _Touched(None)
    try:
        if isinstance(operation, CodeRun):
            summed_up = called_of(record) if operation.language is Language.BASH else None
            names = () if summed_up is None else summed_up.programs
            return _Touched(operation, programs=frozenset((*names, *map(program_of, names))))
        if operation.kind == "proc_exec":
            return _Touched(operation, programs=frozenset({str(getattr(operation, "tool", ""))}))
        if operation.domain == "fs":
            return _Touched(operation, path=workspace_path(getattr(operation, "path", "")))
        if operation.kind == "host_use":
            return _Touched(operation, path=host_path(getattr(operation, "path", "")))
        url = getattr(operation, "url", None)
        if url is not None:
            where = target(url)
            return _Touched(operation, host=where.host, port=where.port)
    except InvalidRequest:
        pass  # it leads nowhere, and touches only what denies such things
    return _Touched(operation)


def _shared(one: str, other: str) -> str:
    """Return the directory that both paths lie in, or the path that both are."""
    if one == other:
        return one
    shared = []
    for mine, theirs in zip(one.split("/"), other.split("/"), strict=False):
        if mine != theirs:
            break
        shared.append(mine)
    return "/".join(shared)
