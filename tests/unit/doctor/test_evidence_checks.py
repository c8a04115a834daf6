from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.doctor.test_diagnosis import GOOD, finding

from ringfence.doctor.diagnosis import diagnose
from ringfence.doctor.facts import Facts, Journal
from ringfence.doctor.finding import Health
from ringfence.doctor.report import report

NOW = 1_000_000_000
FRESH = Journal("/home/u/.ringfence/ringfence.db", NOW, room_bytes=1 << 30, needed_bytes=1 << 24)
WRITTEN = replace(
    FRESH,
    exists=True,
    key="ringfence/00112233",
    records=12,
    last_write_ms=NOW - 5000,
    last_checkpoint_ms=NOW - 5000,
    head="0123456789abcdef at 11 of lg_1",
)


def over(journal: Journal) -> Facts:
    return replace(GOOD, journal=journal)


def statuses(journal: Journal) -> list[Health]:
    return [finding(over(journal), check).status for check in ("S1-144", "S1-149")]


def test_before_the_first_run_it_is_on_and_nothing_was_written() -> None:
    assert statuses(FRESH) == [Health.OK, Health.UNKNOWN]


def test_what_is_written_and_signed_is_shown_with_its_age_and_its_head() -> None:
    assert statuses(WRITTEN) == [Health.OK, Health.OK]
    found = finding(over(WRITTEN), "S1-149").found
    assert "last write 5 s ago" in found
    assert found.endswith("head 0123456789abcdef at 11 of lg_1")


def test_a_clock_that_was_set_back_makes_no_age_negative() -> None:
    ahead = replace(WRITTEN, last_write_ms=NOW + 5000)
    assert "last write 0 s ago" in finding(over(ahead), "S1-149").found


@pytest.mark.parametrize(
    "refusing",
    [
        replace(WRITTEN, problem="ringfence.db cannot be read: file is not a database", fix="restore it"),
        replace(WRITTEN, room_bytes=(1 << 24) - 1),
    ],
)
def test_where_nothing_can_be_recorded_the_verdict_is_that_nothing_runs(refusing: Journal) -> None:
    diagnosis = diagnose(over(refusing))
    assert statuses(refusing)[0] is Health.FAIL
    assert not diagnosis.is_ready
    assert diagnosis.verdict.startswith("nothing runs here until it can be recorded: ")
    assert "\x1b[31mringfence doctor: nothing runs" in report(diagnosis, colour=True)


def test_what_is_written_and_cannot_be_signed_warns_and_runs() -> None:
    unsigned = replace(WRITTEN, key_problem="signer.key has mode 644", key_fix="chmod 600 signer.key")
    found = finding(over(unsigned), "S1-144")
    assert (found.status, found.fix) == (Health.WARN, "chmod 600 signer.key")
    assert diagnose(over(unsigned)).is_ready


@pytest.mark.parametrize(
    "undone",
    [
        replace(WRITTEN, orphans=1),
        replace(WRITTEN, orphans=1, is_written_now=True),
        replace(WRITTEN, unsigned=1),
        replace(WRITTEN, unsigned=1, is_written_now=True, last_write_ms=NOW - 121_000),
        replace(WRITTEN, backlog=3),
    ],
)
def test_what_was_left_undone_is_told_with_what_it_means_and_what_ends_it(undone: Journal) -> None:
    found = finding(over(undone), "S1-149")
    assert found.status is Health.WARN
    assert found.means
    assert found.fix


@pytest.mark.parametrize("waiting", [replace(WRITTEN, unsigned=7), replace(WRITTEN, backlog=7)])
def test_what_a_living_writer_will_sign_and_send_is_nothing_to_worry_about(waiting: Journal) -> None:
    assert statuses(replace(waiting, is_written_now=True))[1] is Health.OK


def test_who_is_told_of_violations_is_named() -> None:
    assert finding(over(WRITTEN), "S1-150").status is Health.UNKNOWN
    told = finding(over(replace(WRITTEN, alerts=("webhook:hooks.example.com#1",))), "S1-150")
    assert (told.status, told.found) == (Health.OK, "denied calls are told to webhook:hooks.example.com#1")
