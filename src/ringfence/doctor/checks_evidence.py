"""The items of the deployment check-list about evidence: that it is kept, that it is written, that somebody is told."""

from __future__ import annotations

from ringfence.doctor.facts import Facts, Journal
from ringfence.doctor.finding import Finding, Health

AUDIT_LOG = "S1-144"
_ALERT = "violation alert"
_LONGEST_UNSIGNED_MS = 120_000  # twice what a writer waits before it signs
_NEXT_RUN = "ringfence run -c pass"


def evidence(facts: Facts) -> tuple[Finding, ...]:
    """Return the findings of this part of the list."""
    journal = facts.journal
    if journal is None:
        return tuple(
            Finding(check, title, Health.UNKNOWN, "the journal was not looked at")
            for check, title in ((AUDIT_LOG, "audit log"), ("S1-149", "audit log writing"), ("S1-150", _ALERT))
        )
    return _kept(journal), _written(journal), _told(journal)


def _kept(journal: Journal) -> Finding:
    """Nothing runs without evidence, so it is on wherever it can be written, and where it cannot nothing runs."""
    if journal.problem:
        return Finding(
            AUDIT_LOG, "audit log", Health.FAIL, journal.problem, "nothing runs that cannot be recorded", journal.fix
        )
    if journal.room_bytes is not None and journal.room_bytes < journal.needed_bytes:
        return Finding(
            AUDIT_LOG,
            "audit log",
            Health.FAIL,
            f"{journal.room_bytes} bytes are left on the disk of {journal.place}, {journal.needed_bytes} are needed",
            "nothing begins whose end could not be written",
            "free some disk space",
        )
    if journal.key_problem:
        return Finding(
            AUDIT_LOG,
            "audit log",
            Health.WARN,
            f"on, and nothing is signed: {journal.key_problem}",
            "a tail that was cut off, or records that were all written anew, could not be told from the true ones",
            journal.key_fix,
        )
    if not journal.exists:
        return Finding(AUDIT_LOG, "audit log", Health.OK, f"on: begins with the first run, in {journal.place}")
    signed = f", signed by {journal.key}" if journal.key else ""
    return Finding(AUDIT_LOG, "audit log", Health.OK, f"on: {journal.records} records in {journal.place}{signed}")


def _written(journal: Journal) -> Finding:
    """How old the last record is says nothing by itself: a home may be idle. What was left undone does."""
    check, title = "S1-149", "audit log writing"
    if journal.problem or journal.last_write_ms is None:
        return Finding(check, title, Health.UNKNOWN, "nothing was written yet" if not journal.problem else "see above")
    found = (
        f"last write {_age(journal, journal.last_write_ms)}, last checkpoint "
        f"{_age(journal, journal.last_checkpoint_ms)}, {journal.unsigned} unsigned, {journal.backlog} not sent, "
        f"head {journal.head}"
    )
    if journal.orphans:
        return Finding(
            check,
            title,
            Health.WARN,
            f"{journal.orphans} runs were left open by a process that is gone; {found}",
            "their ends are not written, and their budgets stay reserved, until the next run closes them",
            _NEXT_RUN,
        )
    stale = journal.now_ms - journal.last_write_ms > _LONGEST_UNSIGNED_MS
    if journal.unsigned and (stale or not journal.is_written_now):
        return Finding(
            check,
            title,
            Health.WARN,
            found,
            "a tail that no checkpoint covers could be cut off without anybody noticing",
            _NEXT_RUN,
        )
    if journal.backlog and not journal.is_written_now:
        return Finding(
            check,
            title,
            Health.WARN,
            found,
            "those who watch have not been sent the newest records, which the journal has",
            f"see that they can be reached, then: {_NEXT_RUN}",
        )
    return Finding(check, title, Health.OK, found)


def _told(journal: Journal) -> Finding:
    if journal.alerts:
        return Finding("S1-150", _ALERT, Health.OK, f"denied calls are told to {', '.join(journal.alerts)}")
    return Finding(
        "S1-150",
        _ALERT,
        Health.UNKNOWN,
        "denied calls are recorded, and nobody is told",
        fix="export RINGFENCE_WEBHOOK=https://HOST/PATH",
    )


def _age(journal: Journal, then_ms: int | None) -> str:
    """Return how long ago it was; a clock that was set back makes nothing older or younger than now."""
    if then_ms is None:
        return "never"
    return f"{max(0, journal.now_ms - then_ms) // 1000} s ago"
