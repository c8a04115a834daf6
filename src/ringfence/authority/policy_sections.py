"""The sections of a policy beside its tools and roles: budgets, secrets, rules with their examples, and tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ringfence.authority.catalogue import tool_name
from ringfence.authority.levels import Decision
from ringfence.authority.policy import PolicyTest, Secret
from ringfence.authority.policy_keys import flag, text, word
from ringfence.authority.rule import Rule, Subject
from ringfence.authority.taint import Outward, Reach, TaintPolicy
from ringfence.authority.units import seconds, size
from ringfence.capability.budget import KINDS, UNLIMITED, Amount, Budget
from ringfence.errors import InvalidRequest

if TYPE_CHECKING:
    from ringfence.authority.policy_reader import Reader
    from ringfence.authority.yaml_tree import Node

SCOPES = ("tenant", "space", "user", "session")
_TOO_MUCH = 2**53  # beyond it a number is not exact in JSON
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")


def budgets(reader: Reader, node: Node | None) -> Mapping[str, Mapping[str, Budget]]:
    """Read `budgets`: the instance's own, and by name (`*` is everyone else) those of the scopes within it."""
    read: dict[str, Mapping[str, Budget]] = {}
    for scope, entry in reader.mapping(node, "budgets", ("instance", *SCOPES)).items():
        path = f"budgets.{scope}"
        if scope == "instance":
            read[scope] = MappingProxyType({"*": budget(reader, entry, path)})
        else:
            named = reader.mapping(entry, path)
            read[scope] = MappingProxyType(
                {name: budget(reader, item, f"{path}.{name}") for name, item in named.items()}
            )
    return MappingProxyType(read)


def budget(reader: Reader, node: Node | None, path: str) -> Budget:
    """Read one budget; bytes may be written as sizes, milliseconds as times."""
    amounts: dict[str, Any] = {}
    for kind, entry in reader.mapping(node, path, KINDS).items():
        amounts[kind] = reader.value(entry, f"{path}.{kind}", partial(_amount, kind))
    return Budget(**amounts)


def secrets(reader: Reader, node: Node | None) -> tuple[Secret, ...]:
    """Read `secrets`: who may use each name; the values are never in a policy."""
    read: list[Secret] = []
    for name, entry in reader.mapping(node, "secrets").items():
        path = f"secrets.{name}"
        if not _NAME.match(name):
            reader.note("invalid_value", path, "is not the name of a secret", entry.key_line, entry.key_column,
                        "use letters, digits, '_', '.' and '-'")  # fmt: skip
            continue
        fields = reader.mapping(entry, path, ("tools", "roles", "scope"))
        scope = reader.value(fields["scope"], f"{path}.scope", _secret_scope) if "scope" in fields else None
        read.append(
            Secret(
                name=name,
                tools=reader.values(fields["tools"], f"{path}.tools", _tool) if "tools" in fields else None,
                roles=reader.values(fields["roles"], f"{path}.roles", text) if "roles" in fields else None,
                scope=scope or "task",
                line=entry.key_line,
            )
        )
    return tuple(read)


def rules(reader: Reader, node: Node | None, section: str) -> tuple[Rule, ...]:
    """Read `rules` or `approvals`; an approval always asks, and says for how long its answer holds."""
    asking = section == "approvals"
    known = ("id", *Subject, "justification", "match", "not_match", "scope" if asking else "decision")
    read: list[Rule] = []
    for at, item in enumerate(reader.items(node, section)):
        path = f"{section}[{at}]"
        fields = reader.mapping(item, path, known)
        if not isinstance(item.value, dict):
            continue  # noted
        subjects = [subject for subject in Subject if subject in fields]
        if len(subjects) != 1:
            reader.note(
                "incomplete_rule", path, "must be about exactly one of command, domain and path",
                item.line, item.column, "write one rule for each",
            )  # fmt: skip
            continue
        decision = Decision.ASK if asking else None
        if "decision" in fields:
            decision = reader.value(fields["decision"], f"{path}.decision", word(Decision))
        elif not asking:
            reader.note("incomplete_rule", path, "has no decision", item.line, item.column, "write allow, ask or deny")
        pattern = reader.value(fields[subjects[0]], f"{path}.{subjects[0]}", _PATTERNS[subjects[0]])
        if decision is None or pattern is None:
            continue
        read.append(
            Rule(
                id=_optional(reader, fields, path, "id") or f"{section}-{at + 1}",
                decision=decision,
                subject=subjects[0],
                pattern=pattern,
                justification=_optional(reader, fields, path, "justification") or "",
                match=reader.values(fields.get("match"), f"{path}.match", text),
                not_match=reader.values(fields.get("not_match"), f"{path}.not_match", text),
                scope=_scope_of(reader, fields, path, asking=asking),
                line=item.line,
            )
        )
    return tuple(read)


def _scope_of(reader: Reader, fields: dict[str, Node], path: str, *, asking: bool) -> str:
    """Return for how long an answer holds: a rule that asks takes one for the session, an approval says so itself."""
    said = reader.value(fields["scope"], f"{path}.scope", _approval_scope) if "scope" in fields else None
    return said or ("call" if asking else "session")


def tests(reader: Reader, node: Node | None) -> tuple[PolicyTest, ...]:
    """Read `tests`: an operation as JSON, and whether it is to be allowed, asked about or denied."""
    from ringfence.operation.judged import read_judged

    read: list[PolicyTest] = []
    for at, item in enumerate(reader.items(node, "tests")):
        path = f"tests[{at}]"
        fields = reader.mapping(item, path, ("name", "role", "tool", "op", "expect", "tainted"))
        missing = [key for key in ("tool", "op", "expect") if key not in fields]
        if missing:
            fix = "give each test a tool, an op and what to expect"
            reader.note("incomplete_test", path, f"has no {missing[0]}", item.line, item.column, fix)
            continue
        tool = reader.value(fields["tool"], f"{path}.tool", _tool)
        operation = reader.value(fields["op"], f"{path}.op", read_judged)
        expect = reader.value(fields["expect"], f"{path}.expect", word(Decision))
        if tool is None or operation is None or expect is None:
            continue
        read.append(
            PolicyTest(
                name=_optional(reader, fields, path, "name") or f"test {at + 1}",
                tool=tool,
                operation=operation,
                expect=expect,
                role=_optional(reader, fields, path, "role"),
                line=item.line,
                tainted="tainted" in fields and bool(reader.value(fields["tainted"], f"{path}.tainted", flag)),
            )
        )
    return tuple(read)


def taint(reader: Reader, node: Node) -> TaintPolicy:
    """Read `taint`: what is asked about or denied once untrusted content was reached for, and how far that is seen."""
    fields = reader.mapping(node, "taint", ("reach", *Outward))
    reach = reader.value(fields["reach"], "taint.reach", word(Reach)) if "reach" in fields else None
    said = {use: reader.value(fields[use], f"taint.{use}", word(Decision)) for use in Outward if use in fields}
    decisions = {use: decision for use, decision in said.items() if decision is not None}
    return TaintPolicy(MappingProxyType(decisions), reach or Reach.SESSION)


def templates(reader: Reader, node: Node, path: str) -> dict[str, tuple[Any, ...]]:
    """Read `command_templates`: for each program, the lists of arguments it may have."""
    from ringfence.capability.template import read_template

    return {
        name: reader.values(entry, f"{path}.{name}", read_template)
        for name, entry in reader.mapping(node, path).items()
    }


def _tool(value: object) -> str:
    return tool_name(text(value))


def _optional(reader: Reader, fields: dict[str, Node], path: str, key: str) -> str | None:
    return reader.value(fields[key], f"{path}.{key}", text) if key in fields else None


def _amount(kind: str, value: object) -> Amount:
    if value == UNLIMITED:
        return UNLIMITED
    amount: object = value
    if isinstance(value, str) and kind.endswith("_ms"):
        amount = round(seconds(value) * 1000)
    elif isinstance(value, str) and "bytes" in kind:
        amount = size(value)
    if type(amount) is not int or not 0 <= amount < _TOO_MUCH:
        raise InvalidRequest(
            f"{value!r} is not an amount", reason="invalid_value", fix="write a whole number from 0, or unlimited"
        )
    return amount


def _secret_scope(value: object) -> str:
    if value not in ("task", "conversation"):
        raise InvalidRequest(f"{value!r} is not one of task, conversation", reason="invalid_value", fix="write task")
    return str(value)


def _approval_scope(value: object) -> str:
    if value not in ("call", "session"):
        raise InvalidRequest(f"{value!r} is not one of call, session", reason="invalid_value", fix="write call")
    return str(value)


def _command(value: object) -> tuple[frozenset[str], ...]:
    from ringfence.capability.denials import denied_command

    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not words:
        raise InvalidRequest(
            f"{value!r} is not a command", reason="invalid_value", fix="write its first words, as 'git push'"
        )
    pattern = tuple(frozenset(map(text, word if isinstance(word, list) and word else [word])) for word in words)
    for name in pattern[0]:  # each alternative as a command of its own: what no script has would decide about none
        for other in sorted(frozenset().union(*pattern[1:])) or [""]:
            denied_command(f"{name} {other}")
    return pattern


def _domain(value: object) -> str:
    from ringfence.capability.denials import denied_domain

    return denied_domain(value)


def _path(value: object) -> str:
    from ringfence.capability.glob import denied_glob

    return denied_glob(value)


_PATTERNS: dict[Subject, Any] = {Subject.COMMAND: _command, Subject.DOMAIN: _domain, Subject.PATH: _path}
