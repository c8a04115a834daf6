"""What is promised, as data: each line of SPEC.md's speed section with its bound, and the verdict on a measurement."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Any

from ringfence.dataclass import dataclass


class Sense(StrEnum):
    """Which side of the bound is good."""

    AT_MOST = "<="
    AT_LEAST = ">="


@dataclass(frozen=True, slots=True)
class Promise:
    """One promised number; `unit` is `x bare` for a ratio."""

    id: str
    title: str
    bound: float
    sense: Sense = Sense.AT_MOST
    unit: str = "x bare"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the result: a promise or a comparison, what was measured, and what it was made of."""

    title: str
    measured: float | None
    detail: str = ""
    promise: Promise | None = None
    unit: str = "x bare"

    @property
    def verdict(self) -> str:
        """`PASS` or `miss` for a promise that was measured; otherwise why there is none."""
        if self.promise is None:
            return ""
        if self.measured is None:
            return "not measured"
        kept = (
            self.measured <= self.promise.bound
            if self.promise.sense is Sense.AT_MOST
            else self.measured >= self.promise.bound
        )
        return "PASS" if kept else "miss"

    def to_dict(self) -> dict[str, Any]:
        """Return the line as plain JSON values."""
        return {
            "title": self.title,
            "promise": None if self.promise is None else asdict(self.promise) | {"sense": str(self.promise.sense)},
            "measured": self.measured,
            "unit": self.unit,
            "verdict": self.verdict,
            "detail": self.detail,
        }


def judged(promise: Promise, measured: float | None, detail: str = "") -> Line:
    """Hold a measurement against its promise."""
    return Line(promise.title, measured, detail, promise, promise.unit)


WARM_P50 = Promise("warm_p50", "warm print(1), p50", 0.10)
WARM_P99 = Promise("warm_p99", "warm print(1), p99 to bare's p50", 1.0)
GOVERNED_P50 = Promise("governed_p50", "warm print(1), p50, with law and proof on", 0.15)
UNPARKED_P50 = Promise("unparked_p50", "un-parked print(1), p50", 0.6)
CROWD = Promise("crowd", "runs per second, 16 callers", 2.5, Sense.AT_LEAST)
CROWD_GROWTH = Promise("crowd_growth", "kinds of growth under it (memory, fds, cgroups, mounts)", 0, unit="kinds")
BURST = Promise("burst", "burst of 100 after idling, time to the last", 0.6)
PRELOAD = Promise("preload_p50", "import numpy, pandas preloaded, p50", 0.05)
JAVASCRIPT = Promise("javascript_p50", "parked javascript, p50, to node -e", 0.2)
FOOTPRINT = Promise("footprint", "mean PSS of worker plus init, parked", 3.0, unit="MB")
COLD = Promise("cold_p50", "ringfence run -c 'print(1)' from a cold shell, p50", 10.0)
LAW_P95 = Promise("law_p95", "profile and guard of one call, p95", 0.1, unit="ms")
LAW_SCALE = Promise("law_scale", "the same with 1,000 tools and 200 roles, p50, to 10 and 2", 1.3, unit="x small")
EVIDENCE = Promise("evidence", "what evidence adds to a warm run, p50, to 0.5 ms or 25 % of it", 1.0, unit="x allowed")
JOURNAL_SCALE = Promise(
    "journal_scale", "append, fetch and list with 1,000,000 records, p50, worst, to none", 1.3, unit="x empty"
)
VERIFY_RATE = Promise("verify_rate", "records verified in a second of one core", 10_000, Sense.AT_LEAST, "records/s")
VERIFY_MEMORY = Promise("verify_memory", "resident memory that verifying them adds", 32, unit="MB")
SNAPSHOT_FIRST = Promise(
    "snapshot_first", "first snapshot of 10,000 files and 200 MB, p50, to cp -a", 1.0, unit="x cp -a"
)
SNAPSHOT_NEXT = Promise("snapshot_next", "the same with 1 % changed, p50, to cp -a", 0.3, unit="x cp -a")
HTTP_P50 = Promise("http_p50", "POST /sandbox/execs with wait, warm print(1), p50", 0.5)
HTTP_CROWD_ERRORS = Promise("http_crowd_errors", "errors, 64 clients", 0, unit="answers")
HTTP_CROWD_P99 = Promise("http_crowd_p99", "latency, 64 clients, p99 to bare's p99 with 64 threads", 1.0)
HTTP_CROWD = Promise("http_crowd", "runs per second, 64 clients", 1.5, Sense.AT_LEAST)
HTTP_IDLE = Promise("http_idle", "resident memory that 1,000 idle clients add", 50, unit="MB")
HTTP_LIST = Promise("http_list", "first page of a list of 1,000,000 executions, p50, to 100", 1.3, unit="x small")
FETCH = Promise(
    "fetch", "10 kB from loopback through safe retrieval, p50, to an open httpx.Client", 2.0, unit="x httpx"
)
DOCKER_RUN = Promise("docker_run", "parked container, p50, to docker run of the same code", 0.05, unit="x docker run")
DOCKER_EXEC = Promise("docker_exec", "the same to docker exec in a running one", 0.15, unit="x docker exec")
DOCKER_LEFT = Promise("docker_left", "containers left by 200 runs from 8 callers", 0, unit="containers")
DOCKER_BESIDE = Promise(
    "docker_beside", "native print(1), p50, while containers are refilled, to alone", 2.0, unit="x alone"
)
GVISOR_P50 = Promise("gvisor_p50", "warm print(1) under gVisor, p50, to a cold runsc run", 0.05, unit="x runsc run")
EGRESS_RATE = Promise(
    "egress_rate", "100 MB through the egress proxy, p50, to plain loopback", 0.5, Sense.AT_LEAST, "x direct"
)
EGRESS_LATENCY = Promise(
    "egress_latency", "what the proxy adds to a small request, p50, to 2 ms or as much again", 1.0, unit="x allowed"
)
EGRESS_TUNNELS = Promise(
    "egress_tunnels", "of 500 tunnels at once: unfinished, and descriptors left", 0, unit="of both"
)
BROWSER_OPEN = Promise(
    "browser_open", "a page opened and pictured in a boxed browser, p50, to bare Playwright", 1.5, unit="x playwright"
)

PROMISES = (
    WARM_P50,
    WARM_P99,
    GOVERNED_P50,
    UNPARKED_P50,
    CROWD,
    CROWD_GROWTH,
    BURST,
    PRELOAD,
    JAVASCRIPT,
    FOOTPRINT,
    COLD,
    LAW_P95,
    LAW_SCALE,
    EVIDENCE,
    JOURNAL_SCALE,
    VERIFY_RATE,
    VERIFY_MEMORY,
    SNAPSHOT_FIRST,
    SNAPSHOT_NEXT,
    HTTP_P50,
    HTTP_CROWD_ERRORS,
    HTTP_CROWD_P99,
    HTTP_CROWD,
    HTTP_IDLE,
    HTTP_LIST,
    FETCH,
    DOCKER_RUN,
    DOCKER_EXEC,
    DOCKER_LEFT,
    DOCKER_BESIDE,
    GVISOR_P50,
    EGRESS_RATE,
    EGRESS_LATENCY,
    EGRESS_TUNNELS,
    BROWSER_OPEN,
)
