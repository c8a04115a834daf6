"""All cases in their order: run the ones asked for and gather one report."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from ringfence.bench.boxes import boxes
from ringfence.bench.changes import changes
from ringfence.bench.containers import docker
from ringfence.bench.doors import http_crowd, http_idle, http_list, http_p50
from ringfence.bench.fetching import fetch
from ringfence.bench.gvisor import gvisor
from ringfence.bench.latency import cold, javascript, neighbours, preload, unparked, warm
from ringfence.bench.law import law
from ringfence.bench.load import burst, crowd, footprint
from ringfence.bench.machine import machine
from ringfence.bench.pages import browser_open
from ringfence.bench.proof import evidence, journal
from ringfence.bench.report import Report
from ringfence.bench.snapshots import snapshots
from ringfence.bench.subject import QUICK, Bench, Measured
from ringfence.bench.way_out import way_out

Case = Callable[[Bench], Awaitable[Measured]]

CASES: dict[str, Case] = {
    "warm": warm,
    "unparked": unparked,
    "crowd": crowd,
    "burst": burst,
    "preload": preload,
    "javascript": javascript,
    "footprint": footprint,
    "cold": cold,
    "law": law,
    "changes": changes,
    "evidence": evidence,
    "journal": journal,
    "snapshots": snapshots,
    "http_p50": http_p50,
    "http_crowd": http_crowd,
    "http_idle": http_idle,
    "http_list": http_list,
    "fetch": fetch,
    "docker": docker,
    "gvisor": gvisor,
    "egress": way_out,
    "browser_open": browser_open,
    "boxes": boxes,
    "neighbours": neighbours,
}


async def measure(bench: Bench, only: Collection[str] = ()) -> Report:
    """Run the cases named in `only`, or all of them."""
    facts = machine()
    results = []
    for name, case in CASES.items():
        if only and name not in only:
            continue
        bench.say(f"measuring {name}: {(case.__doc__ or '').partition(chr(10))[0]}")
        results.append(await case(bench))
    return Report(
        machine=facts,
        quick=bench.settings == QUICK,
        lines=tuple(line for result in results for line in result.lines),
        series=tuple(series for result in results for series in result.series),
    )
