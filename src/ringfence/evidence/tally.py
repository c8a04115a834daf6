"""What a replay found, in numbers and in sentences: how many past calls would now be decided otherwise, and by what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ringfence.dataclass import dataclass, field
from ringfence.evidence.counting import Top
from ringfence.evidence.replay import Agreement, Rederived

MOST_EXAMPLES = 5
MOST_GROUPS = 200
_TOLD = {
    ("allow", "deny"): "would now be denied by {rule}",
    ("allow", "ask"): "would now need a person's consent, by {rule}",
    ("deny", "allow"): "would now be allowed, where {rule} refused",
    ("deny", "ask"): "would now need a person's consent, by {rule}, and were refused",
    ("ask", "allow"): "would now be allowed, where {rule} asked for a person's consent",
    ("ask", "deny"): "would now be denied by {rule}, where a person's consent was asked for",
}
_OTHERWISE = "would be decided alike, but by another rule or under other bounds than were recorded"


@dataclass(frozen=True, slots=True)
class Change:
    """Calls of one tool that one rule now decides otherwise."""

    then: str
    now: str
    rule: str
    tool: str
    count: int
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = _TOLD.get((self.then, self.now), _OTHERWISE).format(rule=self.rule or "no rule")
        calls = f"{self.count} past call{'' if self.count == 1 else 's'}"
        return f"{calls} of {self.tool or 'no tool'} {told} ({', '.join(self.examples)})"


@dataclass(frozen=True, slots=True)
class Tally:
    """The sum of a replay."""

    same: int = 0
    differs: int = 0
    cannot_tell: int = 0
    changes: tuple[Change, ...] = ()
    open_questions: tuple[tuple[str, int], ...] = ()

    @property
    def total(self) -> int:
        """How many decisions were looked at."""
        return self.same + self.differs + self.cannot_tell

    def lines(self) -> Iterator[str]:
        """Say it in plain words, the most frequent change first."""
        yield f"{self.total} decisions: {self.same} the same, {self.differs} other, {self.cannot_tell} cannot be told"
        yield from map(str, self.changes)
        yield from (f"cannot be told: {why} ({count})" for why, count in self.open_questions)

    def to_json(self) -> dict[str, Any]:
        """Return it as one object."""
        return {
            "total": self.total,
            "same": self.same,
            "differs": self.differs,
            "cannot_tell": self.cannot_tell,
            "changes": [
                {
                    "then": change.then,
                    "now": change.now,
                    "rule": change.rule,
                    "tool": change.tool,
                    "count": change.count,
                    "examples": list(change.examples),
                }
                for change in self.changes
            ],
            "open_questions": [{"why": why, "count": count} for why, count in self.open_questions],
        }


@dataclass
class _Running:
    numbers: dict[Agreement, int] = field(default_factory=lambda: dict.fromkeys(Agreement, 0))
    changes: Top[tuple[str, str, str, str]] = field(default_factory=Top)
    examples: dict[tuple[str, str, str, str], list[str]] = field(default_factory=dict)
    open_questions: Top[str] = field(default_factory=lambda: Top(MOST_GROUPS))


def tally(found: Iterable[Rederived]) -> Tally:
    """Sum up a replay, however long it is."""
    so_far = _Running()
    for each in found:
        so_far.numbers[each.agreement] += 1
        if each.agreement is Agreement.CANNOT_TELL:
            so_far.open_questions.add(each.why)
        elif each.agreement is Agreement.DIFFERS:
            _count_change(so_far, each)
    changes = so_far.changes.most(MOST_GROUPS)
    return Tally(
        so_far.numbers[Agreement.SAME],
        so_far.numbers[Agreement.DIFFERS],
        so_far.numbers[Agreement.CANNOT_TELL],
        tuple(Change(*group.key, group.count, tuple(so_far.examples.get(group.key, ()))) for group in changes),
        tuple((why.key, why.count) for why in so_far.open_questions.most(MOST_GROUPS)),
    )


def _count_change(so_far: _Running, each: Rederived) -> None:
    then = each.then.decision if each.then else ""
    now = each.now.decision if each.now else ""
    group = (then, now, each.rule, each.tool)
    so_far.changes.add(group)
    if group in so_far.examples or len(so_far.examples) < MOST_GROUPS:
        examples = so_far.examples.setdefault(group, [])
        if len(examples) < MOST_EXAMPLES:
            examples.append(each.exec_id)
