"""One changed file as a unified diff for people: no line of either side can act on a terminal, or look like ours."""

from __future__ import annotations

from ringfence.workspaces import diff_text

MOST_FILE_BYTES = 128 * 1024
"""Of either side; a larger file is only named."""


def unified(path: str, before: bytes | None, after: bytes | None) -> str | None:
    """Return how `before` became `after`; None where one of them is no text, or too large. Absent is None.

    Control characters but tab are written out.
    """
    old, new = _text(before), _text(after)
    if old is None or new is None:
        return None
    names = ("/dev/null" if before is None else f"a/{path}", "/dev/null" if after is None else f"b/{path}")
    found = diff_text.unified(old, new, before=names[0], after=names[1])
    return found or f"--- {names[0]}\n+++ {names[1]}\n"


def _text(content: bytes | None) -> str | None:
    if content is None:
        return ""
    if len(content) > MOST_FILE_BYTES or b"\0" in content:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return "\n".join(map(_shown, text.split("\n")))


def _shown(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if c == "\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in line)
