"""Every kind of a budget holds for code, in one call and over all calls of a session: what is left is all there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ringfence import Limits, QuotaExceeded, SandboxManager
from ringfence.capability.budget import KINDS

pytestmark = pytest.mark.needs("native")

_DISK = "open('/output/a', 'wb', 0).write(bytes(5_000_000)); open('/output/b', 'wb', 0).write(bytes(5_000_000))"
_FILES = "for at in range(9): open(f'/output/{at}', 'w').close()"
_WORK_FILES = "for at in range(99): open(f'{at}', 'w').close()"
# kind → (its amount, what would use more, the reason of the refusal once it is used up)
SPENDERS = [
    ("calls", "1", "1", "calls"),
    ("cpu_ms", "300", "while True: pass", "cpu_ms"),
    ("wall_ms", "300", "import time; time.sleep(60)", "wall_ms"),
    ("bytes_out", "10", "print('x' * 1000)", "bytes_out"),
    ("disk_bytes", "1MB", _DISK, "disk"),
    ("file_count", "2", _FILES, "file_count"),
    ("file_count", "2", _WORK_FILES, "file_count"),
]


async def run(place: Path, policy: str, code: str, times: int) -> list[Any]:
    (place / "policy.yaml").write_text(policy)
    done: list[Any] = []
    # no more memory than is spoken of: what nobody can have is not reserved
    asked: dict[str, Any] = {"limits": Limits(memory_bytes=200_000_000, wall_seconds=5)}
    async with SandboxManager("s", home=place / "home", policy_file=place / "policy.yaml", **asked) as manager:
        for _ in range(times):
            try:
                done.append(await manager.execute_code("python", code))
            except QuotaExceeded as refused:
                done.append(refused.reason)
    return done


@pytest.mark.parametrize(("kind", "amount", "code", "reason"), SPENDERS)
async def test_what_is_used_up_in_a_session_is_used_up(
    tmp_path: Path, kind: str, amount: str, code: str, reason: str
) -> None:
    policy = f"budgets: {{session: {{'*': {{{kind}: {amount}}}}}}}\n"
    first, *others = await run(tmp_path, policy, code, 3)
    assert others == [reason, reason]
    used = first.used
    assert first.stdout_bytes <= 1001
    assert sum(artifact.size for artifact in first.artifacts) + sum(first.changes.sizes) <= 1024 * 1024
    assert (used.file_count or 0) <= 16


async def test_memory_is_had_for_no_longer_than_is_left_of_it(tmp_path: Path) -> None:
    policy = "budgets: {session: {'*': {memory_mb_s: 40}}}\n"
    done = await run(tmp_path, policy, "x = b'x' * 80_000_000\nwhile True: pass", 6)
    had = [result.used for result in done if result != "memory"]
    assert done[0].reason == "wall_timeout"  # well before the five seconds that were asked for
    # a limit is seen a little late, which is why it is not exactly 40
    assert sum(used.memory_peak_bytes * used.wall_ms for used in had) / 1e9 <= 60


def test_every_kind_is_here_but_those_that_no_code_uses_by_itself() -> None:
    beyond = {"bytes_in", "gpu_ms", "concurrent"}  # hosts, a GPU, and others beside it
    beyond |= {"memory_mb_s"}  # above
    assert {kind for kind, *_ in SPENDERS} | beyond == set(KINDS)


@pytest.mark.parametrize("kind", ["disk_bytes", "file_count", "bytes_out", "cpu_ms", "calls"])
async def test_of_nothing_nothing_is_begun(tmp_path: Path, kind: str) -> None:
    (answer,) = await run(tmp_path, f"policies: {{default: {{budget: {{{kind}: 0}}}}}}\n", "print('ran')", 1)
    assert answer == {"disk_bytes": "disk"}.get(kind, kind)
