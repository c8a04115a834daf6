"""A proposal as it lies on the disk: the steps of a run, what they were made over, and what people were shown."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from ringfence.dataclass import dataclass, replace
from ringfence.errors import Unavailable
from ringfence.outcome import Pending
from ringfence.workspaces.survey import Kind, Step

FORM: Final = 1
MOST_BYTES: Final = 1 << 30
"""Of the description alone; the inode limit of a session keeps every true one far below."""

Marks = Mapping[bytes, "str | None"]
"""By path, what tells one state of it from any other; None where there was nothing."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a run would change, and over what; without `base` others changed the project while it ran."""

    pending: Pending
    steps: tuple[Step, ...]
    base: Marks | None
    made_ms: int


def to_bytes(proposal: Proposal) -> bytes:
    """Return the document that `from_bytes` reads."""
    form = {
        "form": FORM,
        "made_ms": proposal.made_ms,
        "pending": {**proposal.pending.to_dict(), "diff": ""},  # which lies beside it
        "steps": [[_text(step.path), step.kind.name, step.mode, step.size] for step in proposal.steps],
        "base": None if proposal.base is None else {_text(path): mark for path, mark in proposal.base.items()},
    }
    return json.dumps(form, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def from_bytes(content: bytes, diff: str) -> Proposal:
    """Read a proposal back.

    Raises:
        Unavailable: It is not what was written.
    """
    try:
        form: Any = json.loads(content)
        if form["form"] != FORM:
            raise ValueError("another form")
        base = form["base"]
        return Proposal(
            pending=replace(Pending.from_dict(form["pending"]), diff=diff),
            steps=tuple(
                Step(_path(path), Kind[kind], int(mode), int(size)) for path, kind, mode, size in form["steps"]
            ),
            base=None if base is None else {_path(path): mark for path, mark in base.items()},
            made_ms=int(form["made_ms"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unavailable("a proposal is not what was written", reason="damaged") from error


def _text(path: bytes) -> str:
    return os.fsdecode(path)  # JSON keeps the surrogates that stand for bytes which are no text


def _path(text: object) -> bytes:
    if not isinstance(text, str) or not text:
        raise TypeError("not a path")
    return os.fsencode(text)
