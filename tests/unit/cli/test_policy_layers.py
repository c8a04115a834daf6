"""`ringfence policy explain` where more than the policy has a say: a manifest, a grant and a request's overrides."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.cli.policy_files import DOCUMENT, EXAMPLE, Explain, Write
from tests.unit.cli.policy_files import explain as explain
from tests.unit.cli.policy_files import write as write

from ringfence.interfaces.cli.main import main

MANIFEST: dict[str, Any] = {
    "schema_version": 1,
    "id": "web.get",
    "name": "Get",
    "description": "Fetches a page.",
    "interface": {"inputs": {"type": "object"}, "outputs": {"type": "object"}},
    "runtime": {"kind": "docker", "image": "python:3.12-slim", "entrypoint": ["python3", "get.py"]},
    "permissions": {"fs": {"read": ["inputs/**"], "write": ["work/**"]}, "net": {"mode": "none"}},
    "limits": {"timeout_ms": 90_000},
    "safety_class": "low",
}
TABLE = """\
ceilings: {max_execution_time: 10m, max_memory: 4GB}
policies:
  default: {max_memory: 512MB}
  tools: {web.get: {max_execution_time: 120s, allowed_paths: [inputs, artifacts]}}
  agent_roles: {big: {tools: [web.get], max_memory: 2GB}}
"""


def test_the_table_of_the_model(explain: Explain, write: Write) -> None:
    words = (write(TABLE), "--role", "big", "--manifest", write(MANIFEST, "manifest.json"))
    narrowed = explain(*words, "--override", "timeout_ms=30000")["by_name"]
    timeout = narrowed["wall_seconds"]
    assert [timeout[layer] for layer in ("default", "ceiling", "policy", "manifest", "grant", "request", "value")] == [
        60.0, 600.0, 120.0, 90.0, None, 30.0, 30.0,
    ]  # fmt: skip
    assert (timeout["layer"], timeout["why"], timeout["refused"]) == ("request", "the request narrows", False)
    memory = narrowed["memory_bytes"]
    assert (memory["default"], memory["ceiling"], memory["policy"], memory["value"], memory["origin"]) == (
        1024 * 2**20, 4096 * 2**20, 2048 * 2**20, 2048 * 2**20, "role big",
    )  # fmt: skip
    reads = narrowed["fs.read"]
    assert (reads["policy"], reads["manifest"], reads["value"]) == (
        ["/workspace/artifacts", "/workspace/inputs"], ["/workspace/inputs"], ["/workspace/inputs"],
    )  # fmt: skip


def test_an_override_beyond_a_ceiling_is_refused_and_the_ceiling_named(
    explain: Explain, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (write(TABLE), "--manifest", write(MANIFEST, "manifest.json"), "--override", "timeout_ms=300000")
    said = explain(*words)
    assert said["profile"] is None
    assert said["refused"] == {
        "code": "SCHEMA.VALIDATION_FAILED",
        "reason": "limit_exceeds_ceiling",
        "error": "wall_seconds of 300 s exceeds the manifest's 90 s",
    }
    assert said["by_name"]["wall_seconds"]["refused"]
    assert main(["policy", "explain", "--policy", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "refused   wall_seconds of 300 s exceeds the manifest's 90 s (fix: ask for at most 90 s)" in lines
    (row,) = (line.split() for line in lines if line.startswith("wall_seconds"))
    assert " ".join(row[1:]) == "60 s 600 s 120 s 90 s — 300 s refused exceeds the manifest's 90 s host"


def test_an_override_beyond_a_ceiling_is_clamped_on_opt_in_and_that_is_said(explain: Explain, write: Write) -> None:
    words = (write(TABLE), "--manifest", write(MANIFEST, "manifest.json"), "--override", "timeout_ms=300000", "--clamp")
    profile = explain(*words)["profile"]
    assert (profile["timeout_ms"], profile["clamped"]) == (90_000, ["wall_seconds: 300 s to 90 s (manifest)"])


def test_overrides_may_be_words_and_objects_too(explain: Explain, write: Write) -> None:
    capabilities = 'capabilities=[{"FsRead": {"path": "/workspace/inputs"}}]'
    said = explain(EXAMPLE, "--tool", "file_read", "--override", capabilities, "--override", "net.mode=none")
    assert (said["by_name"]["fs.read"]["value"], said["by_name"]["fs.list"]["value"]) == (["/workspace/inputs"], [])
    assert said["by_name"]["net_mode"]["request"] == "none"


def test_a_grant_narrows_what_the_policy_gives(explain: Explain, write: Write) -> None:
    grant = {
        "tenant": "t",
        "subject_id": "s",
        "tool_name": "file_read",
        "call_id": "c",
        "capabilities": [{"FsRead": {"path": "/workspace/inputs"}}],
        "expires_at": 1_000,
        "budget": {"calls": 2},
        "decision_key_fingerprint": "f",
        "safety_floor": "high",
    }
    said = explain(DOCUMENT, "--grant", write(grant, "grant.json"))
    rows = said["by_name"]
    assert (said["tool"], rows["fs.read"]["value"], rows["fs.list"]["value"]) == (
        "file_read", ["/workspace/inputs"], [],
    )  # fmt: skip
    assert (rows["budget.calls"]["value"], rows["budget.calls"]["layer"]) == (2, "grant")
    assert (rows["safety"]["value"], said["profile"]["expires_at"]) == ("high", 1_000)
    assert {
        "tenant", "subject_id", "tool_name", "call_id", "capabilities", "safety", "side_effect", "limits",
        "whitelists", "mappings", "timeout_ms", "profile_hash", "policy_version_hash",
    } <= said["profile"].keys()  # fmt: skip


def test_the_highest_safety_counts_and_side_effects_give_nothing(explain: Explain, write: Write) -> None:
    def said(policy: str, manifest: str, grant: str) -> dict[str, Any]:
        held = {
            "tenant": "t", "subject_id": "s", "tool_name": "web.get", "call_id": "c", "expires_at": 2**40, "budget": {},
            "capabilities": [{"FsRead": {"path": "inputs"}}], "decision_key_fingerprint": "f", "safety_floor": grant,
        }  # fmt: skip
        words = (
            *(write(TABLE.replace("web.get: {", f"web.get: {{risk_level: {policy}, ")), "--tool", "web.get"),
            *("--grant", write(held, "grant.json")),
            *("--manifest", write(MANIFEST | {"safety_class": manifest, "side_effect": ["write"]}, "manifest.json")),
        )
        return explain(*words)

    highest = [said(*levels) for levels in (("high", "low", "low"), ("low", "high", "low"), ("low", "low", "high"))]
    assert [each["by_name"]["safety"]["value"] for each in highest] == ["high"] * 3
    lowest = said("low", "low", "low")
    assert lowest["by_name"]["safety"]["value"] == "low"
    # the manifest says that it writes, and may: the grant gives no writing
    assert (lowest["profile"]["side_effect"], lowest["by_name"]["fs.write"]["value"]) == ("write", [])


def test_the_hash_of_a_profile_is_of_policy_and_manifest_too(explain: Explain, write: Write) -> None:
    def hashed(policy: str, manifest: dict[str, Any]) -> str:
        said = explain(write(policy), "--tool", "web.get", "--manifest", write(manifest, "manifest.json"))
        return str(said["profile"]["profile_hash"])

    first = hashed(TABLE, MANIFEST)
    assert hashed(TABLE, MANIFEST) == first
    others = {hashed(TABLE + "# another version\n", MANIFEST), hashed(TABLE, MANIFEST | {"version": "2.0.0"})}
    others.add(hashed(TABLE.replace("120s", "80s"), MANIFEST))
    assert len(others | {first}) == 4


def test_a_manifest_of_another_tool_does_not_count(explain: Explain, write: Write) -> None:
    said = explain(write(TABLE), "--tool", "code_run", "--manifest", write(MANIFEST, "manifest.json"))
    assert said["profile"]["refusal"] == "tool_mismatch"
