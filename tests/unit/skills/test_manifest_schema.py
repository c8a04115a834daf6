"""The published schema and the reader agree about what a manifest is."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.skills.example import changed

from ringfence.authority.finding import errors
from ringfence.authority.limit_names import NAMES
from ringfence.authority.manifest_reader import read_manifest
from ringfence.skills.shelf import SHIPPED, Shelf
from ringfence.skills.validation import value_problems

SCHEMA = json.loads((SHIPPED / "_schema" / "manifest.schema.json").read_text())

RIGHT: list[tuple[str, Any]] = [
    ("id", "shell.run"),
    ("id", "a.b.c0"),
    ("version", "2.1"),
    ("safety_class", "low"),
    ("safety_class", "Medium"),
    ("side_effect", "read"),
    ("side_effect", ["Read", "network"]),
    ("permissions.fs", {}),
    ("permissions.net", ...),
    ("permissions.fs.read", ["inputs/**", "work/**", "artifacts/**"]),
    ("permissions.fs.write", ["work/a/*.txt", "artifacts/x"]),
    ("permissions.run", ["python", "bash"]),
    ("limits", dict.fromkeys(NAMES, 1)),
    ("limits.cpu_cores", 0.5),
    ("limits", ...),
    ("runtime.image", "other:1"),
]
UNCLEAR = (
    *("work/", "work//**", "work/a/", "work/./a", "work/.", "inputs//", "work/a//b", "./work/a", "work/\n"),
    *("work/a**", "work/***", "work/[ab]*", "work/*.{a,b}", "work/!?", "work/a\x00", "work/a\n", "work/\x7f"),
)
WRONG: list[tuple[str, Any]] = [
    *((name, ...) for name in ("schema_version", "id", "name", "description", "interface", "runtime", "permissions")),
    *((f"interface.{name}", ...) for name in ("inputs", "outputs")),
    *((f"runtime.{name}", ...) for name in ("kind", "image", "entrypoint")),
    *(("id", name) for name in ("Shell", "shell", "shell..run", "shell.run\n", ".run", "shell.", "sh-ell.run", "", 5)),
    *(("runtime.kind", kind) for kind in ("process", "native", "Docker", None)),
    *(("permissions.net.mode", mode) for mode in ("allowlist", "safe_retrieval", "unrestricted", "", None)),
    *(
        (f"permissions.fs.{side}", [glob])
        for side in ("read", "write")
        for glob in ("../x", "/etc/**", "work/../x", "other/**", "*", "**", "work", "worker/**", "/work/**", "work/..")
    ),
    *(("permissions.fs.write", [glob]) for glob in UNCLEAR),
    ("permissions.fs.read", "work/**"),
    ("permissions.fs.read", [5]),
    ("permissions.fs.exec", ["work/**"]),
    ("permissions.secrets", []),
    ("permissions.run", ["cobol"]),
    ("schema_version", 2),
    ("schema_version", "1"),
    ("schema_version", True),
    ("name", ""),
    ("name", " "),
    ("description", 5),
    ("interface.inputs", "text"),
    ("runtime.entrypoint", "bash"),
    ("runtime.entrypoint", []),
    ("runtime.entrypoint", [""]),
    ("runtime.user", "root"),
    ("limits.memory", 5),
    ("limits.memory_mb", 0),
    ("limits.memory_mb", "256"),
    ("limits.timeout_ms", -1),
    ("limits.timeout_ms", True),
    ("limits.timeout_ms", 10**30),
    ("limits.memory_mb", 2**53),
    ("safety_class", "critical"),
    ("side_effect", "explode"),
    ("comment", "hi"),
]


def verdicts(path: str, value: Any) -> tuple[bool, bool]:
    form = changed({path: value})
    wrong = errors(read_manifest(json.dumps(form).encode())[1])
    assert all(finding.fix and finding.path for finding in wrong)
    return not wrong, value_problems(SCHEMA, form) == []


@pytest.mark.parametrize(("path", "value"), RIGHT)
def test_both_take_what_is_a_manifest(path: str, value: Any) -> None:
    assert verdicts(path, value) == (True, True)


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_both_refuse_what_is_none(path: str, value: Any) -> None:
    assert verdicts(path, value) == (False, False)


@given(st.lists(st.sampled_from([*"ax/*?[]{}!\\. \n\x7fé", "**", "//", ".."]), max_size=6).map("".join))
def test_both_take_the_same_globs(rest: str) -> None:
    ours, published = verdicts("permissions.fs.read", [f"work/{rest}"])
    assert ours == published


@pytest.mark.parametrize("value", [2**53, 10**30, 1e300])
def test_a_limit_beyond_every_number_is_told_the_ceiling(value: float) -> None:
    (wrong,) = errors(read_manifest(json.dumps(changed({"limits": {"timeout_ms": value}})).encode())[1])
    assert (wrong.path, wrong.message) == ("limits.timeout_ms", "timeout_ms must be below 9007199254740992")
    assert wrong.fix == "write a number above 0 and below 9007199254740992"


def test_the_schema_knows_every_limit_there_is() -> None:
    assert set(SCHEMA["properties"]["limits"]["properties"]) == set(NAMES)


def test_every_shipped_skill_and_the_template_are_without_a_mistake() -> None:
    shelved = Shelf(()).read()
    assert shelved.findings == ()
    assert list(shelved.skills) == ["file.search", "python.run", "shell.run", "web.fetch"]
    for form in [
        *(skill.manifest.text for skill in shelved.skills.values()),
        (SHIPPED / "_template" / "manifest.json").read_bytes(),
    ]:
        jsonschema.validate(json.loads(form), SCHEMA)
