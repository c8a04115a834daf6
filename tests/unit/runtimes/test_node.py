"""Which Node is taken, and what a changed or lone binary does to that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringfence.errors import RuntimeMissing
from ringfence.runtimes import node
from ringfence.runtimes.node import NodeRuntime, describe, find_node, parse_version, require_node


def installation(root: Path, script: str) -> Path:
    binary = root / "bin/node"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    (root / "include/node").mkdir(parents=True)
    (root / "include/node/node_version.h").touch()
    return binary


def answering(binary: Path, version: str, strips: str, count: Path) -> str:
    return f"""echo started >> {count}; echo '["{binary}", "{version}", {strips}]'"""


@pytest.fixture
def only_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_WHEEL_PACKAGE", "no_such_package_of_node")


@pytest.mark.parametrize(
    ("text", "version"),
    [("22.13.1", (22, 13, 1)), ("v24.0.0-nightly", (24, 0, 0)), ("24", None), ("a.b.c", None), ("1.2.\u0663", None)],
)
def test_a_version_is_three_numbers(text: str, version: tuple[int, int, int] | None) -> None:
    assert parse_version(text) == version


def test_a_node_below_usr_is_already_in_the_box() -> None:
    runtime = describe(Path("/usr/bin/node"), "20.19.2", has_stripper=False)
    assert runtime == NodeRuntime(Path("/usr/bin/node"), (20, 19, 2), Path("/usr/bin"), strips_types=False)
    assert (runtime.needs_mount, runtime.box_path) == (False, Path("/usr/bin/node"))


def test_another_node_is_mounted_by_its_directory_of_binaries(tmp_path: Path) -> None:
    binary = installation(tmp_path, "")
    runtime = describe(binary, "24.1.0", has_stripper=True)
    assert runtime == NodeRuntime(binary, (24, 1, 0), tmp_path / "bin", strips_types=True)
    assert runtime.argv(typescript=True) == (
        "/opt/ringfence/node/node",
        "--disable-warning=ExperimentalWarning",
        "/opt/ringfence/node_bootstrap.js",
        "typescript",
    )


def test_a_lone_binary_is_not_taken_because_its_directory_would_be_shown(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    assert describe(tmp_path / "bin/node", "24.1.0", has_stripper=True) is None


@pytest.mark.parametrize("version", ["18.20.8", "20.11.1", "nonsense"])
def test_a_node_that_is_too_old_is_not_taken(version: str) -> None:
    assert describe(Path("/usr/bin/node"), version, has_stripper=False) is None


@pytest.mark.parametrize(("version", "has_stripper"), [("22.12.0", True), ("24.0.0", False)])
def test_types_are_stripped_only_by_a_node_that_can_and_is_new_enough(version: str, has_stripper: bool) -> None:
    runtime = describe(Path("/usr/bin/node"), version, has_stripper=has_stripper)
    assert runtime is not None
    assert not runtime.strips_types


@pytest.mark.usefixtures("only_on_path")
def test_a_known_binary_is_not_started_again_and_a_changed_one_is(tmp_path: Path) -> None:
    count, cache, root = tmp_path / "count", tmp_path / "cache/node.json", tmp_path / "node"
    binary = installation(root, answering(root / "bin/node", "20.19.2", "false", count))
    first = find_node(search_path=str(binary.parent), cache=cache)
    assert first is not None
    assert find_node(search_path=str(binary.parent), cache=cache) == first
    assert count.read_text().split() == ["started"]
    binary.write_text("#!/bin/sh\n" + answering(binary, "24.10.0", "true", count) + "\n")
    upgraded = find_node(search_path=str(binary.parent), cache=cache)
    assert upgraded is not None
    assert (upgraded.version, upgraded.strips_types) == ((24, 10, 0), True)
    assert count.read_text().split() == ["started", "started"]


@pytest.mark.usefixtures("only_on_path")
@pytest.mark.parametrize("garbage", ["", "[]", "{", '{"x": 3}', json.dumps({"x": ["a"]})])
def test_a_broken_cache_only_costs_another_look(tmp_path: Path, garbage: str) -> None:
    cache, root = tmp_path / "node.json", tmp_path / "node"
    binary = installation(root, answering(root / "bin/node", "20.19.2", "false", tmp_path / "count"))
    cache.write_text(garbage)
    assert find_node(search_path=str(binary.parent), cache=cache) is not None


@pytest.mark.usefixtures("only_on_path")
@pytest.mark.parametrize("script", ["exit 1", "echo hello", "echo '[1]'"])
def test_a_node_that_does_not_start_is_none(tmp_path: Path, script: str) -> None:
    binary = installation(tmp_path, script)
    assert find_node(search_path=str(binary.parent)) is None


@pytest.mark.usefixtures("only_on_path")
def test_a_missing_node_is_an_error_that_names_what_provides_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeMissing) as missing:
        require_node(typescript=False, search_path=str(tmp_path))
    assert missing.value.fix == "pip install 'ringfence[node]'"


@pytest.mark.usefixtures("only_on_path")
def test_an_old_node_is_good_for_javascript_alone(tmp_path: Path) -> None:
    binary = installation(tmp_path, answering(tmp_path / "bin/node", "20.19.2", "false", tmp_path / "count"))
    assert require_node(typescript=False, search_path=str(binary.parent)).version == (20, 19, 2)
    with pytest.raises(RuntimeMissing) as missing:
        require_node(typescript=True, search_path=str(binary.parent))
    assert missing.value.fix == "pip install 'ringfence[node]'"
