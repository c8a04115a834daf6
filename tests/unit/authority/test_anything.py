"""Whatever is in a policy or a manifest, the answer is findings or something that can be used, never a crash."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.authority.finding import errors
from ringfence.authority.manifest_reader import load_manifest, read_manifest
from ringfence.authority.policy_diff import diff
from ringfence.authority.policy_keys import SCOPE_KEYS
from ringfence.authority.policy_lint import lint
from ringfence.authority.policy_reader import TOP_KEYS, load_policy

values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 70_000),
    st.floats(allow_nan=False, allow_infinity=False, width=16),
    st.text(max_size=8),
    st.sampled_from(["30s", "1GB", "low", "workspace_only", "a.com", "*.a.com", "inputs/**", "../x", "python", "git",
                     "GET", "deny", "default", "unlimited", "none", "r1", "t.x", "10.0.0.0/8", "open", "bash"]),
)  # fmt: skip
lists = st.lists(values, max_size=3)
NESTED = (
    "default", "tools", "agent_roles", "inherits", "allowlist", "denylist", "enabled", "domains", "ports", "networks",
    "ips", "id", "command", "domain", "path", "decision", "match", "not_match", "scope", "tool", "op", "expect", "role",
    "instance", "tenant", "calls", "t.x", "r1", "interface", "runtime", "permissions", "limits", "fs", "read", "net",
    "mode", "schema_version", "args", "enum", "regex",
)  # fmt: skip
keys = st.sampled_from([*TOP_KEYS, *SCOPE_KEYS, *NESTED])
documents = st.recursive(
    values | lists, lambda inner: st.dictionaries(keys, inner, max_size=5) | st.lists(inner, max_size=3), max_leaves=25
)
scopes = st.dictionaries(st.sampled_from(SCOPE_KEYS), values | lists, max_size=6)
policies = st.fixed_dictionaries(
    {},
    optional={
        "policies": st.fixed_dictionaries(
            {},
            optional={
                "default": scopes,
                "tools": st.dictionaries(st.sampled_from(["t.x", "code_run"]), scopes, max_size=2),
                "agent_roles": st.dictionaries(
                    st.sampled_from(["r1", "r2"]),
                    st.builds(
                        lambda scope, parent, tools: {**scope, "inherits": parent, "tools": tools},
                        scopes,
                        st.sampled_from(["default", "r1", "r2", "r3"]),
                        st.lists(
                            st.sampled_from(["t.x", "code_run", "nothing"]) | st.dictionaries(st.just("t.x"), scopes)
                        ),
                    ),
                    max_size=2,
                ),
            },
        ),
        "network": documents,
        "rules": documents,
        "ceilings": scopes,
    },
)


def usable(content: bytes) -> None:
    findings = lint(content, "p.yaml")
    if errors(findings):
        assert all(finding.message and finding.rule for finding in findings)
        return
    snapshot = load_policy(content)
    for role in (None, *snapshot.policy.roles, "nobody"):
        for tool in ("t.x", "code_run", "unknown"):
            snapshot.view(tool, role).capabilities.digest()
    assert diff(snapshot, snapshot) == []


@given(documents)
@settings(max_examples=150)
def test_no_document_crashes_the_policy(document: Any) -> None:
    usable(json.dumps(document).encode())


@given(policies)
@settings(max_examples=150)
def test_no_policy_crashes_the_policy(document: Any) -> None:
    usable(json.dumps(document).encode())


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_bytes_crash_the_policy_or_the_manifest(content: bytes) -> None:
    usable(content)
    read_manifest(content)


@given(documents)
@settings(max_examples=150)
def test_no_document_crashes_the_manifest(document: Any) -> None:
    content = json.dumps(document).encode()
    _, findings = read_manifest(content)
    if not errors(findings):
        load_manifest(content).capabilities.digest()
