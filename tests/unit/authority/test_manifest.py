"""A skill's manifest says what it may need at most; one with a mistake is not used, and every mistake is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ringfence.authority.finding import Severity, errors
from ringfence.authority.levels import RiskLevel, SideEffect
from ringfence.authority.manifest import Manifest
from ringfence.authority.manifest_reader import load_manifest, read_manifest
from ringfence.capability.limits import MIB
from ringfence.errors import InvalidRequest
from ringfence.operation import CodeRun, Language
from ringfence.operation import brokered as op

SHELL: dict[str, Any] = {
    "schema_version": 1,
    "id": "shell.run",
    "name": "Shell",
    "description": "Runs a script.",
    "interface": {"inputs": {"type": "object"}, "outputs": {"type": "object"}},
    "runtime": {"kind": "docker", "image": "python:3.12-slim", "entrypoint": ["bash", "-lc"]},
    "permissions": {"fs": {"read": ["inputs/**"], "write": ["work/**", "artifacts/*.txt"]}, "net": {"mode": "none"}},
    "limits": {"timeout_ms": 90_000, "memory_mb": 256, "max_stdout_bytes": 1000},
}


def changed(path: str, value: Any) -> bytes:
    form = json.loads(json.dumps(SHELL))
    *parents, last = path.split(".")
    place = form
    for name in parents:
        place = place.setdefault(name, {})
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return json.dumps(form).encode()


def shell() -> Manifest:
    return load_manifest(json.dumps(SHELL).encode(), directory="shell.run")


def test_the_manifest_of_003_is_read() -> None:
    manifest = shell()
    assert (manifest.id, manifest.schema_version, manifest.name) == ("shell.run", 1, "Shell")
    assert manifest.input_schema == {"type": "object"}
    assert manifest.runtime is not None
    assert manifest.runtime.entrypoint == ("bash", "-lc")
    assert manifest.limits == {"wall_seconds": 90.0, "memory_bytes": 256 * MIB, "stdout_bytes": 1000}


def test_permissions_become_capabilities() -> None:
    allowed = shell().capabilities
    assert [str(item) for item in allowed] == [
        "code.run:bash",
        "fs.list:/workspace/inputs",
        "fs.read:/workspace/inputs",
        "fs.write:/workspace/artifacts&/workspace/artifacts/*.txt",
        "fs.write:/workspace/work",
    ]
    assert allowed.allows(CodeRun(Language.BASH, ""))
    assert not allowed.allows(CodeRun(Language.PYTHON, ""))
    assert not allowed.allows(op.FsWrite("inputs/a"))


def test_a_tool_that_does_not_say_is_taken_for_dangerous() -> None:
    manifest = shell()
    assert manifest.safety_class is RiskLevel.HIGH
    assert manifest.side_effects == {SideEffect.PROCESS, SideEffect.WRITE}


def test_what_000_adds_is_read() -> None:
    manifest = load_manifest(
        json.dumps(
            SHELL
            | {"version": "2.1", "safety_class": "Low", "side_effect": ["Read", "network"]}
            | {
                "permissions": {
                    "run": ["python"],
                    "capabilities": ["net.http:GET:a.com", "TmpUse", {"SysGpu": {"class": "x"}}],
                }
            }
        ).encode()
    )
    assert (manifest.version, manifest.safety_class) == ("2.1", RiskLevel.LOW)
    assert manifest.side_effects == {SideEffect.READ, SideEffect.NETWORK}
    assert [str(item) for item in manifest.capabilities] == [
        "code.run:python",
        "net.http:GET:a.com",
        "sys.gpu:x",
        "tmp.use",
    ]


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("id", ..., "id"),
        ("name", ..., "name"),
        ("description", ..., "description"),
        ("schema_version", ..., "schema_version"),
        ("interface", ..., "interface"),
        ("interface.outputs", ..., "interface.outputs"),
        ("runtime", ..., "runtime"),
        ("runtime.image", ..., "runtime.image"),
        ("permissions", ..., "permissions"),
        ("schema_version", 2, "schema_version"),
        ("schema_version", True, "schema_version"),
        ("id", "Shell", "id"),
        ("id", "shell", "id"),
        ("id", "shell..run", "id"),
        ("id", "shell.run\n", "id"),
        ("id", "../x.y", "id"),
        ("runtime.kind", "process", "runtime.kind"),
        ("runtime.entrypoint", "bash", "runtime.entrypoint"),
        ("permissions.net.mode", "allowlist", "permissions.net.mode"),
        ("permissions.fs.read", ["../x"], "permissions.fs.read"),
        ("permissions.fs.read", ["/etc/**"], "permissions.fs.read"),
        ("permissions.fs.write", ["work/../x"], "permissions.fs.write"),
        ("permissions.fs.write", ["other/**"], "permissions.fs.write"),
        ("permissions.fs.write", ["*"], "permissions.fs.write"),
        ("permissions.fs.read", "inputs/**", "permissions.fs.read"),
        ("permissions.fs.exec", ["work/**"], "permissions.fs.exec"),
        ("permissions.capabilities", ["everything"], "permissions.capabilities"),
        ("permissions.run", ["cobol"], "permissions.run"),
        ("limits.memory", 5, "limits.memory"),
        ("limits.memory_mb", 0, "limits.memory_mb"),
        ("limits.memory_mb", "256", "limits.memory_mb"),
        ("safety_class", "critical", "safety_class"),
        ("safety_class", 3, "safety_class"),
        ("side_effect", "explode", "side_effect"),
        ("side_effect", [None], "side_effect"),
        ("comment", "hi", "comment"),
        ("interface.inputs", "text", "interface.inputs"),
    ],
)
def test_every_mistake_has_its_path(path: str, value: Any, found: str) -> None:
    wrong = errors(read_manifest(changed(path, value))[1])
    assert [finding.path for finding in wrong] == [found]
    with pytest.raises(InvalidRequest) as refused:
        load_manifest(changed(path, value))
    assert (refused.value.reason, refused.value.details["path"]) == ("invalid_manifest", found)


def test_all_mistakes_are_named_at_once_each_with_its_fix() -> None:
    _, findings = read_manifest(b'{"id": "X", "limits": {"pids": 0}}')
    assert {finding.path for finding in findings} == {
        "schema_version", "name", "description", "interface", "runtime", "permissions", "id", "limits.pids",
    }  # fmt: skip
    assert all(finding.fix for finding in findings if finding.rule == "missing_field")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"id": 1, "id": 2}', b'{"id": NaN}', b"\xff", b"[" * 100_000, b" " * (2**20 + 1)],
    ids=lambda content: repr(content[:12]),
)
def test_what_is_no_json_object_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        load_manifest(content)
    assert refused.value.reason == "invalid_manifest"


def test_the_folder_has_the_name_of_the_skill() -> None:
    with pytest.raises(InvalidRequest, match="lies in the folder 'other'"):
        load_manifest(json.dumps(SHELL).encode(), directory="other")


def test_a_manifest_that_allows_nothing_is_doubtful() -> None:
    form = SHELL | {"permissions": {}, "runtime": SHELL["runtime"] | {"entrypoint": ["/bin/thing"]}}
    manifest, findings = read_manifest(json.dumps(form).encode())
    assert [(finding.severity, finding.rule) for finding in findings] == [(Severity.WARNING, "grants_nothing")]
    assert len(manifest.capabilities) == 0
