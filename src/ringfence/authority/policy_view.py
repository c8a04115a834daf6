"""What one policy says about one tool for one role: the more specific entry wins, deny lists always add up."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ringfence.authority.catalogue import TOOLS
from ringfence.authority.levels import Commit, FilesystemAccess, IsolationLevel, NetMode, RiskLevel
from ringfence.authority.limit_names import Stated
from ringfence.authority.policy_keys import LIMIT_KEYS
from ringfence.capability.budget import INHERITED, Budget
from ringfence.capability.capabilities import NO_CAPABILITIES, Capabilities
from ringfence.capability.denials import PRIVATE_NETWORKS, Denials
from ringfence.dataclass import dataclass, replace
from ringfence.operation.code import Language
from ringfence.operation.target import METHODS

if TYPE_CHECKING:
    from ringfence.authority.policy import Policy, Role, Scope

DEFAULT_METHODS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class PolicyView:
    """The policy layer of one call; `origin` says for every key which place of the policy it came from."""

    tool: str
    role: str | None
    refusal: str | None
    limits: Stated
    ceilings: Stated
    capabilities: Capabilities
    denials: Denials
    net_mode: NetMode
    risk: RiskLevel
    isolation: IsolationLevel
    critical_isolation: IsolationLevel
    require_cgroups: bool
    """Whether code is refused where no cgroup holds its memory, which is then only looked at now and then."""
    mime_allow: frozenset[str] | None
    env_allow: frozenset[str] | None
    allowed_commands: tuple[str, ...] | None
    output_inline: bool
    intercept_tls: bool
    """Whether what code in a box says over TLS is read by the host, and judged."""
    budget: Budget
    lasting_secrets: frozenset[str]
    commit: Commit
    origin: Mapping[str, str]


def view(policy: Policy, tool: str, role: str | None = None) -> PolicyView:
    """Resolve the policy: role and tool, else role, else tool, else what the role inherits, else default."""
    chain = lineage(policy, role)
    scopes = specific_first(policy, chain, tool)
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for scope in scopes:
        for key, value in scope.values.items():
            if key not in values:
                values[key] = value
                origin[key] = scope.where
    refusal = _refusal(policy, chain, tool, role)
    net_mode = _net_mode(policy, scopes)
    denials = reduce(Denials.meet, (scope.denials for scope in scopes), policy.network.denials)
    if net_mode is NetMode.UNRESTRICTED:
        # private networks are what unrestricted means; what the operator listed by hand stays denied
        denials = _without_private(denials)
    known = TOOLS.get(tool)
    return PolicyView(
        tool=tool,
        role=role,
        refusal=refusal,
        limits=MappingProxyType({LIMIT_KEYS[key][0]: value for key, value in values.items() if key in LIMIT_KEYS}),
        ceilings=policy.ceilings,
        capabilities=NO_CAPABILITIES if refusal else _capabilities(policy, values, net_mode, tool, role),
        denials=denials,
        net_mode=net_mode,
        risk=values.get("risk_level") or (known.risk if known else RiskLevel.SAFE),
        isolation=_isolation(scopes),
        critical_isolation=max(values.get("critical_isolation", IsolationLevel.CONTAINER), IsolationLevel.CONTAINER),
        require_cgroups=values.get("require_cgroups", False),
        mime_allow=values.get("mime_allow"),
        env_allow=frozenset(values["env_allow"]) if "env_allow" in values else None,
        allowed_commands=tuple(values["allowed_commands"]) if "allowed_commands" in values else None,
        output_inline=values.get("output_inline", True),
        intercept_tls=values.get("intercept_tls", False),
        budget=values.get("budget", INHERITED),
        lasting_secrets=frozenset(secret.name for secret in policy.secrets if secret.scope == "conversation"),
        commit=values.get("commit", Commit.ALWAYS),
        origin=MappingProxyType(
            {LIMIT_KEYS[key][0] if key in LIMIT_KEYS else key: where for key, where in origin.items()}
        ),
    )


def lineage(policy: Policy, role: str | None) -> list[Role]:
    """Return the role, what it inherits, what that inherits; it ends at an unknown name or where a circle closes."""
    chain: dict[str, Role] = {}
    name = role
    while name is not None and name in policy.roles and name not in chain:
        chain[name] = policy.roles[name]
        name = chain[name].inherits
    return list(chain.values())


def specific_first(policy: Policy, chain: list[Role], tool: str) -> list[Scope]:
    """Return every place that speaks about the tool for the role, the one that wins first."""
    scopes: list[Scope | None] = []
    for at, role in enumerate(chain):
        scopes += [role.by_tool.get(tool), role.scope]
        if at == 0:
            scopes.append(policy.tools.get(tool))
    if not chain:
        scopes.append(policy.tools.get(tool))
    return [scope for scope in scopes if scope is not None] + [policy.default]


def tools_of(chain: list[Role]) -> tuple[str, ...]:
    """Return the tools a role may be granted: its own list, or else the nearest inherited one."""
    return next((role.tools for role in chain if role.tools is not None), ())


def _refusal(policy: Policy, chain: list[Role], tool: str, role: str | None) -> str | None:
    if role is None:
        return None
    if role not in policy.roles:
        return "unknown_role"
    return None if tool in tools_of(chain) else "tool_not_in_role"


def _net_mode(policy: Policy, scopes: list[Scope]) -> NetMode:
    """Take the most specific word about the network; `network_access` and `net_mode` are two ways to say one thing."""
    allowed = False
    for scope in scopes:
        access: bool | None = scope.values.get("network_access")
        mode: NetMode | None = scope.values.get("net_mode")
        if access is False and not allowed:
            return NetMode.NONE
        if mode is not None:
            return mode
        allowed = allowed or access is True
    return max(policy.network.default, NetMode.ALLOWLIST) if allowed else policy.network.default


def _isolation(scopes: list[Scope]) -> IsolationLevel:
    """Take the most specific word about the isolation; `sandbox_enabled: true` asks for a box and leaves open which."""
    boxed = False
    for scope in scopes:
        level: IsolationLevel | None = scope.values.get("isolation")
        enabled: bool | None = scope.values.get("sandbox_enabled")
        if level is not None:
            return max(level, IsolationLevel.OS) if boxed or enabled else level
        if enabled is False and not boxed:
            return IsolationLevel.BROKER
        boxed = boxed or enabled is True
    return IsolationLevel.OS


def _without_private(denials: Denials) -> Denials:
    return replace(denials, networks=denials.networks - PRIVATE_NETWORKS)


def _capabilities(
    policy: Policy, values: Mapping[str, Any], net_mode: NetMode, tool: str, role: str | None
) -> Capabilities:
    from ringfence.capability.code import CodeRun
    from ringfence.capability.exact import PortOpen, SecretUse, SysGpu, TmpUse

    granted: list[Any] = [TmpUse()]
    granted += [CodeRun(language) for language in values.get("supported_languages", tuple(Language))]
    granted += _files(values)
    if net_mode is not NetMode.NONE:
        granted += _network(policy, values, tool)
    granted += _programs(values)
    granted += [PortOpen(port) for port in values.get("open_ports", ())]
    granted += [SysGpu(name) for name in values.get("gpu", ())]
    granted += [
        SecretUse(secret.name)
        for secret in policy.secrets
        if (secret.tools is None or tool in secret.tools) and (secret.roles is None or role in secret.roles)
    ]
    return Capabilities(granted)


def _files(values: Mapping[str, Any]) -> list[Any]:
    from ringfence.capability.fs import FsHost, FsList, FsRead, FsWrite

    access: FilesystemAccess = values.get("filesystem_access", FilesystemAccess.WORKSPACE_ONLY)
    if access is FilesystemAccess.NONE:
        return []
    inside = [kind(path) for path in values.get("allowed_paths", ("/workspace",)) for kind in (FsRead, FsWrite, FsList)]
    # only paths that are written: `host` alone opens nothing
    outside = [FsHost(path) for path in values.get("host_paths", ())] if access is FilesystemAccess.HOST else []
    return [*inside, *outside]


def _network(policy: Policy, values: Mapping[str, Any], tool: str) -> list[Any]:
    from ringfence.capability.browser import READING, BrowserUse
    from ringfence.capability.net import NetHttp
    from ringfence.capability.url_path import EVERY_PATH

    hosts = values.get("allowed_domains", policy.network.allowed or ())
    known = TOOLS.get(tool)
    # code that is given a host speaks TLS with it, where nobody sees the methods; a policy that names some still counts
    usual = METHODS if known is not None and "code.run" in known.kinds else DEFAULT_METHODS
    methods = frozenset(values.get("allowed_methods", usual))
    ports = values.get("allowed_ports", (None,))
    paths = frozenset(values.get("allowed_url_paths", EVERY_PATH))
    return [
        BrowserUse(frozenset(values.get("browser_scope", READING))),
        *(NetHttp(host, port, None, methods, paths) for host in hosts for port in ports if paths),
    ]


def _programs(values: Mapping[str, Any]) -> list[Any]:
    if "allowed_commands" not in values:
        return []
    from ringfence.capability.process import SHELLS, ProcExec
    from ringfence.capability.template import OneOf, Pattern, Template

    templates = values.get("command_templates", {})
    programs: list[Any] = []
    for command in values["allowed_commands"]:
        tool, *words = command.split()
        if tool in SHELLS:
            continue  # a shell is a language; listing it as a command is for the rules about scripts
        fixed = Template(tuple(OneOf(frozenset({word})) for word in words), Pattern(r"[\s\S]*")) if words else None
        begun = frozenset() if fixed is None else frozenset({fixed})
        # both hold: who lists `git status` and a template of git means what either of them says
        programs += [ProcExec(tool, begun | {template}) for template in templates.get(tool, ())]
        if tool not in templates:
            programs.append(ProcExec(tool, begun))
    return programs
