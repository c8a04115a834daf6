"""Which executions a person means: the options that `evidence list`, `export` and `replay` share, and page cursors."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.interfaces.cli.usage import UsageError

if TYPE_CHECKING:
    import argparse

    from ringfence.interfaces.cli.options import StrictParser
    from ringfence.journal.reader import Reader
    from ringfence.journal.store import Exec

STATUSES: Final[Mapping[str, tuple[str, ...]]] = {
    "ok": ("succeeded",),
    "error": ("failed", "timed_out", "killed", "cancelled", "error"),
    "denied": ("denied",),
    "running": (),
}
OUTCOMES: Final = ("succeeded", "failed", "timed_out", "killed", "cancelled", "denied", "error")
_FIELDS: Final = {
    "--tool": "tool_name",
    "--task": "task_id",
    "--project": "project_id",
    "--session": "session_id",
    "--user": "user_id",
    "--space": "space_id",
    "--conversation": "conversation_id",
    "--turn": "turn_id",
    "--skill": "skill_id",
    "--tenant": "tenant",
    "--subject": "subject_id",
    "--call": "call_id",
}
_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Selection:
    """What executions must have, and when they must have started."""

    filters: Mapping[str, str]
    outcomes: tuple[str, ...] | None = None
    """Any of these; nothing for all."""
    since_ms: int | None = None
    until_ms: int | None = None
    is_running: bool = True
    """Whether those that have not ended are meant too."""

    @property
    def is_everything(self) -> bool:
        """Whether nobody narrowed it."""
        return not self.filters and self.outcomes is None and self.since_ms is None and self.until_ms is None

    def described(self) -> dict[str, str]:
        """Return it as field and value, for whoever is handed what was selected."""
        told = dict(self.filters)
        if self.outcomes is not None:
            told["outcome"] = ",".join(self.outcomes)
        for name, bound in (("since_ms", self.since_ms), ("until_ms", self.until_ms)):
            if bound is not None:
                told[name] = str(bound)
        return told


def add_selection(parser: StrictParser) -> None:
    """Let a command take the options that `read_selection` reads."""
    for option, field in _FIELDS.items():
        parser.add_argument(option, dest=field)
    parser.add_argument("--status", choices=tuple(STATUSES))
    parser.add_argument("--outcome", choices=OUTCOMES)
    parser.add_argument("--since")
    parser.add_argument("--until")


def read_selection(options: argparse.Namespace, now_ms: int) -> Selection:
    """Return what the options mean.

    Raises:
        UsageError: A time is none, or status and outcome exclude each other.
    """
    outcomes = None if options.status is None else STATUSES[options.status]
    if options.outcome is not None:
        if outcomes is not None and options.outcome not in outcomes:
            raise UsageError(
                f"no execution has the status {options.status} and the outcome {options.outcome}",
                fix="give one of both",
            )
        outcomes = (options.outcome,)
    since, until = read_period(options, now_ms)
    given = {field: value for field in _FIELDS.values() if (value := getattr(options, field)) is not None}
    return Selection(
        given, outcomes, since, until, is_running=options.outcome is None and options.status in (None, "running")
    )


def read_period(options: argparse.Namespace, now_ms: int) -> tuple[int | None, int | None]:
    """Return `--since` and `--until` in milliseconds.

    Raises:
        UsageError: One of them is no time, or they are the wrong way round.
    """
    if options.since is None and options.until is None:
        return None, None
    from ringfence.interfaces.cli.policy_replay import moment  # not at the top: it brings the law with it

    since = None if options.since is None else moment("--since", options.since, now_ms)
    until = None if options.until is None else moment("--until", options.until, now_ms)
    if since is not None and until is not None and since >= until:
        raise UsageError("--since is not before --until", fix="exchange them")
    return since, until


def page(
    reader: Reader, selection: Selection, before: tuple[int, str] | None, limit: int
) -> tuple[tuple[Exec, ...], bool]:
    """Return the next of the executions that are over, newest first, and whether there are more."""
    found: list[Exec] = []
    # with several outcomes each is asked for by its index, and the newest of all are taken
    for outcome in (None,) if selection.outcomes is None else selection.outcomes:
        filters = dict(selection.filters) | ({} if outcome is None else {"outcome": outcome})
        found += reader.executions(
            filters, since_ms=selection.since_ms, until_ms=selection.until_ms, before=before, limit=limit + 1
        )
    if selection.outcomes is not None:
        found.sort(key=lambda each: (each.started_ms, each.exec_id), reverse=True)
    return tuple(found[:limit]), len(found) > limit


def every(reader: Reader, selection: Selection) -> Iterator[Exec]:
    """Yield all executions of a selection that are over, newest first, some at a time."""
    before: tuple[int, str] | None = None
    while True:
        found, more = page(reader, selection, before, _AT_ONCE)
        yield from found
        if not more:
            return
        before = (found[-1].started_ms, found[-1].exec_id)


def to_cursor(last: Exec) -> str:
    """Return where the next page begins, as one word."""
    return base64.urlsafe_b64encode(f"{last.started_ms} {last.exec_id}".encode()).decode().rstrip("=")


def from_cursor(word: str) -> tuple[int, str]:
    """Read what `to_cursor` wrote.

    Raises:
        InvalidRequest: Nobody wrote that.
    """
    try:
        text = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=True).decode()
        started, exec_id = text.split(" ")
        return int(started), exec_id
    except (binascii.Error, ValueError):
        raise InvalidRequest(
            f"{word[:60]!r} is no cursor", reason="invalid_range", fix="give the one that the page before ended with"
        ) from None
