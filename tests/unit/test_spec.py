"""SPEC.md says in prose tables what the code says in values: this holds the two together."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from ringfence import operation
from ringfence.bench.measure import CASES
from ringfence.bench.promise import PROMISES
from ringfence.bench.proof import ADDED_SECONDS, ADDED_SHARE, PAGE
from ringfence.bench.subject import QUICK, Settings
from ringfence.capability.limits import SYSTEM_CEILING, Limits
from ringfence.isolation.pool.decide import PoolPolicy

SPEC = (Path(__file__).resolve().parents[2] / "SPEC.md").read_text()
UNITS = {"": 1, "s": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def rows(heading: str) -> dict[str, list[str]]:
    """Return the table below a heading: the first cell without its backticks → the other cells."""
    section = re.split(r"^#+ ", SPEC.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    table = [line for line in section.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {first.strip("`"): rest for first, *rest in cells}


def value(cell: str) -> float:
    """Read `16,384`, `60 s` or `256 MiB`."""
    number, _, unit = cell.partition(" ")
    return float(number.replace(",", "")) * UNITS[unit]


def test_the_defaults_and_ceilings_are_those_of_the_code() -> None:
    written = {
        name: (value(cells[0]), value(cells[1])) for name, cells in rows("Defaults and ceilings (checked)").items()
    }
    default = Limits()
    assert written == {
        field.name: (getattr(default, field.name), getattr(SYSTEM_CEILING, field.name)) for field in fields(Limits)
    }


def test_the_request_caps_are_those_of_the_code() -> None:
    written = {name: value(cells[0]) for name, cells in rows("What a request may bring (checked)").items()}
    assert written == {name: most for name, most in vars(operation).items() if name.startswith("MAX_")}


def test_the_pool_is_sized_as_the_code_sizes_it() -> None:
    written = {name: value(cells[0]) for name, cells in rows("The pool (checked)").items()}
    assert written == {field.name: getattr(PoolPolicy(), field.name) for field in fields(PoolPolicy)}


def test_every_promise_is_written_with_its_bound_and_a_case_that_measures_it() -> None:
    written = rows("Promises (checked)")
    assert list(written) == [promise.id for promise in PROMISES]
    for promise in PROMISES:
        _, bound, case = written[promise.id]
        sense, number, unit = bound.split(" ", 2)
        assert (sense, float(number), unit) == (promise.sense, promise.bound, promise.unit)
        assert case.strip("`") in CASES


def test_every_promise_has_its_line_among_the_measured() -> None:
    assert list(rows("Measured")) == [promise.id for promise in PROMISES]


@pytest.mark.parametrize(
    ("sentence", "count"),
    [
        ("{:,} pairs", Settings().pairs),
        ("{:,} runs from", Settings().crowd_runs),
        ("{:,} concurrent callers", Settings().crowd_callers),
        ("{:,} calls at once", Settings().burst),
        ("after {:g} s idle", Settings().idle_seconds),
        ("median of {:,} bursts", Settings().bursts),
        ("at least {:,} parked", Settings().parked),
        ("p50 of {:,}", Settings().cold_pairs),
        ("with {:,} records", Settings().journal_records),
        ("{:,} times each", Settings().journal_rounds),
        ("{:,} records with `--quick`", QUICK.journal_records),
        ("first page of {:,}", PAGE),
        ("in turn, {:,} times", Settings().snapshot_rounds),
        ("{:,} files and 200 MB", Settings().snapshot_files),
        ("the larger of {:g} ms", ADDED_SECONDS * 1000),
        ("and {:g} % of the run", ADDED_SHARE * 100),
    ],
)
def test_the_counts_in_the_definitions_are_those_the_bench_uses(sentence: str, count: float) -> None:
    assert sentence.format(count) in SPEC
