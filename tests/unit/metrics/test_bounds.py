"""A caller who invents names makes no memory of ours grow, and hides nothing of what others did."""

from __future__ import annotations

from typing import Any

from ringfence.metrics import families, recorder, series
from ringfence.metrics.exposition import prometheus_text, shown
from ringfence.metrics.recorder import Recorder, from_records
from ringfence.metrics.snapshot import snapshot

FLOOD = 3 * series.MOST_SERIES


def cells(counted: Recorder, family: families.Family) -> dict[tuple[str, ...], Any]:
    return counted.cells()[family.name]


def test_invented_tool_names_end_up_in_other(made: Any) -> None:
    counted = from_records(made.denied(tool_name=f"invented-{n}") for n in range(FLOOD))
    found = cells(counted, families.VIOLATIONS)
    assert len(found) == series.MOST_VALUES["tool"] + 1
    assert sum(found.values()) == FLOOD
    code = "SANDBOX.CAPABILITY_BLOCKED"
    assert found[series.OTHER, "blocked", code] == FLOOD - series.MOST_VALUES["tool"]


def test_invented_names_of_every_kind_together_stay_under_the_cap(made: Any) -> None:
    counted = Recorder()
    for n in range(FLOOD):
        counted.record(made.begin(f"ex-{n}", tool_name=f"t{n % 199}", tenant=f"n{n % 197}", language=f"l{n % 37}"))
        counted.record(made.end(f"ex-{n}", status=("ok", "error")[n % 2]))
    found = cells(counted, families.EXECUTIONS)
    assert len(found) <= 2 * series.MOST_SERIES + 1
    assert sum(found.values()) == FLOOD
    assert sum(count for key, count in found.items() if key[2] == "error") == FLOOD // 2, "the status is still told"


def test_names_invented_in_denials_leave_room_for_the_tools_that_run(made: Any) -> None:
    counted = from_records(made.denied(tool_name=f"invented-{n}", tenant=f"n{n}") for n in range(FLOOD))
    counted.catch_up([made.begin(), made.end()])
    (key,) = cells(counted, families.EXECUTIONS)
    assert key[0] == "code_run"


def test_denials_are_told_by_code_whatever_names_were_invented_before(made: Any) -> None:
    counted = from_records(made.denied(tool_name=f"t{n}", reason=f"r{n % 190}") for n in range(2 * FLOOD))
    counted.record(made.denied(tool_name="late", error_code="POLICY.DENY_TOOL", reason="r1"))
    (denied,) = (one for one in shown(counted) if one.name == "sandbox_denied_total")
    assert denied.cells == {("SANDBOX.CAPABILITY_BLOCKED",): 2 * FLOOD, ("POLICY.DENY_TOOL",): 1}


def test_even_labels_that_only_our_code_chooses_cannot_grow_without_end(made: Any) -> None:
    counted = Recorder()
    for n in range(FLOOD):
        begin = made.begin(
            f"ex-{n}", domain=f"d{n % 19}", safety=f"s{n % 9}", side_effect=f"e{n % 17}", tenant=f"t{n % 7}"
        )
        counted.record(begin)
        counted.record(made.end(f"ex-{n}"))
    found = cells(counted, families.EXECUTIONS)
    assert len(found) <= 2 * series.MOST_SERIES + 1
    assert sum(found.values()) == FLOOD


def test_a_name_as_long_as_a_book_is_not_kept(made: Any) -> None:
    book = "x" * 1_000_000
    counted = from_records([made.begin(tool_name=book, language=book), made.denied(tool_name=book)])
    assert len(str(snapshot(counted))) < 20_000
    counted.record(made.end())
    assert len(prometheus_text(counted)) < 20_000


def test_begins_that_never_end_are_given_up_oldest_first(made: Any) -> None:
    counted = from_records(made.begin(f"ex-{n}") for n in range(recorder.MOST_OPEN + 10))
    assert len(counted.open) == recorder.MOST_OPEN
    assert "ex-9" not in counted.open
    counted.record(made.end("ex-9"))
    (key,) = cells(counted, families.EXECUTIONS)
    assert key == ("code_run", "unknown", "ok", "unknown", "unknown", "unknown", "local")


def test_approvals_that_nobody_answers_are_given_up_too() -> None:
    counted = from_records(
        {"type": "consent.requested", "consent": {"id": f"ap-{n}"}, "time_ms": 1} for n in range(recorder.MOST_OPEN + 5)
    )
    assert len(counted.approvals) == recorder.MOST_OPEN


def test_more_sandboxes_than_the_cap_are_not_all_shown() -> None:
    counted = Recorder()
    counted.watch(families.MEMORY, lambda: {f"sb-{n}": n for n in range(FLOOD)})
    assert len(cells(counted, families.MEMORY)) == series.MOST_SERIES


def test_members_of_the_wrong_kind_are_counted_as_none(made: Any) -> None:
    odd = made.end(status=["ok"], budget_used=[1], duration_us="soon", cpu_ms=-5, reason={"a": 1}, error_code=7)
    counted = from_records([made.begin(tool_name=["x"], timings=[3]), odd])
    (key,) = cells(counted, families.EXECUTIONS)
    assert key[0] == key[2] == "none"
    assert cells(counted, families.CPU) == {(): 0}
