"""`ringfence policy replay`: which past calls a policy that is not yet in use would decide otherwise."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Protocol

from ringfence.authority.policy import PolicySnapshot
from ringfence.evidence.described import Record
from ringfence.evidence.replay import DECISIONS, Rederived, Replay
from ringfence.evidence.tally import Tally, tally
from ringfence.interfaces.cli.options import StrictParser
from ringfence.interfaces.cli.policy import load, print_json
from ringfence.interfaces.cli.render import one_line
from ringfence.interfaces.cli.usage import UsageError

_AGO = re.compile(r"(?P<number>[0-9]{1,6})(?P<unit>[smhdw])\Z")
_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


class EvidenceReader(Protocol):
    """What has to be read back to decide again."""

    def records(self, since_ms: int | None, until_ms: int | None) -> Iterable[Record]:
        """Return the records of a period, in their order."""
        ...

    def document(self, digest: str) -> str | None:
        """Return the text of a document, or nothing when it is not kept."""
        ...

    def content(self, record: Record) -> bytes | None:
        """Return what the record's `inputs_digest` is of, or nothing when contents are not kept."""
        ...


def replay_command(words: Sequence[str], open_evidence: Callable[[], EvidenceReader], now_ms: int) -> int:
    """Carry out `ringfence policy replay` and return the exit code: 1 when a decision changes.

    With `--strict` also when one cannot be told: nobody knows that it stays the same.
    """
    parser = StrictParser(prog="ringfence policy replay")
    parser.add_argument("--policy", metavar="CANDIDATE", required=True)
    parser.add_argument("--since", metavar="WHEN")
    parser.add_argument("--until", metavar="WHEN")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(words))
    since = None if options.since is None else moment("--since", options.since, now_ms)
    until = None if options.until is None else moment("--until", options.until, now_ms)
    candidate = load(options.policy)  # first: a broken candidate needs no evidence
    found = replayed(open_evidence(), candidate, since, until)
    changed = bool(found.differs) or (options.strict and bool(found.cannot_tell))
    if options.json:
        print_json(
            {
                "success": not changed,
                "policy": options.policy,
                "policy_version_hash": candidate.policy_version_hash,
                "since_ms": since,
                "until_ms": until,
                **found.to_json(),
            }
        )
    else:
        # names of tools and rules come from callers and files: they must not drive the reader's terminal
        sys.stdout.writelines(one_line(line) for line in found.lines())
        if not found.total:
            sys.stdout.write(one_line("there is no evidence of this period, so this says nothing about the policy"))
        sys.stdout.flush()
    return 1 if changed else 0


def replayed(
    evidence: EvidenceReader, candidate: PolicySnapshot | None, since_ms: int | None, until_ms: int | None
) -> Tally:
    """Decide again about every call of a period: by `candidate`, or by the policy of then where there is none."""
    return tally(_rederived(evidence, candidate, since_ms, until_ms))


def moment(option: str, text: str, now_ms: int) -> int:
    """Read `7d`, `12h`, `2026-03-01` or `2026-03-01T08:00Z`, in UTC unless it says otherwise, as milliseconds.

    Raises:
        UsageError: It is none of these.
    """
    ago = _AGO.match(text)
    if ago is not None:
        return now_ms - int(ago["number"]) * _MS[ago["unit"]]
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is not a time", fix="write 7d, 12h, 2026-03-01 or 2026-03-01T08:00Z"
        ) from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _rederived(
    evidence: EvidenceReader, candidate: PolicySnapshot | None, since_ms: int | None, until_ms: int | None
) -> Iterator[Rederived]:
    replay = Replay(evidence.document, candidate)
    for record in evidence.records(since_ms, until_ms):
        if record.get("type") in DECISIONS:
            yield replay.rederive(record, evidence.content(record))
