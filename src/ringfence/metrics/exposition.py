"""The recorder's numbers in the text that Prometheus scrapes (0.0.4) and, on request, in OpenMetrics 1.0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from ringfence.dataclass import dataclass
from ringfence.metrics.families import ALIASES, FAMILIES, Alias, Family, Kind
from ringfence.metrics.recorder import Recorder
from ringfence.metrics.series import Key, summed

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Shown:
    """One family as it is shown under one of its names."""

    name: str
    kind: Kind
    help: str
    labels: Key
    scale: int
    buckets: tuple[int, ...]
    cells: dict[Key, Any]


def shown(recorder: Recorder, *, aliases: bool = True) -> tuple[Shown, ...]:
    """Return every family with its numbers, and the older names unless they are switched off.

    A counter without labels begins at nought, so that its first rise can be seen; a label set begins with its first
    record, because nobody knows before which there will be.
    """
    cells = recorder.cells()
    names: list[Shown] = []
    for family in FAMILIES:
        own = cells.get(family.name, {})
        if not family.labels and not own and family.kind is not Kind.GAUGE:
            own = {(): [0] * (len(family.buckets) + 2) if family.kind is Kind.HISTOGRAM else 0}
        names.append(Shown(family.name, family.kind, family.help, family.labels, family.scale, family.buckets, own))
    if aliases:
        names.extend(_alias(alias, alias.of, cells.get(alias.of.name, {})) for alias in ALIASES)
    return tuple(names)


def prometheus_text(recorder: Recorder, *, aliases: bool = True) -> str:
    """Return the exposition in the text format 0.0.4."""
    lines: list[str] = []
    for one in shown(recorder, aliases=aliases):
        lines.extend(_family(one, one.name, one.kind if _may_be_called(one) else "untyped"))
    return "".join(lines)


def openmetrics_text(recorder: Recorder, *, aliases: bool = True) -> str:
    """Return the exposition as OpenMetrics."""
    lines: list[str] = []
    for one in shown(recorder, aliases=aliases):
        lines.extend(_family(one, one.name.removesuffix("_total"), one.kind if _may_be_called(one) else "unknown"))
    return "".join([*lines, "# EOF\n"])


def _may_be_called(one: Shown) -> bool:
    # a reader may add `_total` to the name of a counter that lacks it, and `sandbox_cpu_ms` would be lost
    return one.kind is not Kind.COUNTER or one.name.endswith("_total")


def _alias(alias: Alias, family: Family, cells: dict[Key, Any]) -> Shown:
    totals = summed(cells.items(), family.labels, alias.labels)
    return Shown(alias.name, family.kind, alias.help, alias.labels, alias.scale, family.buckets, totals)


def _family(one: Shown, name: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {_escaped_help(one.help)}\n# TYPE {name} {kind}\n"
    for key, cell in sorted(one.cells.items()):
        pairs = [f'{label}="{_escaped(value)}"' for label, value in zip(one.labels, key, strict=True)]
        if one.kind is Kind.HISTOGRAM:
            yield from _histogram(one, pairs, cell)
        else:
            yield f"{one.name}{_braced(pairs)} {_number(cell, one.scale)}\n"


def _histogram(one: Shown, pairs: list[str], cell: list[int]) -> Iterator[str]:
    total = 0
    for bound, count in zip((*one.buckets, None), cell[:-1], strict=True):
        total += count
        # "1.0" and never "1": the bound is text in a label, and must be the same text in every exposition
        le = "+Inf" if bound is None else _decimal(bound, one.scale)
        bounded = [*pairs, f'le="{le}"']
        yield f"{one.name}_bucket{_braced(bounded)} {total}\n"
    yield f"{one.name}_sum{_braced(pairs)} {_number(cell[-1], one.scale)}\n"
    yield f"{one.name}_count{_braced(pairs)} {total}\n"


def _braced(pairs: Iterable[str]) -> str:
    inside = ",".join(pairs)
    return f"{{{inside}}}" if inside else ""


def _number(value: int, scale: int) -> str:
    return str(value) if scale == 1 else _decimal(value, scale)


def _decimal(value: int, scale: int) -> str:
    """Return value ÷ scale in decimal digits, exactly; a scale is a power of ten."""
    whole, rest = divmod(value, scale)
    return f"{whole}.{str(rest).rjust(len(str(scale)) - 1, '0').rstrip('0') or '0'}"


def _escaped(value: str) -> str:
    # a line break in a tool's name would otherwise begin a line, and so a metric, of the caller's own making
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escaped_help(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
