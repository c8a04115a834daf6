"""Looks at the evidence of a home for the doctor, who writes nothing: not even what a run would make or repair."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ringfence.budgets.owner import is_gone
from ringfence.clock import SystemClock
from ringfence.database.looking import looking
from ringfence.database.sqlite import DATABASE_NAME
from ringfence.dataclass import replace
from ringfence.doctor.facts import Journal
from ringfence.errors import RingfenceError
from ringfence.journal import store
from ringfence.journal.room import RESERVE_BYTES
from ringfence.journal.signer import key_in_home
from ringfence.observe.home import read_positions, settings_of
from ringfence.observe.settings import Only, SinkKind

if TYPE_CHECKING:
    from ringfence.database.port import Cursor

_SEE = "see what the message names"


def look_at_journal(home: Path, environ: Mapping[str, str]) -> Journal:
    """Return how the evidence of `home` stands; a problem is what would keep anything from running there."""
    url = environ.get("RINGFENCE_DATABASE") or None
    place = "a PostgreSQL server" if url is not None else str(home / DATABASE_NAME)
    journal = Journal(
        place, SystemClock().now_ms(), room_bytes=_room(home) if url is None else None, needed_bytes=RESERVE_BYTES
    )
    try:
        sinks = settings_of(home, environ).active_sinks
        journal = replace(journal, alerts=tuple(s.name for s in sinks if s.kind is SinkKind.WEBHOOK))
        journal = _with_key(journal, home)
        with looking(home, url) as view:
            if view is None:
                return journal
            if view.is_older:  # the next run brings it up to date
                return replace(journal, exists=True)
            sent = [read_positions(home).get(sink.name, {}) for sink in sinks if sink.only is Only.ALL]
            return _counted(view.cursor, replace(journal, exists=True), sent, on_this_machine=url is None)
    except RingfenceError as problem:
        return replace(journal, exists=True, problem=str(problem), fix=problem.fix or _SEE)


def _with_key(journal: Journal, home: Path) -> Journal:
    try:
        key = key_in_home(home)
    except RingfenceError as problem:
        return replace(journal, key_problem=str(problem), key_fix=problem.fix or _SEE)
    return replace(journal, key="" if key is None else key.name)


def _counted(cursor: Cursor, journal: Journal, sent: list[Mapping[str, int]], *, on_this_machine: bool) -> Journal:
    logs = store.logs(cursor)
    # Who writes to a server may be on another machine, and asking for his lease would take it: he counts as alive.
    gone = {log.number for log in logs if on_this_machine and log.held and is_gone(log.owner)}
    states = {log.number: store.state(cursor, log.number) for log in logs}
    last = {number: store.record(cursor, number, state.size - 1) for number, state in states.items()}
    newest = max((row.time_ms, number) for number, row in last.items() if row) if any(last.values()) else None
    signed = [checkpoint.time_ms for log in logs if (checkpoint := store.last_checkpoint(cursor, log.number))]
    waiting = [sum(state.size - 1 - position.get(state.log_id, -1) for state in states.values()) for position in sent]
    head = ""
    if newest is not None:
        state = states[newest[1]]
        head = f"{state.last_hash.hex()[:16]} at {state.size - 1} of {state.log_id}"
    return replace(
        journal,
        records=sum(state.size for state in states.values()),
        last_write_ms=None if newest is None else newest[0],
        last_checkpoint_ms=max(signed, default=None),
        unsigned=sum(state.size - state.frontier_size for state in states.values()),
        is_written_now=any(log.held and log.number not in gone for log in logs),
        orphans=sum(each.log in gone for each in store.open_execs(cursor)),
        head=head,
        backlog=max(waiting, default=0),
    )


def _room(home: Path) -> int | None:
    """Return what is left on the disk of a home, or of where it would be made."""
    there = next((path for path in (home, *home.absolute().parents) if path.exists()), Path("/"))
    try:
        found = os.statvfs(there)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
