"""The numbers are the same however the records came: live, read again, or continued from a snapshot."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest
from ringfence.metrics import series
from ringfence.metrics.exposition import openmetrics_text, prometheus_text
from ringfence.metrics.recorder import Recorder, from_records
from ringfence.metrics.snapshot import continued, restore, snapshot

NAMES = st.sampled_from(["code_run", "fs_write", "web_fetch", 'od"d\n'])
PAIRS = st.fixed_dictionaries(
    {
        "tool_name": NAMES,
        "language": st.sampled_from(["python", "bash"]),
        "tenant": st.sampled_from(["local", "acme"]),
        "domain": st.sampled_from(["code", "fs"]),
        "status": st.sampled_from(["ok", "error", "denied"]),
        "reason": st.sampled_from(["none", "orphaned", "isolation_unavailable", "blocked"]),
        "duration_us": st.integers(0, 10**10),
        "log": st.integers(0, 2),
        "ends": st.booleans(),
        "denied": st.booleans(),
        "asked": st.booleans(),
    }
)


def journal(calls: list[dict[str, Any]], order: random.Random) -> list[dict[str, Any]]:
    """Return records of several logs as they were committed: each log in order, the calls interleaved."""
    waiting: list[list[dict[str, Any]]] = []
    for number, call in enumerate(calls):
        shared = {
            "exec_id": f"ex-{number}",
            "envelope_id": f"ev-{number}",
            "log_id": f"lg-{call['log']}",
            "time_ms": number * 10,
            **{name: call[name] for name in ("tool_name", "tenant")},
        }
        begin = shared | {"type": "exec.begin", "language": call["language"], "domain": call["domain"]}
        end = shared | {
            "type": "exec.end",
            "error_code": "TOOL.EXECUTION_FAILED",
            **{name: call[name] for name in ("status", "reason", "duration_us")},
        }
        steps = [{**end, "type": "decision.denied"}] if call["denied"] else [begin, end] if call["ends"] else [begin]
        if call["asked"]:
            steps = [shared | {"type": "consent.requested"}, shared | {"type": "consent.granted"}, *steps]
        waiting.append(steps)
    records = []
    next_seq: dict[str, int] = {}
    while waiting:
        steps = order.choice(waiting)
        record = steps.pop(0)
        if not steps:
            waiting.remove(steps)
        record["seq"] = next_seq.get(record["log_id"], 0)
        next_seq[record["log_id"]] = record["seq"] + 1
        records.append(record)
    return records


@given(st.lists(PAIRS, max_size=25), st.randoms(use_true_random=False), st.data())
@settings(max_examples=60, deadline=None)
def test_live_rebuilt_and_continued_counts_are_the_same(
    calls: list[dict[str, Any]], order: random.Random, data: st.DataObject
) -> None:
    records = journal(calls, order)
    live = Recorder()
    for record in records:
        live.record(record)

    log_by_log = sorted(records, key=lambda record: (record["log_id"], record["seq"]))
    rebuilt = from_records(log_by_log)

    cut = data.draw(st.integers(0, len(records)))
    saved = json.loads(json.dumps(snapshot(from_records(records[:cut]))))
    continued = restore(saved)
    continued.catch_up(log_by_log)

    assert live.cells() == rebuilt.cells() == continued.cells()
    assert prometheus_text(live) == prometheus_text(rebuilt) == prometheus_text(continued)
    assert openmetrics_text(live) == openmetrics_text(continued)
    assert live.position == rebuilt.position == continued.position


@given(st.lists(PAIRS, max_size=15), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_a_record_that_comes_again_is_counted_once(calls: list[dict[str, Any]], order: random.Random) -> None:
    records = journal(calls, order)
    once, twice = from_records(records), from_records([*records, *records])
    assert once.cells() == twice.cells()


def test_a_snapshot_at_the_cap_admits_no_more_than_its_recorder_would(made: Any) -> None:
    flood = [made.denied(tool_name=f"invented-{n}") for n in range(2 * series.MOST_VALUES["tool"])]
    live = from_records(flood)
    continued = restore(json.loads(json.dumps(snapshot(live))))
    for counted in (live, continued):
        counted.catch_up(made.denied(tool_name=f"later-{n}") for n in range(50))
    assert live.cells() == continued.cells()


def test_restoring_what_was_saved_saves_the_same(made: Any) -> None:
    counted = from_records([made.begin(), made.end(), made.begin("ex-2"), made.denied()])
    counted.checkpointed(17)
    saved = snapshot(counted)
    assert snapshot(restore(saved)) == saved


@pytest.mark.parametrize("saved", ["good", "damaged", "none"])
def test_only_what_the_journal_gained_is_read_unless_what_was_saved_is_of_no_use(made: Any, saved: str) -> None:
    records = [
        {**each, "log_id": "lg-1", "seq": seq} for seq, each in enumerate([made.begin(), made.end(), made.denied()])
    ]
    kept = {"good": snapshot(from_records(records[:2])), "damaged": {"v": 0}, "none": None}[saved]
    asked: list[Mapping[str, int]] = []

    def read(position: Mapping[str, int]) -> list[dict[str, Any]]:
        asked.append(position)
        return [each for each in records if each["seq"] > position.get("lg-1", -1)]

    assert continued(kept, read).cells() == from_records(records).cells()
    assert asked == [{"lg-1": 1} if saved == "good" else {}]


DAMAGE: list[Callable[[dict[str, Any]], Any]] = [
    lambda saved: None,
    lambda saved: [],
    lambda saved: saved | {"v": 2},
    lambda saved: saved | {"tables": {}},
    lambda saved: saved | {"buckets": {}},
    lambda saved: saved | {"position": {"lg-1": -1}},
    lambda saved: saved | {"position": {"lg-1": True}},
    lambda saved: saved | {"position": None},
    lambda saved: saved | {"open": {"ex-1": ["code_run"]}},
    lambda saved: saved | {"approvals": {"ap-1": "now"}},
    lambda saved: saved | {"checkpoint_ms": None},
    lambda saved: saved | {"values": {}},
    lambda saved: saved | {"values": saved["values"] | {"sandbox_errors_total": [["a"]]}},
    lambda saved: saved | {"tables": saved["tables"] | {"sandbox_errors_total": [[["a"], 1]]}},
    lambda saved: saved | {"tables": saved["tables"] | {"sandbox_errors_total": [[["a", "b"], 1.5]]}},
    lambda saved: saved | {"tables": saved["tables"] | {"sandbox_errors_total": [[["a", 3], 1]]}},
    lambda saved: saved | {"tables": saved["tables"] | {"sandbox_errors_total": [7]}},
    lambda saved: saved | {"tables": saved["tables"] | {"sandbox_guard_validate_ms": [[[], [1, 2]]]}},
    lambda saved: saved | {"tables": saved["tables"] | {"sandbox_errors_total": [[["a", "b"], 1]] * 9_999}},
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_snapshot_is_refused_whole(made: Any, damage: Callable[[dict[str, Any]], Any]) -> None:
    saved = json.loads(json.dumps(snapshot(from_records([made.begin(), made.end()]))))
    restore(saved)
    with pytest.raises(InvalidRequest, match="the saved metrics cannot be used"):
        restore(damage(saved))
