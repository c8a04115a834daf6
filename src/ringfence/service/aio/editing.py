"""Changes to a text as AIO's file calls and its editor make them: pure, and refused where the place is not one."""

from __future__ import annotations

from enum import StrEnum

from ringfence.errors import InvalidRequest


class Replace(StrEnum):
    """Which of several occurrences are meant."""

    ALL = "ALL"
    FIRST = "FIRST"
    LAST = "LAST"


def text_of(content: bytes) -> str:
    """Return a file's text.

    Raises:
        InvalidRequest: It is not UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("the file is not UTF-8 text", reason="invalid_text", fix="download it") from None


def line_range(text: str, start: int | None, end: int | None) -> str:
    """Return lines of a text, counted from 0, without the one at `end`."""
    return "".join(text.splitlines(keepends=True)[start or 0 : end])


def replaced(text: str, old: str, new: str) -> tuple[str, int]:
    """Return a text with every `old` replaced, and how many there were.

    Raises:
        InvalidRequest: There is nothing to look for.
    """
    if not old:
        raise InvalidRequest("old_str is empty", reason="invalid_value")
    count = text.count(old)
    return text.replace(old, new), count


def replaced_one(text: str, old: str, new: str, mode: Replace | None = None) -> str:
    """Return a text with `old` replaced, which without a mode must occur exactly once.

    Raises:
        InvalidRequest: It does not occur, or nobody can say which is meant.
    """
    changed, count = replaced(text, old, new)
    if not count:
        raise InvalidRequest("old_str does not occur in the file", reason="invalid_value")
    match mode:
        case Replace.ALL:
            return changed
        case Replace.FIRST:
            return text.replace(old, new, 1)
        case Replace.LAST:
            head, _, tail = text.rpartition(old)
            return head + new + tail
        case None:
            if count > 1:
                raise InvalidRequest(
                    f"old_str occurs {count} times", reason="invalid_value", fix="give more of it, or replace_mode"
                )
            return changed


def inserted(text: str, after_line: int, new: str) -> str:
    """Return a text with lines put in after one of it; 0 is before the first.

    Raises:
        InvalidRequest: There is no such line.
    """
    lines = text.splitlines(keepends=True)
    if not 0 <= after_line <= len(lines):
        raise InvalidRequest(f"insert_line must be from 0 to {len(lines)}", reason="invalid_range")
    if after_line and not lines[after_line - 1].endswith("\n"):
        lines[after_line - 1] += "\n"
    added = new if new.endswith("\n") or after_line == len(lines) else f"{new}\n"
    return "".join((*lines[:after_line], added, *lines[after_line:]))


def numbered(text: str, first: int = 1, last: int = -1) -> str:
    """Return lines of a text with their numbers, from 1 on; a `last` of -1 is the last there is.

    Raises:
        InvalidRequest: There are no such lines.
    """
    lines = text.splitlines()
    last = len(lines) if last == -1 else last
    if not 1 <= first <= max(1, len(lines)) or last < first - 1:
        raise InvalidRequest(f"view_range must lie within 1 to {len(lines)}", reason="invalid_range")
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines[first - 1 : last], first))
