from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.bench.scripted import TINY, ScriptedManager, bench_of

from ringfence.bench import proof
from ringfence.bench.promise import SNAPSHOT_FIRST, SNAPSHOT_NEXT
from ringfence.bench.series import Series
from ringfence.bench.snapshots import lines, snapshots


def test_both_are_held_against_the_copy() -> None:
    first, following = lines(Series("", (1.0, 1.0)), Series("", (0.9, 1.1)), Series("", (0.5, 0.5)), 10_000)
    assert (first.promise, first.verdict) == (SNAPSHOT_FIRST, "PASS")
    assert (following.promise, following.verdict) == (SNAPSHOT_NEXT, "miss")
    assert "200 MB, n=2" in first.detail


async def test_every_round_copies_keeps_and_keeps_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "file_system", lambda _: "ext4")
    measured = await snapshots(bench_of(ScriptedManager(), tmp_path))
    assert [len(series.seconds) for series in measured.series] == [TINY.snapshot_rounds] * 3
    assert all(line.measured is not None for line in measured.lines)


async def test_what_is_no_disk_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "file_system", lambda _: "tmpfs")
    measured = await snapshots(bench_of(ScriptedManager(), tmp_path))
    assert [line.verdict for line in measured.lines] == ["not measured"] * 2
