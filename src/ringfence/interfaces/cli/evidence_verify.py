"""`ringfence evidence verify`: whether the journal of a home, or a file that came from one, is what was written.

Exit codes: 0 whole and its signer proven, 1 whole and the signer unproven, 3 tampered with; the first fault is named.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.evidence.anchors import Trust
from ringfence.evidence.note import Checkpoint, log_origin, read_note, split_notes
from ringfence.interfaces.cli.evidence_desk import Desk, open_desk, parser, say
from ringfence.interfaces.cli.policy import print_json

if TYPE_CHECKING:
    from ringfence.evidence.verify import Report

PROVEN, UNPROVEN, TAMPERED = 0, 1, 3
_MOST_NOTE_BYTES: Final = 1 << 20
_END_OF_LOG: Final = b'"type":"ringfence.end"}\n'
OWN_KEY: Final = (
    "proven by the key in this home; against whoever holds that key, give a key or checkpoint kept elsewhere"
)
_PROOFS: Final = {
    "key": "proven",
    "checkpoint": "its records proven by a checkpoint; that nothing was left out of them is the word of who signed",
    "none": "",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What verifying came to."""

    what: str
    against: str
    reports: tuple[Report, ...] = ()
    missing: tuple[str, ...] = ()
    damage: str = ""
    """What is wrong with the file itself."""
    is_proven: bool = False
    extra: str = ""
    proof: str = "proven"
    """How it is proven, where it is."""

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong, the first of each log."""
        found = [f"{one.log_id} {one.fault.kind}: {one.fault.message}" for one in self.reports if one.fault]
        return (*([self.damage] if self.damage else []), *found, *(f"{name} is missing" for name in self.missing))

    @property
    def verdict(self) -> str:
        """One word for scripts."""
        return "tampered" if self.faults else "proven" if self.is_proven else "signer unproven"

    @property
    def exit_code(self) -> int:
        """The same as a number."""
        return TAMPERED if self.faults else PROVEN if self.is_proven else UNPROVEN


def verify_command(words: Sequence[str]) -> int:
    """Carry out `ringfence evidence verify` and return the exit code."""
    taken = parser("verify")
    taken.add_argument("file", nargs="?", type=Path)
    taken.add_argument("--key", action="append", default=[])
    taken.add_argument("--checkpoint", action="append", default=[], type=Path)
    options = taken.parse_args(list(words))
    from ringfence.journal.signer import trusted_keys, verify

    keys = tuple(key for given in options.key for key in trusted_keys(given))
    notes = tuple(note for path in options.checkpoint for note in read_notes(path))
    for note in notes:  # first: one that is none is the caller's mistake, and no fault of what is verified
        Checkpoint.parse(read_note(note)[0])
    trust = Trust(verify, (), keys, notes)
    progress = Progress(quiet=options.json)
    began = time.monotonic()
    if options.file is None:
        finding = _home(open_desk(options.home), trust, progress)
    else:
        finding = _file(options.file, trust, progress)
    progress.end()
    _tell(finding, time.monotonic() - began, as_json=options.json)
    return finding.exit_code


def read_notes(path: Path) -> list[str]:
    """Return the signed notes of a file as `ringfence evidence checkpoint` prints them: one after the other.

    Raises:
        InvalidRequest: The file cannot be read, or holds none.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_NOTE_BYTES + 1).decode()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        notes = split_notes(content) if len(content) <= _MOST_NOTE_BYTES else []
    except InvalidRequest:
        notes = []
    if not notes:
        raise InvalidRequest(
            f"{path} is not made of signed checkpoints",
            reason="unreadable",
            fix="give what 'ringfence evidence checkpoint' printed",
        )
    return notes


class Progress:
    """How many records were read, on a terminal and nowhere else."""

    def __init__(self, *, quiet: bool) -> None:
        """Say nothing with `quiet`."""
        self._is_shown = not quiet and sys.stderr.isatty()
        self._before = self._last = 0

    def __call__(self, records: int) -> None:
        """Be told how far one log was read."""
        if records < self._last:  # another log
            self._before += self._last
        self._last = records
        if self._is_shown:
            sys.stderr.write(f"\r{self._before + records:,} records verified")
            sys.stderr.flush()

    def end(self) -> None:
        """Leave the terminal as it was."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")


def _home(desk: Desk, trust: Trust, progress: Callable[[int], None]) -> Finding:
    against = _named(trust)
    _ = desk.database  # first: a home without evidence has no key either
    is_outside = bool(trust.keys or trust.checkpoints)
    if not trust.keys:
        key = desk.key
        if key is None:
            raise Unavailable(
                f"there is no evidence key in {desk.home}, so nobody can tell who signed",
                reason="no_signing_key",
                fix="give the key of this home with --key, or restore evidence/signer.key",
            )
        own = f"the key in this home ({key.name})"
        against = f"{against} and {own}" if against else own
        trust = Trust(trust.verify, (), (key,), trust.checkpoints)
    proof = "proven" if is_outside else OWN_KEY
    try:
        with desk.reading() as reader:
            found = reader.verify(trust, progress)
    except (TypeError, ValueError, LookupError, AttributeError, InvalidRequest) as error:
        # a table that somebody wrote to by hand may hold anything, and no reader of it can be prepared for all of that
        return Finding(str(desk.home), against, damage=f"damaged: a table holds what was never written to it ({error})")
    damage = found.misled[0] if found.misled else ""
    return Finding(str(desk.home), against, found.reports, found.missing_logs, damage, found.is_proven, proof=proof)


def _file(path: Path, trust: Trust, progress: Callable[[int], None]) -> Finding:
    against = _named(trust) or "nothing from outside"
    try:
        with path.open("rb") as file:
            start = file.read(16)
            file.seek(0)
            if start.startswith(b'{"payload'):
                return _bundle(path, file.read, trust, against)
            return _logs(path, file.readline, trust, against, progress)
    except OSError as error:
        raise _unreadable(path, error) from error


def _bundle(path: Path, read: Callable[[int], bytes], trust: Trust, against: str) -> Finding:
    from ringfence.evidence.bundle import MOST_BYTES, read_bundle

    try:
        bundle = read_bundle(read(MOST_BYTES + 1), trust)
    except InvalidRequest as fault:
        return Finding(f"{path} (a bundle)", against, damage=f"{fault.reason}: {fault}")
    count = len(bundle.records)
    logs = len(bundle.checkpoints)
    extra = f"{_counted(count, 'record')} of {_counted(logs, 'log')}, signed by {bundle.content.signer.name}"
    proof = _PROOFS[str(bundle.proof)]
    return Finding(f"{path} (a bundle)", against, is_proven=bundle.is_proven, extra=extra, proof=proof)


def _logs(
    path: Path, readline: Callable[[int], bytes], trust: Trust, against: str, progress: Callable[[int], None]
) -> Finding:
    from ringfence.evidence.log_file import verify_log_file

    wanted = {Checkpoint.parse(read_note(note)[0]).origin for note in trust.checkpoints}
    parts = _Parts(readline)
    reports: list[Report] = []
    damage = ""
    try:
        while not parts.is_over():
            report = verify_log_file(parts.readline, trust, progress)
            if report.log_id in {each.log_id for each in reports}:
                damage = f"log_damaged: {report.log_id} is in the file twice"
            reports.append(report)
            if damage or not report.is_whole:
                break
        else:
            if not reports:
                damage = "log_damaged: the file is empty"
    except InvalidRequest as fault:
        damage = f"{fault.reason}: {fault}"
    missing: tuple[str, ...] = ()
    if not damage and all(report.is_whole for report in reports):
        missing = tuple(sorted(wanted - {log_origin(report.log_id) for report in reports}))
    is_proven = bool(reports) and all(report.is_proven for report in reports)
    return Finding(f"{path} (an exported log)", against, tuple(reports), missing, damage, is_proven)


class _Parts:
    """A file in which one log follows the other; each is read as if it were a file of its own."""

    def __init__(self, readline: Callable[[int], bytes]) -> None:
        self._readline = readline
        self._ahead: bytes | None = None
        self._is_between = True

    def is_over(self) -> bool:
        """Whether nothing follows; else the next log begins."""
        if self._ahead is None:
            self._ahead = self._readline(1)
        self._is_between = False
        return not self._ahead

    def readline(self, most: int) -> bytes:
        """Return the next line of the log that is read now."""
        if self._is_between:
            return b""
        ahead, self._ahead = self._ahead or b"", None
        line = ahead if ahead.endswith(b"\n") else ahead + self._readline(most - len(ahead))
        self._is_between = line.endswith(_END_OF_LOG)
        return line


def _named(trust: Trust) -> str:
    parts = []
    if trust.keys:
        parts.append(f"the key {', '.join(key.name for key in trust.keys)}")
    if trust.checkpoints:
        parts.append(f"{_counted(len(trust.checkpoints), 'checkpoint')} from outside")
    return " and ".join(parts)


def _tell(finding: Finding, seconds: float, *, as_json: bool) -> None:
    records = sum(report.records for report in finding.reports)
    if as_json:
        fields: dict[str, Any] = {
            "success": finding.exit_code == PROVEN,
            "verdict": finding.verdict,
            "what": finding.what,
            "against": finding.against,
            "records": records,
            "faults": list(finding.faults),
            "missing_logs": list(finding.missing),
            "logs": [asdict(report) for report in finding.reports],
        }
        print_json(fields | ({"note": finding.extra} if finding.extra else {}))
        return
    say(f"{finding.what}, against {finding.against}")
    for report in finding.reports:
        say(f"  {report.log_id}: {_of_log(report)}")
    if finding.extra:
        say(f"  {finding.extra}")
    for fault in finding.faults:
        say(f"TAMPERED: {fault}")
    if not finding.faults:
        rate = f", {records} records in {seconds:.1f} s" if records > 10_000 else ""
        say(f"whole and {finding.proof}{rate}" if finding.is_proven else f"whole, but {_unproven(finding)}{rate}")
    sys.stdout.flush()


def _of_log(report: Report) -> str:
    if report.fault:
        return f"{_counted(report.records, 'record')} read before the first fault"
    told = [_counted(report.records, "record")]
    if report.first_seq:
        told.append(f"after {report.first_seq} that were dropped")
    if report.pruned:
        told.append(f"{report.pruned} of them only as hashes")
    if report.size > report.signed_size:
        told.append(f"{report.size - report.signed_size} not signed yet" if report.signed_size else "none signed yet")
    if report.uncompared:
        told.append(f"{_counted(report.uncompared, 'checkpoint')} of dropped records not compared")
    if report.open_execs:
        # what is open is never pruned, but who reads hashes alone cannot tell which of them is an end
        told.append(f"{report.open_execs} {'whose end is only a hash, or to come' if report.pruned else 'still open'}")
    return ", ".join(told)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _unproven(finding: Finding) -> str:
    if finding.against == "nothing from outside":
        return (
            "signer unproven: anybody can write a file that agrees with itself; give the key or a checkpoint that you "
            "have from elsewhere with --key or --checkpoint"
        )
    if not finding.reports and not finding.extra:
        return "signer unproven: there are no records"
    unsigned = [report.log_id for report in finding.reports if not report.signed_size and report.records]
    if unsigned:
        return f"signer unproven: no checkpoint of {', '.join(unsigned)} was signed yet"
    return "signer unproven: what was given from outside does not vouch for the last checkpoint of every log"


def _unreadable(path: Path, error: Exception) -> InvalidRequest:
    return InvalidRequest(
        f"{path} cannot be read: {getattr(error, 'strerror', None) or error}",
        reason="unreadable",
        fix="name a file that you may read",
    )
