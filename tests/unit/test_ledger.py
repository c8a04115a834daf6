"""docs/ledger.md maps requirements to tests: every requirement is in it once, and every test it names is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
RANGES: tuple[tuple[str, Iterable[int]], ...] = (
    ("S0", range(1, 172)),
    (
        "S1",
        (
            *(7, *range(10, 13), *range(14, 18), *range(21, 26), *range(29, 41), 42, *range(44, 139)),
            *(*range(139, 155), 157, 158),
        ),
    ),
    ("S2", (7, *range(32, 52), *range(57, 63), 65, 66, 70)),
    ("S3", range(1, 94)),
    ("S4", range(1, 54)),
)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
WAITS = re.compile(r"waits for: ([\w/]+(?:, [\w/]+)*)(?:; so far (.+))?\Z")


class Entry(NamedTuple):
    """One line of the tables."""

    row: str
    shown: str


def entries() -> list[Entry]:
    lines = [line for line in (ROOT / "docs/ledger.md").read_text().splitlines() if line.startswith("| S")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]
    assert [cell for cell in cells if len(cell) != 3] == []
    return [Entry(row, shown) for row, _, shown in cells]


def parts() -> set[str]:
    """Return the parts that the page says a row may wait for."""
    told = (ROOT / "docs/ledger.md").read_text().partition("What rows wait for:")[2].partition("\n\n")[0]
    return set(re.findall(r"`([\w/]+)`", told))


@cache
def functions_in(file: str) -> frozenset[str]:
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    body = ast.parse(path.read_text()).body
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_requirement_of_the_law_the_proof_and_the_doors_is_there_exactly_once() -> None:
    wanted = [f"{document}-{number}" for document, numbers in RANGES for number in numbers]
    assert sorted(entry.row for entry in entries()) == sorted(wanted)


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.row)
def test_a_requirement_is_shown_by_tests_or_waits_for_a_part_that_is_named(entry: Entry) -> None:
    waiting = WAITS.match(entry.shown)
    if waiting:
        assert set(waiting[1].split(", ")) <= parts()
    tests = waiting[2] or "" if waiting else entry.shown
    assert waiting or tests
    # nothing but tests: a remark beside them could stand for one that is missing
    assert NAMED.sub("", tests).strip(", ") == ""
    assert [f"{file}::{name}" for file, name in NAMED.findall(tests) if name not in functions_in(file)] == []
