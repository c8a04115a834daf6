"""The voices that a profile is the meet of: a grant, a manifest, a policy and the ceiling of the system."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ringfence.authority.grant import Grant
from ringfence.authority.layers import Ceiling
from ringfence.authority.manifest import Manifest
from ringfence.authority.policy_reader import load_policy
from ringfence.capability.budget import Budget
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.form import parse
from ringfence.capability.limits import MIB, SYSTEM_CEILING

CEILING = Ceiling(limits=replace(SYSTEM_CEILING, wall_seconds=600.0, memory_bytes=4096 * MIB))


def hosts(*names: str) -> Capabilities:
    """Return what lets these hosts be read from."""
    return Capabilities(parse(f"net.http:GET:{name}") for name in names)


def grant(capabilities: Capabilities | None = None, **fields: Any) -> Grant:
    """Return a grant of so much for one call of `web.get`."""
    stated = {"tenant": "t", "subject_id": "s", "tool_name": "web.get", "call_id": "c-1", "expires_at": 2**40,
              "budget": Budget(), "decision_key_fingerprint": "f"}  # fmt: skip
    return Grant(**{**stated, "capabilities": Capabilities() if capabilities is None else capabilities, **fields})


def manifest(capabilities: Capabilities | None = None, **fields: Any) -> Manifest:
    """Return a manifest in which `web.get` declares so much."""
    return Manifest("web.get", capabilities=Capabilities() if capabilities is None else capabilities, **fields)


POLICY = load_policy(
    b"""
policies:
  tools:
    web.get: {max_execution_time: 120s, network_access: true, allowed_domains: [a.com, b.com]}
  agent_roles:
    big: {tools: [web.get], max_memory: 2GB}
"""
)
