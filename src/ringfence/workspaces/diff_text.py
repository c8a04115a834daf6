"""The unified text diff of two versions of a file that a guest wrote: bounded in time and size, and pure.

The shortest edit is looked for (Myers, 1986) as long as that stays cheap; where it does not, the lines between the
common beginning and end are shown as replaced. That is a correct diff too, and no file can be made that takes long.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

MOST_STEPS: Final = 400_000
"""How many comparisons of lines one file may cost."""
_CONTEXT = 3


class Edit(NamedTuple):
    """Lines `a[a_from:a_to]` become lines `b[b_from:b_to]`."""

    a_from: int
    a_to: int
    b_from: int
    b_to: int


def unified(a: str, b: str, *, before: str, after: str, most_steps: int = MOST_STEPS) -> str:
    """Return what changes from `a` to `b`, headed by two harmless names; nothing where nothing does."""
    one, other = _lines(a), _lines(b)
    edits = edits_between(one, other, most_steps=most_steps)
    if not edits:
        return ""
    shown = [f"--- {before}\n", f"+++ {after}\n"]
    for hunk in _hunks(edits):
        shown += _shown(hunk, one, other)
    return "".join(shown)


def edits_between(a: Sequence[str], b: Sequence[str], *, most_steps: int = MOST_STEPS) -> list[Edit]:
    """Return what to do to `a` to get `b`, in order."""
    start = 0
    shorter = min(len(a), len(b))
    while start < shorter and a[start] == b[start]:
        start += 1
    end = 0
    while end < shorter - start and a[-1 - end] == b[-1 - end]:
        end += 1
    inner_a, inner_b = a[start : len(a) - end], b[start : len(b) - end]
    if not inner_a and not inner_b:
        return []
    kept = _common(inner_a, inner_b, most_steps) if inner_a and inner_b else []
    points = [(-1, -1), *kept, (len(inner_a), len(inner_b))]
    return [
        Edit(start + x + 1, start + next_x, start + y + 1, start + next_y)
        for (x, y), (next_x, next_y) in pairwise(points)
        if next_x - x > 1 or next_y - y > 1
    ]


def _common(a: Sequence[str], b: Sequence[str], most_steps: int) -> list[tuple[int, int]]:
    """Return the pairs of lines that stay, found by the shortest edit; none where looking for it costs too much."""
    furthest = {1: 0}
    trail: list[dict[int, int]] = []
    steps = 0
    for edits in range(len(a) + len(b) + 1):
        trail.append(dict(furthest))
        steps += 2 * edits + 1  # the copy above, and the round below
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1])
            x = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            y = x - diagonal
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y, steps = x + 1, y + 1, steps + 1
            furthest[diagonal] = x
            if x >= len(a) and y >= len(b):
                return _walked_back(trail, len(a), len(b))
        if steps > most_steps:
            return []
    return []


def _walked_back(trail: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    for edits in range(len(trail) - 1, -1, -1):
        furthest, diagonal = trail[edits], x - y
        down = diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1])
        before = diagonal + 1 if down else diagonal - 1
        from_x = furthest[before] if edits else 0
        from_y = from_x - before if edits else 0
        while x > from_x and y > from_y and x > 0 and y > 0:
            x, y = x - 1, y - 1
            kept.append((x, y))
        x, y = from_x, from_y
    kept.reverse()
    return kept


def _lines(text: str) -> list[str]:
    """Split at line feeds only: a form feed or U+2028 is part of a line to every tool that reads diffs."""
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _hunks(edits: Sequence[Edit]) -> list[list[Edit]]:
    hunks = [[edits[0]]]
    for edit in edits[1:]:
        if edit.a_from - hunks[-1][-1].a_to > 2 * _CONTEXT:
            hunks.append([])
        hunks[-1].append(edit)
    return hunks


def _shown(hunk: Sequence[Edit], a: Sequence[str], b: Sequence[str]) -> list[str]:
    first, last = hunk[0], hunk[-1]
    lead = min(_CONTEXT, first.a_from)
    follow = min(_CONTEXT, len(a) - last.a_to)
    a_span = _span(first.a_from - lead, last.a_to + follow)
    b_span = _span(first.b_from - lead, last.b_to + follow)
    shown = [f"@@ -{a_span} +{b_span} @@\n"]
    at = first.a_from - lead
    for edit in hunk:
        shown += [_line(" ", line) for line in a[at : edit.a_from]]
        shown += [_line("-", line) for line in a[edit.a_from : edit.a_to]]
        shown += [_line("+", line) for line in b[edit.b_from : edit.b_to]]
        at = edit.a_to
    return shown + [_line(" ", line) for line in a[at : last.a_to + follow]]


def _span(start: int, end: int) -> str:
    length = end - start
    first = start if length == 0 else start + 1
    return f"{first}" if length == 1 else f"{first},{length}"


def _line(mark: str, line: str) -> str:
    return mark + line if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"
