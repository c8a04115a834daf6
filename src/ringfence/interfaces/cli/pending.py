"""What a dry run would have changed, as a person reads it on a terminal and decides on it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ringfence.interfaces.cli.evidence_desk import shown_time
from ringfence.interfaces.cli.screen import Screen

if TYPE_CHECKING:
    from ringfence.facade import SandboxManager
    from ringfence.interfaces.cli.options import RunOptions
    from ringfence.outcome import ExecutionResult, Pending


def pending_lines(result: ExecutionResult, options: RunOptions) -> Iterator[str]:
    """Return what a dry run would have changed, and what can be done about it."""
    pending = result.pending
    if pending is None:
        if not result.changes.denied and result.changes.excess is None:
            yield "ringfence: the run would change nothing\n"
        return
    yield from told(pending)
    if pending.expires_at_ms is None:
        yield "ringfence: nothing of it was kept\n"
    else:
        home = "" if options.home is None else f" --home {shlex.quote(options.home)}"
        yield f"ringfence: to apply it: ringfence workspace commit {options.project} {result.exec_id}{home}\n"


def told(pending: Pending) -> Iterator[str]:
    """Return one line for each path, then the diff; nothing in a name or a file acts on the terminal."""
    for mark, names in (("A", pending.added), ("M", pending.modified), ("D", pending.deleted)):
        yield from (f"{mark} {_harmless(name)}\n" for name in names)
    if not pending.complete:
        yield "and more, which is not shown\n"
    yield _harmless(pending.diff)


async def decide(manager: SandboxManager, action: str, exec_id: str, *, force: bool) -> dict[str, Any]:
    """Carry out `ringfence workspace pending`, `commit` or `discard`, and return what is to be shown."""
    if action == "pending":
        return {"proposals": [pending.to_dict() for pending in await manager.pending()]}
    outcome = await (manager.commit(exec_id, force=force) if action == "commit" else manager.discard(exec_id))
    return {**outcome.out, "evidence_id": outcome.evidence_id}


def decided(action: str, shown: dict[str, Any]) -> Iterator[str]:
    """Return the same as lines."""
    if action != "pending":
        done = "committed" if action == "commit" else "discarded"
        yield f"{done} {shown['exec_id']}: {_counts(shown)}"
        return
    for form in shown["proposals"]:
        yield f"{form['exec_id']}  {_counts(form)}; until {shown_time(form['expires_at_ms'])}"


def _counts(form: dict[str, Any]) -> str:
    return ", ".join(f"{len(form[name])} {name}" for name in ("added", "modified", "deleted"))


def _harmless(text: str) -> str:
    return Screen().show(text.encode("utf-8", "backslashreplace")).decode()
