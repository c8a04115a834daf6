"""ARCHITECTURE.md names modules, functions and layers: each of them is there, in that order."""

from __future__ import annotations

import re
import tomllib
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ringfence.wiring import Settings, make_executors

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
LIFE = TEXT.partition("## The life of a worker")[2].partition("\n## ")[0]
# How the page shortens names: `native.box.build` is in the isolation package, `kernel.load_filter` in its linux part.
PACKAGES = ("ringfence.isolation.", "ringfence.", "ringfence.isolation.linux.", "ringfence.isolation.native.")


def named() -> list[str]:
    return sorted(set(re.findall(r"`((?:[a-z_]+\.)+[A-Za-z_]+(?:\._?[a-z_]+)?)`", LIFE)) - {"node_bootstrap.js"})


def resolves(name: str) -> bool:
    """Whether the dotted name leads to something in one of the packages."""
    for package in PACKAGES:
        parts = (package + name).split(".")
        for cut in range(len(parts) - 1, 1, -1):
            try:
                module = import_module(".".join(parts[:cut]))
            except ModuleNotFoundError:
                continue
            try:
                reduce(getattr, parts[cut:], module)
            except AttributeError:
                break
            return True
    return False


def test_the_life_of_a_worker_names_its_steps() -> None:
    assert len(named()) > 25


@pytest.mark.parametrize("name", named())
def test_every_step_in_the_life_of_a_worker_is_in_the_code(name: str) -> None:
    assert resolves(name)


def test_every_folder_and_module_in_the_tree_is_there_and_none_is_left_out() -> None:
    tree = TEXT.partition("src/ringfence/\n")[2].partition("\ntests/")[0]
    top = {name.rstrip("/") for name in re.findall(r"^[├└]── ([\w./]+)", tree, re.MULTILINE)}
    there = {path.name for path in (ROOT / "src" / "ringfence").iterdir()} - {
        "__pycache__",
        "py.typed",
        "identifiers.py",
        "version.py",
    }
    assert {name.partition("/")[0] for name in top} == there
    assert [name for name in top if not (ROOT / "src" / "ringfence" / name).exists()] == []


@pytest.mark.parametrize("package", ["isolation", "interfaces"])
def test_every_backend_and_every_door_has_its_line_in_the_tree(package: str) -> None:
    tree = TEXT.partition("src/ringfence/\n")[2].partition("\ntests/")[0]
    there = {path.parent.name for path in (ROOT / "src" / "ringfence" / package).glob("*/__init__.py")}
    assert there - set(re.findall(r"[─/] ?([a-z]+)(?=/)", tree)) == set()


def test_the_domains_are_those_that_executors_are_made_for() -> None:
    sentence = TEXT.partition("find the executor of its domain (")[2].partition(")")[0]
    nobody: Any = None
    made = make_executors(Settings(Path()), nobody, nobody, nobody, nobody)
    assert set(re.findall(r"`([a-z.]+)`", sentence)) == set(made)


def test_what_one_touches_is_there() -> None:
    table = TEXT.partition("## I want to… I touch")[2].partition("\n## ")[0]
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_*]+\.py)`", table)
    below = [ROOT / "src/ringfence" / part for part in ("", "isolation", "isolation/linux")]
    assert len(named) > 20
    assert [name for name in named if not any(list(place.glob(name)) for place in (ROOT, *below))] == []


def contracts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    return found


def contract(name: str) -> dict[str, Any]:
    """Return one contract of the import linter, by its name."""
    (found,) = (each for each in contracts() if each["name"] == name)
    return found


def test_every_contract_is_told_and_none_that_is_not_there() -> None:
    checked = TEXT.partition("## What a machine checks")[2].partition("\n## ")[0]
    assert re.findall(r"^- \*\*(.+?)\.\*\*", checked, re.MULTILINE) == [each["name"] for each in contracts()]


def test_the_executors_are_known_to_the_composition_root_alone() -> None:
    found = contract("Only the pipeline is given executors")
    assert (found["protected_modules"], found["allowed_importers"]) == (
        ["ringfence.executors"],
        ["ringfence.wiring"],
    )


def test_the_layers_are_those_the_import_contract_enforces() -> None:
    enforced = [re.findall(r"\w+", layer) for layer in contracts()[0]["layers"]]
    sentence = TEXT.partition("**The pipeline points one way.**")[2].partition(". A new top-level")[0]
    assert [re.findall(r"\w+", layer) for layer in sentence.split("→")] == enforced


def test_every_backend_there_is_can_be_reached_by_executors_alone() -> None:
    protected = contract("Only executors are given what acts")["protected_modules"]
    backends = {path.parent.name for path in (ROOT / "src/ringfence/isolation").glob("*/backend.py")}
    assert {f"ringfence.isolation.{name}.backend" for name in backends} <= set(protected)
    for module in protected:
        assert import_module(module).__name__ == module


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("ringfence.interfaces.http.execs", "ringfence.executors.net"),
        ("ringfence.service.house", "ringfence.executors.code"),
        ("ringfence.facade", "ringfence.isolation.native.backend"),
        ("ringfence.skilled", "ringfence.isolation.docker.backend"),
        ("ringfence.interfaces.cli.browse", "ringfence.browser.browsers"),
        ("ringfence.fetching", "ringfence.egress.retrieval"),
        ("ringfence.background", "ringfence.isolation.pool.pools"),
        ("ringfence.orchestrator.pipeline", "ringfence.executors.fs"),
    ],
)
def test_an_import_around_the_pipeline_breaks_a_contract(importer: str, imported: str) -> None:
    """Asks what import-linter asks of its graph, of the import that somebody might add."""
    guarding = [
        each
        for each in (contract("Only the pipeline is given executors"), contract("Only executors are given what acts"))
        if any(imported == module or imported.startswith(f"{module}.") for module in each["protected_modules"])
    ]
    assert guarding
    for each in guarding:
        assert not any(importer == name or importer.startswith(f"{name}.") for name in each["allowed_importers"])
