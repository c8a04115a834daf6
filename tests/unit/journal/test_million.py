"""A journal with a million records: all of it verifies in the memory of a small one, and its pages are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from ringfence.bench.filled import RUNS_PER_SESSION, Specimen, fill
from ringfence.bench.promise import VERIFY_MEMORY
from ringfence.bench.verifying import verify_apart
from ringfence.database.sqlite import SqliteDatabase
from ringfence.journal.reader import Reader, reading

pytestmark = pytest.mark.timeout(0)

RECORDS = 1_000_000
PAGE = 500


def test_a_million_records_verify_in_flat_memory_and_are_listed_page_by_page(
    tmp_path: Path, count: Callable[[int], int]
) -> None:
    runs = count(RECORDS) // 2
    kind = fill(tmp_path, runs)

    found = verify_apart(tmp_path)
    assert (found.proven, found.records) == (True, 2 * runs)
    # what the records take on the disk is several times as much, even here
    assert found.grown_bytes < VERIFY_MEMORY.bound * 1e6 < (tmp_path / "ringfence.db").stat().st_size / 2

    database = SqliteDatabase.in_home(tmp_path)
    try:
        with reading(database) as reader:
            require_right_pages(reader, kind, runs)
    finally:
        database.close()
        (tmp_path / "ringfence.db").unlink()  # gigabytes, which pytest would keep


def require_right_pages(reader: Reader, kind: Specimen, runs: int) -> None:
    newest_first = range(runs - 1, -1, -1)
    failed = [kind.exec_id(number) for number in newest_first if kind.failed(number)]
    assert list(names(reader, {"outcome": "failed"})) == failed
    everywhere = [kind.exec_id(number) for number in newest_first[: 3 * PAGE]]
    for filters in ({}, {"tool_name": "code_run"}):
        assert list(islice(names(reader, filters), 3 * PAGE)) == everywhere
    for number in (0, runs // 2, runs - 1):
        first = number // RUNS_PER_SESSION * RUNS_PER_SESSION
        own = range(min(first + RUNS_PER_SESSION, runs) - 1, first - 1, -1)
        session = {"session_id": kind.session_id(number)}
        assert list(names(reader, session)) == [kind.exec_id(each) for each in own]
        assert list(names(reader, session | {"outcome": "failed"})) == [
            kind.exec_id(each) for each in own if kind.failed(each)
        ]
    oldest = reader.execution(kind.exec_id(0))
    assert oldest is not None
    assert oldest.begin.seq == 0


def names(reader: Reader, filters: dict[str, str]) -> Iterator[str]:
    """Yield what a reader finds who turns page after page."""
    before = None
    while True:
        page = reader.executions(filters, before=before, limit=PAGE)
        yield from (each.exec_id for each in page)
        if len(page) < PAGE:
            return
        before = (page[-1].started_ms, page[-1].exec_id)
