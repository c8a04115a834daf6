"""`ringfence evidence prune` and `hold`: evidence that may grow old, evidence that may not, and a record of both."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfence.errors import InvalidRequest, Unavailable
from ringfence.interfaces.cli.evidence_desk import Desk, open_desk, parser, say
from ringfence.interfaces.cli.noting import note, open_journal, record
from ringfence.interfaces.cli.usage import UsageError

if TYPE_CHECKING:
    from ringfence.journal.pruning import Bounds


def prune_command(words: Sequence[str]) -> int:
    """Carry out `ringfence evidence prune` and return the exit code."""
    taken = parser("prune")
    taken.add_argument("--older-than", required=True)
    taken.add_argument("--rows", action="store_true")
    taken.add_argument("--content", action="store_true")
    taken.add_argument("--files", action="store_true")
    taken.add_argument("--key", action="append", default=[])
    taken.add_argument("--yes", action="store_true")
    options = taken.parse_args(list(words))
    from ringfence.interfaces.cli.policy_replay import moment

    desk = open_desk(options.home)
    before_ms = moment("--older-than", options.older_than, desk.now_ms)
    if before_ms > desk.now_ms:
        raise UsageError("--older-than is a time to come", fix="write it as 90d")
    parts = [part for part in ("rows", "content", "files") if getattr(options, part)] or ["texts"]
    _ = desk.database
    if not options.yes:
        from ringfence.evidence.projections.run import rfc3339

        raise UsageError(
            f"this takes away {', '.join(_MEANT[part] for part in parts)} from before {rfc3339(before_ms)} for good",
            fix="say --yes if that is meant",
        )
    journal = open_journal(desk.home)
    try:
        # written first: whatever happens then, somebody meant to take this away
        asked: dict[str, Any] = {"before_ms": before_ms, "parts": parts}
        bounds = _bounds(desk, before_ms, parts, options.key)
        record(journal, "admin.pruned", {**asked, "stage": "begun", "up_to": bounds.to_members()})
        journal.checkpoint()  # verifying believes what is signed, and must at any moment from now on
        gone = {part: _TAKE_AWAY[part](desk, before_ms, bounds) for part in parts}
        record(journal, "admin.pruned", {**asked, "stage": "done", "gone": gone})
    finally:
        journal.close()
    desk.forget_notes()
    if options.json:
        _print_json({"success": True, "before_ms": before_ms, "gone": gone})
    else:
        for part, count in gone.items():
            say(f"{count} {_COUNTED[part]}")
        sys.stdout.flush()
    return 0


def content_command(words: Sequence[str]) -> int:
    """Carry out `ringfence evidence content on|off|status|forget` and return the exit code."""
    taken = parser("content")
    taken.add_argument("action", choices=("on", "off", "status", "forget"))
    taken.add_argument("--yes", action="store_true")
    options = taken.parse_args(list(words))
    desk = open_desk(options.home)
    gone = 0
    if options.action in ("on", "off"):
        desk.contents.switch(on=options.action == "on")
    elif options.action == "forget":
        if not options.yes:
            raise UsageError("this destroys every kept content for good", fix="say --yes if that is meant")
        note(desk.home, "admin.pruned", {"parts": ["content"], "stage": "begun", "before_ms": desk.now_ms})
        gone = desk.contents.forget_all()
    is_on = desk.contents.is_switched_on()
    if options.json:
        _print_json({"success": True, "kept": is_on, "gone": gone})
        return 0
    if options.action == "forget":
        say(f"{gone} contents are gone, and every copy of one is noise")
    say(
        "contents of runs that begin from now on are kept, encrypted, in this home"
        if is_on
        else "contents are not kept in this home"
    )
    return 0


def hold_command(words: Sequence[str]) -> int:
    """Carry out `ringfence evidence hold add|list|release` and return the exit code."""
    action, rest = (words[0], list(words[1:])) if words else ("", [])
    if action not in _HOLDS:
        raise UsageError("'ringfence evidence hold' takes an action", fix=f"give one of {', '.join(_HOLDS)} first")
    return _HOLDS[action](rest)


def _add(words: Sequence[str]) -> int:
    from ringfence.journal import retention

    taken = parser("hold add")
    taken.add_argument("match", metavar="FIELD=VALUE")
    taken.add_argument("--reason", default="")
    options = taken.parse_args(list(words))
    field, equals, value = options.match.partition("=")
    if not equals or not value:
        raise UsageError(f"{options.match!r} is not FIELD=VALUE", fix="write it as task_id=T-7")
    if field not in retention.HOLD_FIELDS:
        raise UsageError(
            f"nothing is held by {field!r}", fix=f"hold by one of {', '.join(sorted(retention.HOLD_FIELDS))}"
        )
    desk = open_desk(options.home)
    _ = desk.database
    from ringfence.identifiers import TimeOrdered

    placed = retention.Hold(TimeOrdered().new("hold"), desk.now_ms, options.reason, field, value)
    with desk.database.transaction() as cursor:
        retention.hold(cursor, placed)
    note(
        desk.home, "admin.held", {"hold": {"id": placed.hold_id, "field": field, "value": value, "why": options.reason}}
    )
    _tell_hold(options, placed.hold_id, f"{placed.hold_id} keeps everything with {field} {value}")
    return 0


def _list(words: Sequence[str]) -> int:
    from ringfence.evidence.projections.run import rfc3339
    from ringfence.journal import retention

    options = parser("hold list").parse_args(list(words))
    with open_desk(options.home).database.reading() as cursor:
        placed = retention.holds(cursor)
    if options.json:
        _print_json({"success": True, "holds": [each._asdict() for each in placed]})
        return 0
    for each in placed:
        why = f"  {each.reason}" if each.reason else ""
        say(f"{each.hold_id}  {rfc3339(each.created_ms)}  {each.field}={each.value}{why}")
    if not placed:
        say("nothing is held")
    sys.stdout.flush()
    return 0


def _release(words: Sequence[str]) -> int:
    from ringfence.journal import retention

    taken = parser("hold release")
    taken.add_argument("id", metavar="HOLD_ID")
    options = taken.parse_args(list(words))
    desk = open_desk(options.home)
    with desk.database.transaction() as cursor:
        if not retention.release_hold(cursor, options.id):
            raise InvalidRequest(
                f"there is no hold {options.id!r}", reason="not_found", fix="see 'ringfence evidence hold list'"
            )
    note(desk.home, "admin.released", {"hold": {"id": options.id}})
    _tell_hold(options, options.id, f"{options.id} is released")
    return 0


_HOLDS: dict[str, Callable[[Sequence[str]], int]] = {"add": _add, "list": _list, "release": _release}
_MEANT = {
    "texts": "the texts of all records (their hashes stay)",
    "rows": "whole records",
    "content": "all kept contents",
    "files": "the files of all runs in their projects",
}
_COUNTED = {
    "texts": "records have only their hash left",
    "rows": "records were dropped",
    "content": "contents were deleted",
    "files": "runs have no files in their project any more",
}


def _bounds(desk: Desk, before_ms: int, parts: Sequence[str], keys: Sequence[str]) -> Bounds:
    """Return how far texts and rows may go now, and went before.

    Raises:
        Unavailable: The evidence is not whole: what somebody did to it must not be covered up by our taking it away.
    """
    from ringfence.evidence.verify import Trust
    from ringfence.journal.pruning import ROWS, TEXTS, Bounds
    from ringfence.journal.signer import trusted_keys, verify

    wanted = [part for part in (TEXTS, ROWS) if part in parts]
    if not wanted:
        return Bounds()
    own = desk.key
    trusted = [key for given in keys for key in trusted_keys(given)] + ([] if own is None else [own])
    refusal = Unavailable(
        "the evidence is not whole, and pruning it would hide what was done to it",
        reason="damaged",
        fix="see 'ringfence evidence verify'; the keys of other homes that write here are given with --key",
    )
    try:
        with desk.reading() as reader:
            found = reader.verify(Trust(verify, keys=tuple(trusted)))
            old = reader.last_before(before_ms)
    except (TypeError, ValueError, LookupError, AttributeError, InvalidRequest) as error:
        raise refusal from error  # a table that somebody wrote to by hand may hold anything
    if not found.is_whole:
        raise refusal
    for part in wanted:
        for log_id, seq in old.items():
            found.pruned.widen(part, log_id, seq)
    return found.pruned


def _prune_texts(desk: Desk, before_ms: int, bounds: Bounds) -> int:
    from ringfence.journal import retention, store

    with desk.database.reading() as cursor:
        up_to = {log.number: bounds.texts.get(log.log_id, -1) for log in store.logs(cursor)}
    gone, start = 0, 0
    while True:
        with desk.database.transaction() as cursor:
            done = retention.prune_bodies(cursor, before_ms, up_to, start)
        gone += done.texts
        if done.following is None:
            return gone
        start = done.following


def _drop_rows(desk: Desk, before_ms: int, bounds: Bounds) -> int:
    from ringfence.journal import retention, store

    gone = 0
    with desk.database.reading() as cursor:
        numbers = [log.number for log in store.logs(cursor)]
    for number in numbers:
        while True:
            with desk.database.transaction() as cursor:
                # as it is now: each round moves where the log begins
                log = next(each for each in store.logs(cursor) if each.number == number)
                dropped = retention.drop_rows(cursor, log, before_ms, bounds.rows.get(log.log_id, -1))
            if not dropped:
                break
            gone += dropped
    return gone


def _prune_content(desk: Desk, before_ms: int, _: Bounds) -> int:
    return desk.contents.prune(before_ms, held=_held(desk).contents)


def _prune_files(desk: Desk, before_ms: int, _: Bounds) -> int:
    from ringfence.workspaces.exec_retention import prune_exec_files

    held = _held(desk).exec_ids
    return len(prune_exec_files(desk.home, before_ms, held=held.__contains__))


class _Held(NamedTuple):
    exec_ids: set[str]
    contents: set[str]


def _held(desk: Desk) -> _Held:
    """Return the executions that a hold is on, and the digests of their contents."""
    from ringfence.interfaces.cli.evidence_desk import read_place
    from ringfence.journal import retention

    with desk.database.reading() as cursor:
        placed = retention.holds(cursor)
    found = _Held(set(), set())
    if not placed:
        return found
    with desk.reading() as reader:
        for log in reader.logs():
            for place in reader.records(log.number, log.first_seq):
                members = read_place(place).members
                if not any(members.get(each.field) == each.value for each in placed):
                    continue
                found.exec_ids.add(str(members.get("exec_id")))
                kept = members.get("content")
                if isinstance(kept, Mapping):
                    found.contents.update(map(str, kept.values()))
    return found


_TAKE_AWAY: Mapping[str, Callable[[Desk, int, Bounds], int]] = {
    "texts": _prune_texts,
    "rows": _drop_rows,
    "content": _prune_content,
    "files": _prune_files,
}


def _tell_hold(options: argparse.Namespace, hold_id: str, line: str) -> None:
    if options.json:
        _print_json({"success": True, "hold_id": hold_id})
    else:
        say(line)


def _print_json(fields: dict[str, Any]) -> None:
    from ringfence.interfaces.cli.policy import print_json

    print_json(fields)
