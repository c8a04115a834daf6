"""The bench's answer: a table for people, an object for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringfence.bench.promise import Line
from ringfence.bench.series import Series
from ringfence.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """One bench run, whole."""

    machine: Mapping[str, str]
    quick: bool
    lines: tuple[Line, ...]
    series: tuple[Series, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the run as plain JSON values, with the distribution of every series."""
        return {
            "machine": dict(self.machine),
            "quick": self.quick,
            "lines": [line.to_dict() for line in self.lines],
            "series": [series.to_dict() for series in self.series],
        }


def table(report: Report) -> str:
    """Return the table: promised, measured, verdict, and what the ratio was made of."""
    rows = [("", "promised", "measured", "", ""), *(_row(line) for line in report.lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [_align(row, widths) for row in rows]
    facts = [f"  {name:<{max(map(len, report.machine))}}  {value}" for name, value in report.machine.items()]
    quick = ["", "quick: too few runs to quote"] if report.quick else []
    return "\n".join([*lines, *quick, "", *facts]) + "\n"


def _row(line: Line) -> tuple[str, str, str, str, str]:
    promised = "" if line.promise is None else f"{line.promise.sense} {line.promise.bound:g} {line.promise.unit}"
    measured = "-" if line.measured is None else f"{line.measured:.3g} {line.unit}"
    return line.title, promised, measured, line.verdict, line.detail


def _align(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[4]]).rstrip()
