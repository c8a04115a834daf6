"""Read a policy file: every problem is found and placed, and a file with one error is not used at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from ringfence.authority.catalogue import tool_name
from ringfence.authority.finding import Finding, Severity, refuse_errors
from ringfence.authority.levels import ApprovalMode, NetMode
from ringfence.authority.policy import Network, Policy, PolicySnapshot, Role, Scope
from ringfence.authority.policy_keys import (
    DENY_KEYS,
    LIMIT_KEYS,
    LIST_KEYS,
    SCALAR_KEYS,
    SCOPE_KEYS,
    flag,
    port,
    text,
    word,
)
from ringfence.authority.profile import SecurityMode
from ringfence.authority.yaml_tree import Node, YamlInvalid, read_yaml
from ringfence.capability.denials import PRIVATE_NETWORKS, Denials, denied_domain, denied_network
from ringfence.capability.host import host_pattern
from ringfence.errors import InvalidRequest

_T = TypeVar("_T")

TOP_KEYS = (
    "policies",
    "network",
    "mode",
    "security_mode",
    "ceilings",
    "budgets",
    "secrets",
    "rules",
    "approvals",
    "tests",
    "taint",
)
PRIVATE = "private"
"""What stands for every private network in `network.denylist.networks`."""
_ANY_FIX = "write a value of the kind that is named here"


def load_policy(content: bytes, file: str = "") -> PolicySnapshot:
    """Read a policy that will be used.

    Raises:
        InvalidRequest: It has an error; the first is in the message, with its line and what would mend it.
    """
    from ringfence.authority.policy_lint import check

    policy, findings = read_policy(content, file)
    findings = [*findings, *check(policy, file)]
    refuse_errors(findings, reason="invalid_policy")
    return PolicySnapshot(policy, content, file, tuple(findings))


def read_policy(content: bytes, file: str = "") -> tuple[Policy, list[Finding]]:
    """Read what can be read of a policy, and say what is wrong with the rest."""
    reader = Reader(file)
    try:
        root = read_yaml(content)
    except YamlInvalid as error:
        reader.note("yaml", "", str(error), error.line, error.column, error.fix or "")
        return Policy(), reader.findings
    return _policy(reader, root), reader.findings


class Reader:
    """Reads values out of nodes, and notes what it could not read."""

    def __init__(self, file: str) -> None:
        """`file` is the name that findings carry."""
        self.file = file
        self.findings: list[Finding] = []

    def note(
        self,
        rule: str,
        path: str,
        message: str,
        line: int,
        column: int,
        fix: str = "",
        severity: Severity = Severity.ERROR,
    ) -> None:
        """Keep a finding."""
        self.findings.append(Finding(severity, rule, path, message, fix, self.file, line, column))

    def mapping(self, node: Node | None, path: str, known: Collection[str] | None = None) -> dict[str, Node]:
        """Return the entries of a mapping; an unknown key is an error and left out, no mapping at all has none."""
        if node is None or self._is_nothing(node, path, "{}"):
            return {}
        if not isinstance(node.value, dict):
            fix = "write 'key: value', one on each line"
            self.note("wrong_type", path, "must be a mapping of keys to values", node.line, node.column, fix)
            return {}
        if known is None:
            return node.value
        for key, entry in node.value.items():
            if key not in known:
                self.note(
                    "unknown_key", f"{path}.{key}".lstrip("."), f"{key!r} is not a key here",
                    entry.key_line, entry.key_column, nearest(key, known),
                )  # fmt: skip
        return {key: entry for key, entry in node.value.items() if key in known}

    def items(self, node: Node | None, path: str) -> list[Node]:
        """Return the items of a list."""
        if node is None or self._is_nothing(node, path, "[]"):
            return []
        if not isinstance(node.value, list):
            self.note("wrong_type", path, "must be a list", node.line, node.column, "begin each item with '- '")
            return []
        return node.value

    def _is_nothing(self, node: Node, path: str, none: str) -> bool:
        """Whether a name has nothing behind it, which is an error: so looks a file that was emptied, or cut off."""
        if node.value is None:
            fix = f"leave it out, or write {none} where none is meant"
            self.note("nothing", path, "nothing is written here", node.line, node.column, fix)
        return node.value is None

    def value(self, node: Node, path: str, read: Callable[[Any], _T]) -> _T | None:
        """Read one value, or note why not."""
        try:
            return read(plain(node))
        except InvalidRequest as error:
            self.note("invalid_value", path, str(error), node.line, node.column, error.fix or _ANY_FIX)
        return None

    def values(self, node: Node | None, path: str, read: Callable[[Any], _T]) -> tuple[_T, ...]:
        """Read a list of values, without those that could not be read."""
        found = (self.value(item, f"{path}[{at}]", read) for at, item in enumerate(self.items(node, path)))
        return tuple(value for value in found if value is not None)


def plain(node: Node) -> Any:
    """Return a node as plain values."""
    if isinstance(node.value, dict):
        return {key: plain(entry) for key, entry in node.value.items()}
    if isinstance(node.value, list):
        return [plain(item) for item in node.value]
    return node.value


def frozen(entries: dict[str, _T]) -> Mapping[str, _T]:
    """Return a mapping that nobody changes by accident once calls have begun to use it."""
    return MappingProxyType(entries)


def nearest(key: str, known: Collection[str]) -> str:
    """Say which of the known names was probably meant, or what they are."""
    import difflib

    near = difflib.get_close_matches(key, known, 1)
    return f"did you mean {near[0]}?" if near else f"the keys here are {', '.join(known)}"


def _policy(reader: Reader, root: Node) -> Policy:
    from ringfence.authority import policy_sections

    top = reader.mapping(root, "", TOP_KEYS)
    policies = reader.mapping(top.get("policies"), "policies", ("default", "tools", "agent_roles"))
    tools = reader.mapping(policies.get("tools"), "policies.tools")
    roles = reader.mapping(policies.get("agent_roles"), "policies.agent_roles")
    ceilings = read_scope(reader, top.get("ceilings"), "ceilings", "ceilings", LIMIT_KEYS)
    security = top.get("security_mode")
    mode = top.get("mode")
    return Policy(
        default=read_scope(reader, policies.get("default"), "policies.default", "default"),
        tools=_tools(reader, tools),
        roles=frozen({name: _role(reader, name, node) for name, node in roles.items()}),
        network=_network(reader, top.get("network")),
        mode=(mode and reader.value(mode, "mode", word(ApprovalMode))) or ApprovalMode.COWORK,
        security_mode=reader.value(security, "security_mode", word(SecurityMode)) if security else None,
        ceilings=frozen({LIMIT_KEYS[key][0]: value for key, value in ceilings.values.items()}),
        ceiling_lines=ceilings.lines,
        budgets=policy_sections.budgets(reader, top.get("budgets")),
        secrets=policy_sections.secrets(reader, top.get("secrets")),
        rules=policy_sections.rules(reader, top.get("rules"), "rules"),
        approvals=policy_sections.rules(reader, top.get("approvals"), "approvals"),
        tests=policy_sections.tests(reader, top.get("tests")),
        taint=policy_sections.taint(reader, top["taint"]) if "taint" in top else None,
    )


def _tools(reader: Reader, entries: dict[str, Node]) -> Mapping[str, Scope]:
    tools: dict[str, Scope] = {}
    for name, node in entries.items():
        path = f"policies.tools.{name}"
        if tool_name(name) in tools:
            reader.note(
                "duplicate_tool", path, f"{tool_name(name)} is already described", node.key_line, node.key_column,
                "remove one of the two",
            )  # fmt: skip
        tools[tool_name(name)] = read_scope(reader, node, path, f"tool {tool_name(name)}")
    return frozen(tools)


def read_scope(reader: Reader, node: Node | None, path: str, where: str, known: Collection[str] = SCOPE_KEYS) -> Scope:
    """Read the keys of one scope."""
    from ringfence.authority import policy_sections

    values: dict[str, Any] = {}
    denied: dict[str, frozenset[Any]] = {}
    entries = reader.mapping(node, path, known)
    for key, entry in entries.items():
        at = f"{path}.{key}"
        if key in SCALAR_KEYS:
            value: Any = reader.value(entry, at, SCALAR_KEYS[key])
        elif key in LIST_KEYS:
            value = reader.values(entry, at, LIST_KEYS[key])
            value = frozenset(value) if key == "mime_allow" else value
        elif key in DENY_KEYS:
            name, read = DENY_KEYS[key]
            denied[name] = frozenset(reader.values(entry, at, read))
            continue
        elif key == "budget":
            value = policy_sections.budget(reader, entry, at)
        else:
            value = policy_sections.templates(reader, entry, at)
        if value is not None:
            values[key] = value
    lines = {"": node.key_line if node else 0} | {key: entry.key_line for key, entry in entries.items()}
    return Scope(where, frozen(values), _denials(reader, node, path, denied), frozen(lines))


def _role(reader: Reader, name: str, node: Node) -> Role:
    path = f"policies.agent_roles.{name}"
    entries = reader.mapping(node, path, ("inherits", "tools", *SCOPE_KEYS))
    inherits = entries.get("inherits")
    parent = reader.value(inherits, f"{path}.inherits", text) if inherits else None
    by_tool: dict[str, Scope] = {}
    tools: list[str] = []
    lines = {"inherits": inherits.key_line} if inherits else {}
    for at, item in enumerate(reader.items(entries.get("tools"), f"{path}.tools")):
        place = f"{path}.tools[{at}]"
        if isinstance(item.value, dict):
            # `- code_run: {max_memory: 4GB}` states it for this role and tool alone
            for named, entry in item.value.items():
                tool = tool_name(named)
                tools.append(tool)
                lines[tool] = entry.key_line
                by_tool[tool] = read_scope(reader, entry, f"{place}.{tool}", f"role {name}, tool {tool}")
        else:
            read = reader.value(item, place, text)
            if read is not None:
                tools.append(tool_name(read))
                lines[tool_name(read)] = item.line
    rest = {key: entry for key, entry in entries.items() if key not in ("inherits", "tools")}
    return Role(
        name=name,
        scope=read_scope(reader, Node(rest, node.line, node.column), path, f"role {name}"),
        inherits=None if parent == "default" else parent,
        tools=tuple(tools) if "tools" in entries else None,
        by_tool=frozen(by_tool),
        lines=frozen({"": node.key_line, **lines}),
    )


def _network(reader: Reader, node: Node | None) -> Network:
    entries = reader.mapping(node, "network", ("default", "allowlist", "denylist"))
    default = entries.get("default")
    mode = reader.value(default, "network.default", word(NetMode)) if default else None
    allow = reader.mapping(entries.get("allowlist"), "network.allowlist", ("enabled", "domains", "ips"))
    deny = reader.mapping(entries.get("denylist"), "network.denylist", ("enabled", "domains", "ports", "networks"))
    allowed = (
        *reader.values(allow.get("domains"), "network.allowlist.domains", host_pattern),
        *reader.values(allow.get("ips"), "network.allowlist.ips", host_pattern),
    )
    denied: dict[str, frozenset[Any]] = {
        "domains": frozenset(reader.values(deny.get("domains"), "network.denylist.domains", denied_domain)),
        "ports": frozenset(reader.values(deny.get("ports"), "network.denylist.ports", port)),
        "networks": frozenset(reader.values(deny.get("networks"), "network.denylist.networks", _denied_network)),
    }
    if PRIVATE in denied["networks"]:  # whoever closes one more must not open all of these
        denied["networks"] = denied["networks"] - {PRIVATE} | PRIVATE_NETWORKS
    if not _enabled(reader, deny, "network.denylist"):
        denied = {}
    if "networks" not in deny:
        denied["networks"] = PRIVATE_NETWORKS
    return Network(
        default=mode or NetMode.NONE,
        allowed=allowed if allow and _enabled(reader, allow, "network.allowlist") else None,
        denials=_denials(reader, node, "network.denylist", denied),
    )


def _denied_network(value: object) -> str:
    return PRIVATE if value == PRIVATE else denied_network(value)


def _enabled(reader: Reader, entries: dict[str, Node], path: str) -> bool:
    node = entries.get("enabled")
    return node is None or bool(reader.value(node, f"{path}.enabled", flag))


def _denials(reader: Reader, node: Node | None, path: str, denied: dict[str, frozenset[Any]]) -> Denials:
    try:
        return Denials(**denied)
    except InvalidRequest as error:
        line, column = (node.line, node.column) if node else (1, 1)
        reader.note("invalid_value", path, str(error), line, column, error.fix or "")
        return Denials()
