"""Which executions somebody means, and where a page goes on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest
from ringfence.interfaces.cli.evidence_selection import (
    OUTCOMES,
    STATUSES,
    Selection,
    add_selection,
    every,
    from_cursor,
    page,
    read_selection,
    to_cursor,
)
from ringfence.interfaces.cli.options import StrictParser
from ringfence.interfaces.cli.usage import UsageError
from ringfence.journal.store import Exec

NOW = 1_800_000_000_000


def selected(*words: str) -> Selection:
    parser = StrictParser(prog="ringfence evidence list")
    add_selection(parser)
    return read_selection(parser.parse_args(list(words)), NOW)


class Rows:
    """Answers as the journal does: newest first, after where the last page ended."""

    def __init__(self, rows: list[Exec]) -> None:
        self.rows = sorted(rows, key=lambda row: (row.started_ms, row.exec_id), reverse=True)
        self.asked = 0

    def executions(
        self, filters: dict[str, str], *, since_ms: Any, until_ms: Any, before: tuple[int, str] | None, limit: int
    ) -> tuple[Exec, ...]:
        self.asked += 1
        found = [row for row in self.rows if all(getattr(row, name) == value for name, value in filters.items())]
        if before is not None:
            found = [row for row in found if (row.started_ms, row.exec_id) < before]
        return tuple(found[:limit])


def test_nothing_said_means_everything_the_running_too() -> None:
    assert selected() == Selection({}, None, None, None, is_running=True)
    assert selected().is_everything


def test_each_option_names_the_field_of_the_record() -> None:
    words = ["--tool", "a", "--task", "b", "--user", "c", "--space", "d", "--turn", "e", "--conversation", "f"]
    words += ["--project", "g", "--session", "h", "--tenant", "i", "--subject", "j", "--call", "k", "--skill", "l"]
    assert selected(*words).filters == {
        "tool_name": "a",
        "task_id": "b",
        "user_id": "c",
        "space_id": "d",
        "turn_id": "e",
        "conversation_id": "f",
        "project_id": "g",
        "session_id": "h",
        "tenant": "i",
        "subject_id": "j",
        "call_id": "k",
        "skill_id": "l",
    }


def test_the_statuses_cover_every_outcome_once() -> None:
    covered = [outcome for outcomes in STATUSES.values() for outcome in outcomes]
    assert sorted(covered) == sorted(OUTCOMES)


def test_a_status_is_all_of_its_outcomes_and_not_what_runs() -> None:
    found = selected("--status", "error")
    assert found.outcomes == ("failed", "timed_out", "killed", "cancelled", "error")
    assert not found.is_running
    assert selected("--status", "running").outcomes == ()
    assert selected("--status", "running").is_running


def test_times_are_ages_or_moments() -> None:
    found = selected("--since", "1h", "--until", "2027-01-15T07:30Z")
    assert found.since_ms == NOW - 3_600_000
    assert found.until_ms == 1_799_998_200_000


@pytest.mark.parametrize(
    "words",
    [
        ("--since", "yesterday"),
        ("--until", "1 hour"),
        ("--since", "1h", "--until", "2h"),
        ("--status", "ok", "--outcome", "denied"),
        ("--status", "fine"),
        ("--outcome", "ok"),
        ("--too", "x"),
    ],
)
def test_what_selects_nothing_that_could_be_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        selected(*words)


def test_a_selection_is_described_for_whoever_is_handed_it() -> None:
    found = selected("--task", "T", "--outcome", "denied", "--since", "1s")
    assert found.described() == {"task_id": "T", "outcome": "denied", "since_ms": str(NOW - 1000)}


_EXECS = st.builds(
    lambda at, name, outcome: Exec(f"ex_{name}", 1, 0, 1, at, outcome),
    st.integers(0, 3),
    st.integers(0, 10_000),
    st.sampled_from(OUTCOMES),
)


@given(st.lists(_EXECS, unique_by=lambda row: row.exec_id, max_size=30), st.integers(1, 7))
def test_pages_in_a_row_are_the_whole_without_a_gap_or_a_repetition(rows: list[Exec], limit: int) -> None:
    reader = Rows(rows)
    selection = Selection({}, ("failed", "timed_out", "denied"))
    seen: list[Exec] = []
    before: tuple[int, str] | None = None
    while True:
        found, more = page(reader, selection, before, limit)  # type: ignore[arg-type]
        seen += found
        if not more:
            break
        before = from_cursor(to_cursor(found[-1]))
    assert seen == [row for row in reader.rows if row.outcome in ("failed", "timed_out", "denied")]
    assert [*every(reader, selection)] == seen  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["", "x", "!!!!", "MTIz", "eCB5", "AAAA" * 30])
def test_a_cursor_that_nobody_wrote_is_refused(word: str) -> None:
    with pytest.raises(InvalidRequest, match="no cursor"):
        from_cursor(word)
