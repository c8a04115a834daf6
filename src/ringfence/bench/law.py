"""What judging a call costs, beside the box: one profile and one verdict, under a small policy and under a huge one."""

from __future__ import annotations

import time
from collections.abc import Callable

from ringfence import wiring
from ringfence.authority.local import LocalAuthority
from ringfence.authority.policy import PolicySnapshot
from ringfence.bench import promise
from ringfence.bench.promise import Line, judged
from ringfence.bench.series import Series
from ringfence.bench.subject import Bench, Measured
from ringfence.clock import SystemClock
from ringfence.errors import Unavailable
from ringfence.guard.policy_guard import PolicyGuard
from ringfence.operation import CodeRun, Language

_SMALL = (10, 2)
_LARGE = (1000, 200)
_PROGRAM = CodeRun(Language.PYTHON, "print(sum(range(10)))")


async def law(bench: Bench) -> Measured:
    """Profile and guard for one call, one after the other; 1,000 tools and 200 roles against 10 and 2."""
    try:
        small, large = _judging(_snapshot(*_SMALL)), _judging(_snapshot(*_LARGE))
    except Unavailable as missing:
        detail = str(missing)
        return Measured((judged(promise.LAW_P95, None, detail), judged(promise.LAW_SCALE, None, detail)))
    runs = bench.settings.pairs
    much, little = _taken("law: 1,000 tools", large, runs), _taken("law: 10 tools", small, runs)
    rested = _taken("law: 10 tools, after a pause", small, runs, pause=bench.settings.gap_seconds / 4)
    ms = 1000
    return Measured(
        (
            judged(promise.LAW_P95, little.quantile(0.95) * ms, f"p50 {little.p50 * ms:.3f} ms, n={runs}"),
            judged(promise.LAW_SCALE, much.p50 / little.p50, f"{much.p50 * ms:.3f} ms to {little.p50 * ms:.3f} ms"),
            Line(
                "profile and guard after a pause, with cold caches, p95",
                rested.quantile(0.95) * ms,
                f"p50 {rested.p50 * ms:.3f} ms",
                unit="ms",
            ),
        ),
        (little, much, rested),
    )


def _taken(name: str, judge: Callable[[], None], runs: int, *, pause: float = 0.0) -> Series:
    taken = []
    for _ in range(runs):
        if pause:
            time.sleep(pause)  # nothing else is to run meanwhile
        began = time.perf_counter()
        judge()
        taken.append(time.perf_counter() - began)
    return Series(name, tuple(taken))


def _judging(policy: PolicySnapshot) -> Callable[[], None]:
    authority: LocalAuthority = wiring.authority_over(lambda: policy, SystemClock())
    guard = PolicyGuard(wiring.assess)

    def judge() -> None:
        profile = authority.profile(_PROGRAM, call_id="bench", role="role0")
        guard.validate(profile, _PROGRAM, now_ms=0).require_allowed()

    judge()
    return judge


def _snapshot(tools: int, roles: int) -> PolicySnapshot:
    from ringfence.authority.policy_reader import load_policy

    lines = ["policies:", "  default: {max_execution_time: 30s}", "  tools:", "    code_run: {max_memory: 512MB}"]
    lines += [
        f"    tool{number}: {{risk_level: low, max_execution_time: {number % 50 + 1}s}}" for number in range(tools)
    ]
    lines += ["  agent_roles:"]
    lines += [f"    role{number}: {{tools: [code_run, tool{number % tools}]}}" for number in range(roles)]
    return load_policy("\n".join(lines).encode())
