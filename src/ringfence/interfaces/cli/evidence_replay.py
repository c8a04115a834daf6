"""`ringfence evidence replay`: a decision made again, a result told again, or a program run again and compared."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ringfence.dataclass import dataclass
from ringfence.interfaces.cli.evidence_desk import INTACT, Desk, no_such, open_desk, parser, read_place, say
from ringfence.interfaces.cli.evidence_records import JournalRecords
from ringfence.interfaces.cli.evidence_selection import add_selection, every, read_selection
from ringfence.interfaces.cli.policy import print_json
from ringfence.interfaces.cli.usage import UsageError

if TYPE_CHECKING:
    from ringfence.authority.policy import PolicySnapshot
    from ringfence.journal.reader import Execution, Reader

SAME, DIFFERS, CANNOT_TELL = "same", "differs", "cannot_tell"
_LEVELS: Final = ("decision", "simulate", "reexecute")
_MOST_SHOWN: Final = 50

Members = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of one execution when it was gone through again."""

    exec_id: str
    agreement: str
    lines: tuple[str, ...]
    fields: Members

    def to_json(self) -> Members:
        """Return it as one object."""
        return {"exec_id": self.exec_id, "agreement": self.agreement, **self.fields}


def replay_command(words: Sequence[str]) -> int:
    """Carry out `ringfence evidence replay`: 0 all the same, 1 something differs, 7 it cannot be told."""
    taken = parser("replay")
    taken.add_argument("id", metavar="ID", nargs="?")
    taken.add_argument("--level", choices=_LEVELS, default="decision")
    taken.add_argument("--policy", metavar="CANDIDATE")
    add_selection(taken)
    options = taken.parse_args(list(words))
    desk = open_desk(options.home)
    selection = read_selection(options, desk.now_ms)
    if options.policy is not None and options.level != "decision":
        raise UsageError("--policy is about decisions", fix="leave out --level, or leave out --policy")
    if options.id is not None and not selection.is_everything:
        raise UsageError("ID and a selection exclude each other", fix="give one of them")
    if options.id is None and selection.is_everything and options.level == "reexecute":
        raise UsageError(
            "this would run everything again that was ever run", fix="give ID, or a selection such as --since 1h"
        )
    candidate = None
    if options.policy is not None:
        from ringfence.interfaces.cli.policy import load

        candidate = load(options.policy)
    with desk.reading() as reader:
        executions = _one(reader, options.id) if options.id else _all(reader, every(reader, selection))
        journal = JournalRecords(desk, reader)
        found = [*_replayed(desk, journal, executions, options.level, candidate)]
    _tell(found, options.level, as_json=options.json)
    agreements = {each.agreement for each in found}
    return 1 if DIFFERS in agreements else 7 if CANNOT_TELL in agreements else 0


def _one(reader: Reader, name: str) -> Iterator[Execution]:
    execution = reader.execution(name)
    if execution is None:
        raise no_such(name)
    yield execution


def _all(reader: Reader, rows: Iterable[Any]) -> Iterator[Execution]:
    for row in rows:
        execution = reader.execution(row.exec_id)
        if execution is not None:
            yield execution


def _replayed(
    desk: Desk,
    journal: JournalRecords,
    executions: Iterable[Execution],
    level: str,
    candidate: PolicySnapshot | None,
) -> Iterator[Replayed]:
    decide = _Decisions(journal, candidate)
    for execution in executions:
        begin = read_place(execution.begin)
        end = begin if execution.end is None else read_place(execution.end)
        if begin.state != INTACT or end.state != INTACT:
            state = begin.state if begin.state != INTACT else end.state
            yield _cannot(execution.exec_id, f"its records are {state}")
        elif level == "decision":
            yield decide(execution.exec_id, begin.members)
        elif execution.end is None:
            yield _cannot(execution.exec_id, "it has not ended")
        elif begin.members["type"] == "decision.denied":
            yield _cannot(execution.exec_id, "it was denied, so nothing was carried out")
        else:
            from ringfence.interfaces.cli import evidence_again

            again = evidence_again.simulate if level == "simulate" else evidence_again.reexecute
            drift = again(desk, journal, begin.members, end.members)
            if isinstance(drift, str):
                yield _cannot(execution.exec_id, drift)
            else:
                agreement = SAME if drift.is_same else DIFFERS if drift.differences else CANNOT_TELL
                lines = tuple(drift.lines())
                yield Replayed(execution.exec_id, agreement, lines, {"lines": list(lines)})


class _Decisions:
    def __init__(self, journal: JournalRecords, candidate: PolicySnapshot | None) -> None:
        from ringfence.evidence.replay import Replay

        self._journal = journal
        self._replay = Replay(journal.document, candidate)

    def __call__(self, exec_id: str, begin: Members) -> Replayed:
        found = self._replay.rederive(begin, self._journal.content(begin))
        then, now = (str(each) if each is not None else None for each in (found.then, found.now))
        told = {"then": then, "now": now, "rule": found.rule, "why": found.why, "tool": found.tool}
        if str(found.agreement) == SAME:
            line = f"decided the same again: {then}"
        else:
            line = found.why or f"then {then}, now {now}"
        return Replayed(exec_id, str(found.agreement), (line,), told)


def _cannot(exec_id: str, why: str) -> Replayed:
    return Replayed(exec_id, CANNOT_TELL, (why,), {"why": why})


def _tell(found: Sequence[Replayed], level: str, *, as_json: bool) -> None:
    numbers = {name: sum(each.agreement == name for each in found) for name in (SAME, DIFFERS, CANNOT_TELL)}
    if as_json:
        is_same = numbers[SAME] == len(found)
        print_json({"success": is_same, "level": level, **numbers, "replays": [each.to_json() for each in found]})
        return
    # what differs first: that is what somebody looks for
    order = (DIFFERS, CANNOT_TELL, SAME)
    for each in sorted(found, key=lambda each: order.index(each.agreement))[:_MOST_SHOWN]:
        first, *rest = each.lines
        say(f"{each.exec_id}  {each.agreement.replace('_', ' ')}: {first}")
        for line in rest:
            say(f"  {line}")
    if len(found) > _MOST_SHOWN:
        say(f"and {len(found) - _MOST_SHOWN} more, with --json")
    counted = f"{len(found)} execution{'' if len(found) == 1 else 's'}"
    say(f"{counted}: {numbers[SAME]} the same, {numbers[DIFFERS]} otherwise, {numbers[CANNOT_TELL]} cannot be told")
    sys.stdout.flush()
