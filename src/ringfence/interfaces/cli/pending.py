"""What a dry run would have changed, as a person reads it on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ringfence.interfaces.cli.screen import Screen

if TYPE_CHECKING:
    from ringfence.interfaces.cli.options import RunOptions
    from ringfence.outcome import ExecutionResult, Pending


def pending_lines(result: ExecutionResult, options: RunOptions) -> Iterator[str]:
    """Return what a dry run would have changed, and what can be done about it."""
    pending = result.pending
    if pending is None:
        if not result.changes.denied:
            yield "ringfence: the run would change nothing\n"
        return
    yield from told(pending)
    if pending.expires_at_ms is None:
        yield "ringfence: nothing of it was kept\n"
    else:
        yield f"ringfence: keep it with: ringfence workspace commit {options.project} {result.exec_id}\n"


def told(pending: Pending) -> Iterator[str]:
    """Return one line for each path, then the diff; nothing in a name or a file acts on the terminal."""
    for mark, names in (("A", pending.added), ("M", pending.modified), ("D", pending.deleted)):
        yield from (f"{mark} {_harmless(name)}\n" for name in names)
    if not pending.complete:
        yield "and more, which is not shown\n"
    yield _harmless(pending.diff)


def _harmless(text: str) -> str:
    return Screen().show(text.encode("utf-8", "backslashreplace")).decode()
