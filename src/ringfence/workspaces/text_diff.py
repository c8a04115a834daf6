"""One changed file as a unified diff that a hostile pair of files can make neither slow nor large."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

MOST_FILE_BYTES = 128 * 1024
"""Of either side; a larger file is only named."""
_MOST_MATCHED = 400  # lines of either side that are matched with each other: what is longer is shown as replaced
_CONTEXT = 3
_Code = tuple[str, int, int, int, int]


def unified(path: str, before: bytes | None, after: bytes | None) -> str | None:
    """Return how `before` became `after`; None where one of them is no text, or too large. Absent is None.

    Control characters but tab are written out, so that no line of a file can act on a terminal or look like ours.
    """
    old, new = _lines(before), _lines(after)
    if old is None or new is None:
        return None
    head = [
        f"--- {'/dev/null' if before is None else f'a/{path}'}\n",
        f"+++ {'/dev/null' if after is None else f'b/{path}'}\n",
    ]
    return "".join((*head, *_hunks(old, new)))


def _lines(content: bytes | None) -> list[str] | None:
    if content is None:
        return []
    if len(content) > MOST_FILE_BYTES or b"\0" in content:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    *whole, rest = text.split("\n")  # `splitlines` also breaks where no editor sees the end of a line
    lines = [f"{_shown(line)}\n" for line in whole]
    return [*lines, f"{_shown(rest)}\n\\ No newline at end of file\n"] if rest else lines


def _shown(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if c == "\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    for group in _groups(old, new):
        (_, top, _, left, _), (_, _, bottom, _, right) = group[0], group[-1]
        yield f"@@ -{_range(top, bottom)} +{_range(left, right)} @@\n"
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (f" {line}" for line in old[i1:i2])
                continue
            yield from (f"-{line}" for line in old[i1:i2])
            yield from (f"+{line}" for line in new[j1:j2])


def _groups(old: list[str], new: list[str]) -> Iterator[list[_Code]]:
    """Match only what lies between the first and the last line that differ, and not even that where it is long."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    left, right = old[start : len(old) - end], new[start : len(new) - end]
    if max(len(left), len(right)) <= _MOST_MATCHED:
        codes: list[_Code] = list(difflib.SequenceMatcher(None, left, right).get_opcodes())
        codes = [(tag, i1 + start, i2 + start, j1 + start, j2 + start) for tag, i1, i2, j1, j2 in codes]
    else:
        codes = [("replace", start, len(old) - end, start, len(new) - end)]
    before = [("equal", 0, start, 0, start)] if start else []
    after = [("equal", len(old) - end, len(old), len(new) - end, len(new))] if end else []
    yield from _Matched([*before, *codes, *after]).get_grouped_opcodes(_CONTEXT)


class _Matched(difflib.SequenceMatcher[str]):
    """Groups what was matched elsewhere."""

    def __init__(self, codes: list[_Code]) -> None:
        super().__init__()
        self._codes = codes

    def get_opcodes(self) -> list[Any]:
        """Return what it was given."""
        return self._codes


def _range(first: int, last: int) -> str:
    if last - first == 1:
        return str(first + 1)
    return f"{first + (last > first)},{last - first}"
