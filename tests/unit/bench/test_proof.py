from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.journal_checks import verified
from tests.unit.bench.scripted import TINY, ScriptedManager, bench_of, measured

from ringfence import SandboxManager
from ringfence.bench import proof
from ringfence.bench.filled import fill
from ringfence.bench.promise import EVIDENCE, JOURNAL_SCALE, VERIFY_MEMORY, VERIFY_RATE
from ringfence.bench.proof import added_lines, evidence, file_system, journal, scale_line
from ringfence.bench.series import Series
from ringfence.bench.unrecorded import Unrecorded, open_both
from ringfence.bench.verifying import Verification, verify_apart, verify_here
from ringfence.database.sqlite import SqliteDatabase
from ringfence.journal.reader import reading


def ms(*values: float) -> Series:
    return Series("x", tuple(value / 1000 for value in values))


@pytest.mark.parametrize(
    ("with_it", "without", "share", "verdict"),
    [
        (1.8, 1.4, 0.8, "PASS"),  # of 0.5 ms, which is more than a quarter
        (2.0, 1.4, 1.2, "miss"),
        (9.8, 8.0, 0.9, "PASS"),  # of a quarter, which is more than 0.5 ms
        (10.2, 8.0, 1.1, "miss"),
    ],
)
def test_evidence_may_add_the_larger_of_its_two_bounds(
    with_it: float, without: float, share: float, verdict: str
) -> None:
    line = added_lines(ms(with_it), ms(without))[0]
    assert line.measured == pytest.approx(share)
    assert line.verdict == verdict


def test_what_evidence_adds_is_told_in_milliseconds_and_as_a_share_too() -> None:
    _, added, share, _ = added_lines(ms(3.0), ms(2.0))
    assert added.measured == pytest.approx(1.0)
    assert added.unit == "ms"
    assert share.measured == pytest.approx(0.5)


def test_the_worst_of_what_a_large_journal_costs_is_judged() -> None:
    line = scale_line({"append": (ms(1.1), ms(1.0)), "fetch": (ms(0.7), ms(0.5)), "list": (ms(1), ms(1))}, 1000)
    assert line.measured == pytest.approx(1.4)
    assert line.verdict == "miss"
    assert "append 1.10" in line.detail


@pytest.fixture
def on_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the place where tests write for a disk, whatever it is."""
    monkeypatch.setattr(proof, "file_system", lambda _: "ext4")


@pytest.mark.usefixtures("on_a_disk")
def test_evidence_is_measured_in_turn_on_one_pool_in_a_home_that_goes_away(tmp_path: Path) -> None:
    manager = ScriptedManager()
    result = asyncio.run(evidence(bench_of(manager, tmp_path)))
    (opened,) = manager.opened
    assert opened["home"].parent == tmp_path
    assert not opened["home"].exists()
    assert manager.calls == 2 * (TINY.warm_up + TINY.pairs)
    assert measured(result.lines) == {EVIDENCE.id: True}
    assert [len(series.seconds) for series in result.series] == [TINY.pairs] * 2


@pytest.mark.usefixtures("on_a_disk")
def test_a_journal_is_filled_measured_and_verified(tmp_path: Path) -> None:
    result = asyncio.run(journal(bench_of(ScriptedManager(), tmp_path)))
    assert measured(result.lines) == {JOURNAL_SCALE.id: True, VERIFY_RATE.id: True, VERIFY_MEMORY.id: True}
    assert {len(series.seconds) for series in result.series} == {TINY.journal_rounds}
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_forgets_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "file_system", lambda _: "tmpfs")
    manager = ScriptedManager()
    for case in (evidence, journal):
        lines = asyncio.run(case(bench_of(manager, tmp_path))).lines
        assert {line.verdict for line in lines} == {"not measured"}
    assert manager.calls == 0


def test_the_kind_of_a_file_system_is_read_from_the_kernel() -> None:
    assert file_system(Path("/proc")) == "proc"
    assert file_system(Path("/sys")) == "sysfs"


def test_a_filled_journal_verifies_and_says_who_signed_it(tmp_path: Path) -> None:
    fill(tmp_path, 1500)
    (report,) = verified(tmp_path).reports
    assert (report.records, report.open_execs, report.signed_size) == (3000, 0, 3000)
    assert report.checkpoints == 3
    assert report.signer == "proven"


def test_a_filled_journal_that_was_altered_is_not_proven(tmp_path: Path) -> None:
    kind = fill(tmp_path, 10)
    database = SqliteDatabase.in_home(tmp_path)
    with database.transaction() as cursor:
        cursor.execute("UPDATE journal_record SET body = replace(body, 'failed', 'passed') WHERE seq = 1")
    with reading(database) as reader:
        found = reader.execution(kind.exec_id(0))
    database.close()
    assert found is not None
    assert not verify_here(tmp_path).proven


def test_verifying_is_done_by_another_process(tmp_path: Path) -> None:
    fill(tmp_path, 10)
    found = verify_apart(tmp_path)
    assert (found.proven, found.records, found.checkpoints) == (True, 20, 1)
    assert found.cpu_seconds > 0


def test_memory_has_grown_by_the_most_that_was_seen() -> None:
    assert Verification(True, 1, 1, 1.0, (10, 30, 20)).grown_bytes == 20


@pytest.mark.needs("native")
async def test_only_one_of_the_two_managers_leaves_evidence(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with open_both(home) as (recorded, unrecorded):
        assert isinstance(recorded, SandboxManager)
        assert isinstance(unrecorded, Unrecorded)
        ours = await recorded.execute_code(language="python", code="print(1)")
        theirs = await unrecorded.execute_code(language="python", code="print(1)")
        assert ours.stdout == theirs.stdout == "1\n"
    (report,) = verified(home).reports
    database = SqliteDatabase.in_home(home)
    with reading(database) as reader:
        assert [found.exec_id for found in reader.executions({})] == [ours.exec_id]
    database.close()
    assert report.open_execs == 0
