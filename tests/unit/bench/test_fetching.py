"""The case that measures retrieval: a real server, a real client, and pages that are checked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.bench.scripted import TINY, ScriptedManager, bench_of

from ringfence.bench import fetching
from ringfence.bench.fetching import fetch


def test_a_page_is_fetched_both_ways_and_the_whole_way_is_shown_beside_it(tmp_path: Path) -> None:
    measured = asyncio.run(fetch(replace(bench_of(ScriptedManager()), home=tmp_path, settings=replace(TINY, pairs=4))))
    promised, whole = measured.lines
    assert promised.promise is not None
    assert (promised.promise.id, promised.measured is not None, whole.promise) == ("fetch", True, None)
    assert [len(series.seconds) for series in measured.series] == [4, 4, 4]


def test_without_a_client_to_compare_with_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "find_spec", lambda _: None)
    measured = asyncio.run(fetch(replace(bench_of(ScriptedManager()), home=tmp_path)))
    assert [line.verdict for line in measured.lines] == ["not measured"]
