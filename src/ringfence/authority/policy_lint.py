"""What is wrong or doubtful in a policy that reads well: circles, unknown names, rules that their examples refute."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from ringfence.authority.catalogue import TOOLS
from ringfence.authority.finding import Finding, Severity
from ringfence.authority.levels import FilesystemAccess, NetMode
from ringfence.authority.policy import Policy, Scope
from ringfence.authority.policy_keys import KEY_OF_LIMIT, LIMIT_KEYS, LIST_KEYS
from ringfence.authority.policy_reader import nearest, read_policy
from ringfence.authority.policy_view import lineage, tools_of, view
from ringfence.capability.limits import SYSTEM_CEILING

# Which skills there are, the policy alone cannot know.
_SKILL = re.compile(r"[a-z0-9]+(?:\.[a-z0-9]+)+\Z")


def lint(content: bytes, file: str = "", *, skills: Collection[str] | None = None) -> list[Finding]:
    """Return everything that is wrong or doubtful in a policy file, in the order of its lines.

    `skills` are the ids of the skills there are; without them, no name of a skill is called unknown.
    """
    policy, findings = read_policy(content, file)
    return sorted([*findings, *check(policy, file, skills=skills)], key=lambda finding: (finding.line, finding.path))


def check(policy: Policy, file: str = "", *, skills: Collection[str] | None = None) -> list[Finding]:
    """Return what only the whole policy shows."""
    checks = (_roles(policy, skills), _rules(policy), _references(policy, skills), _ceilings(policy), _networks(policy))
    return [
        Finding(severity, rule, path, message, fix, file, line)
        for found in (*checks, _unused(policy, skills), _widenings(policy))
        for severity, rule, path, message, fix, line in found
    ]


_Found = Iterator[tuple[Severity, str, str, str, str, int]]


def _roles(policy: Policy, skills: Collection[str] | None) -> _Found:
    for name, role in policy.roles.items():
        path = f"policies.agent_roles.{name}"
        if name == "default" or not name or name != name.strip():
            yield (
                Severity.ERROR, "reserved_name", path, f"{name!r} cannot be the name of a role",
                "call it something else: 'inherits: default' means policies.default", role.line(),
            )  # fmt: skip
        if role.inherits is not None and role.inherits not in policy.roles:
            yield (
                Severity.ERROR, "unknown_role", f"{path}.inherits", f"there is no role {role.inherits!r}",
                "name a role of this file, or default", role.line("inherits"),
            )  # fmt: skip
        elif role.inherits is not None and lineage(policy, name)[-1].inherits is not None:
            last = lineage(policy, name)[-1].inherits
            if last in policy.roles:
                circle = " → ".join([*(each.name for each in lineage(policy, name)), str(last)])
                yield (
                    Severity.ERROR, "inheritance_cycle", f"{path}.inherits", f"inherits itself: {circle}",
                    "let one of them inherit default", role.line("inherits"),
                )  # fmt: skip
        for tool in role.tools or ():
            if not _is_known(policy, tool, skills):
                yield (
                    Severity.ERROR, "unknown_tool", f"{path}.tools", f"there is no tool {tool!r}",
                    "add it under policies.tools, or correct its name", role.line(tool),
                )  # fmt: skip


def _rules(policy: Policy) -> _Found:
    seen: set[str] = set()
    for section, rules in (("rules", policy.rules), ("approvals", policy.approvals)):
        for at, rule in enumerate(rules):
            path = f"{section}[{at}]"
            for wrong in rule.wrong_examples():
                yield (
                    Severity.ERROR, "example_fails", path, f"{rule.id}: {wrong}",
                    "correct the rule or its example", rule.line,
                )  # fmt: skip
            if rule.id in seen:
                yield (
                    Severity.ERROR, "duplicate_rule", path, f"the id {rule.id!r} is already taken",
                    "give each rule an id of its own", rule.line,
                )  # fmt: skip
            seen.add(rule.id)


def _references(policy: Policy, skills: Collection[str] | None) -> _Found:
    names = [
        *((f"secrets.{secret.name}", secret.tools or (), secret.roles or (), secret.line) for secret in policy.secrets),
        *(
            (f"tests[{at}]", (test.tool,), () if test.role is None else (test.role,), test.line)
            for at, test in enumerate(policy.tests)
        ),
    ]
    for path, tools, roles, line in names:
        for tool in tools:
            if not _is_known(policy, tool, skills):
                yield Severity.ERROR, "unknown_tool", path, f"there is no tool {tool!r}", "correct its name", line
        for role in roles:
            if role not in policy.roles:
                yield Severity.ERROR, "unknown_role", path, f"there is no role {role!r}", "correct its name", line


def _ceilings(policy: Policy) -> _Found:
    for limit, value in policy.ceilings.items():
        if value > getattr(SYSTEM_CEILING, limit):
            yield (
                Severity.WARNING, "above_ceiling", f"ceilings.{KEY_OF_LIMIT[limit]}",
                f"is above the system's {getattr(SYSTEM_CEILING, limit):g}, which counts", "lower it",
                policy.ceiling_lines.get(KEY_OF_LIMIT[limit], 0),
            )  # fmt: skip
    for path, scope in _scopes(policy):
        for key, (limit, _) in LIMIT_KEYS.items():
            most = min(getattr(SYSTEM_CEILING, limit), policy.ceilings.get(limit, float("inf")))
            if scope.values.get(key, 0) > most:
                yield (
                    Severity.WARNING, "above_ceiling", f"{path}.{key}", f"is above the ceiling of {most:g}",
                    "lower it, or raise the ceiling", scope.lines.get(key, 0),
                )  # fmt: skip


def _networks(policy: Policy) -> _Found:
    for path, scope in _scopes(policy):
        line = scope.lines.get("network_access", 0)
        if scope.values.get("network_access") is False and scope.values.get("net_mode", NetMode.NONE) > NetMode.NONE:
            yield (
                Severity.WARNING, "no_network", f"{path}.net_mode", "has no effect, because network_access is false",
                "remove one of the two", line,
            )  # fmt: skip
    for name in policy.tools:
        found = view(policy, name)
        scope = policy.tools[name]
        if scope.values.get("network_access") and not found.capabilities.of("net.http"):
            yield (
                Severity.WARNING, "no_domains", f"policies.tools.{name}.network_access",
                "reaches nothing, because no domain is allowed", "list some under allowed_domains",
                scope.lines.get("network_access", 0),
            )  # fmt: skip
        if "allowed_domains" in scope.values and found.net_mode is NetMode.NONE:
            yield (
                Severity.WARNING, "no_network", f"policies.tools.{name}.allowed_domains",
                "has no effect, because there is no network access", "add network_access: true",
                scope.lines.get("allowed_domains", 0),
            )  # fmt: skip


def _unused(policy: Policy, skills: Collection[str] | None) -> _Found:
    """Find what reads well and does nothing, where somebody may believe that it holds."""
    for name, scope in policy.tools.items():
        if name not in TOOLS and not (_SKILL.match(name) if skills is None else name in skills):
            yield (
                Severity.WARNING, "unused_tool", f"policies.tools.{name}",
                "no call is a use of it: it is neither a built-in tool nor the id of a skill",
                nearest(name.casefold(), (*TOOLS, *(skills or ()))), scope.lines.get("", 0),
            )  # fmt: skip
    for path, scope in _scopes(policy):
        if scope.values.get("gpu"):
            yield (
                Severity.WARNING, "no_effect", f"{path}.gpu", "no box of this version has a GPU",
                "leave it out", scope.lines.get("gpu", 0),
            )  # fmt: skip
        if scope.values.get("host_paths") and scope.values.get("filesystem_access") is not FilesystemAccess.HOST:
            yield (
                Severity.WARNING, "no_effect", f"{path}.host_paths", "counts only under filesystem_access: host",
                "write filesystem_access: host beside it, or leave it out", scope.lines.get("host_paths", 0),
            )  # fmt: skip


def _widenings(policy: Policy) -> _Found:
    for name, role in policy.roles.items():
        chain = lineage(policy, name)
        for tool in tools_of(chain):
            stated = policy.tools.get(tool)
            if stated is None:
                continue
            for scope in (role.by_tool.get(tool), role.scope):
                for key in sorted(_wider(scope, stated)) if scope is not None else ():
                    yield (
                        Severity.WARNING, "role_widens_tool", f"policies.agent_roles.{name}.{key}",
                        f"gives {tool} more than policies.tools.{tool}.{key} does", "lower it if that is not meant",
                        scope.lines.get(key, role.line()) if scope is not None else role.line(),
                    )  # fmt: skip


def _wider(scope: Scope, tool: Scope) -> set[str]:
    both = scope.values.keys() & tool.values.keys()
    more = {key for key in both & LIMIT_KEYS.keys() if scope.values[key] > tool.values[key]}
    more |= {key for key in both & {"network_access"} if scope.values[key] and not tool.values[key]}
    more |= {key for key in both & {"sandbox_enabled", "require_cgroups"} if tool.values[key] and not scope.values[key]}
    more |= {key for key in both & {"net_mode", "filesystem_access"} if scope.values[key] > tool.values[key]}
    rising = {"isolation", "critical_isolation", "risk_level", "commit"}
    more |= {key for key in both & rising if scope.values[key] < tool.values[key]}
    more |= {key for key in both & {"output_inline"} if scope.values[key] and not tool.values[key]}
    lists = both & LIST_KEYS.keys()
    return more | {key for key in lists if set(scope.values[key]) - set(tool.values[key])}


def _scopes(policy: Policy) -> Iterator[tuple[str, Scope]]:
    yield "policies.default", policy.default
    for name, scope in policy.tools.items():
        yield f"policies.tools.{name}", scope
    for name, role in policy.roles.items():
        yield f"policies.agent_roles.{name}", role.scope
        for tool, scope in role.by_tool.items():
            yield f"policies.agent_roles.{name}.tools.{tool}", scope


def _is_known(policy: Policy, tool: str, skills: Collection[str] | None) -> bool:
    if tool in policy.tools or tool in TOOLS:
        return True
    if not _SKILL.match(tool):
        return False
    return skills is None or tool in skills
