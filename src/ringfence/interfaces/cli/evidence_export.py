"""`ringfence evidence export`: evidence as files that other programs read, and as ones that prove themselves."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from ringfence.errors import InvalidRequest, Unavailable
from ringfence.evidence.records import BEGIN, DENIED, END
from ringfence.interfaces.cli.evidence_desk import (
    ALTERED,
    MISSING,
    PRUNED,
    Desk,
    Read,
    no_such,
    open_desk,
    parser,
    read_place,
)
from ringfence.interfaces.cli.evidence_hand_out import write_out
from ringfence.interfaces.cli.evidence_selection import Selection, add_selection, every, read_selection
from ringfence.interfaces.cli.usage import UsageError

if TYPE_CHECKING:
    from ringfence.journal.reader import Execution, Reader

FORMATS: Final = ("bundle", "in-toto", "log", "audit-json", "cloudevents", "ocsf", "otlp")
_SPANS_A_LINE: Final = 100

Pair = tuple[Read, Read | None]


def export_command(words: Sequence[str]) -> int:
    """Carry out `ringfence evidence export` and return the exit code."""
    taken = parser("export")
    add_selection(taken)
    taken.add_argument("--exec", dest="execs", action="append", default=[], metavar="ID")
    taken.add_argument("--format", choices=FORMATS, required=True)
    taken.add_argument("--output", type=Path)
    options = taken.parse_args(list(words))
    desk = open_desk(options.home)
    selection = read_selection(options, desk.now_ms)
    if options.execs and not selection.is_everything:
        raise UsageError("--exec and a selection exclude each other", fix="give one of them")
    if options.json and options.output is None:
        raise UsageError("--json is about what was written to a file", fix="give --output FILE, or leave out --json")
    if options.format == "log" and (options.execs or not selection.is_everything):
        raise UsageError(
            "a log is exported whole, or it could not be verified", fix="use --format bundle for a selection"
        )
    with desk.reading() as reader, _sink(options.output) as write:
        for chunk in exported(desk, reader, options.format, selection, options.execs):
            write(chunk)
    if options.output is not None:
        _confirm(options.output, options.format, as_json=options.json)
    return 0


def exported(desk: Desk, reader: Reader, kind: str, selection: Selection, execs: Sequence[str]) -> Iterator[bytes]:
    """Yield what was asked for, some at a time.

    Raises:
        Unavailable: A record was tampered with; it is not passed on.
    """
    if kind == "log":
        yield from _logs(desk, reader)
        return
    executions = _named(reader, execs) if execs else _selected(reader, selection)
    if kind in ("bundle", "in-toto"):
        from ringfence.interfaces.cli.evidence_bundle import bundled

        yield bundled(desk, reader, executions, {"exec_id": ",".join(execs)} if execs else selection.described())
        return
    if kind not in _OF_ANY_RECORD:
        yield from _LINES[kind](_whole(executions))
    elif not execs and selection.is_everything:
        # what is no execution, a policy that was loaded or a hold that was placed, is in no selection but this one
        yield from _LINES[kind](chain(_whole(executions), _others(reader)))
    else:
        yield from _LINES[kind](_whole(executions, reader))


def _named(reader: Reader, names: Sequence[str]) -> Iterator[Execution]:
    for name in names:
        execution = reader.execution(name)
        if execution is None:
            raise no_such(name)
        yield execution


def _selected(reader: Reader, selection: Selection) -> Iterator[Execution]:
    for row in every(reader, selection):
        execution = reader.execution(row.exec_id)
        if execution is not None:
            yield execution


def _whole(executions: Iterable[Execution], reader: Reader | None = None) -> Iterator[Pair]:
    """Yield the two records of executions, and with `reader` what else was written of each.

    A record that was tampered with is not passed on as evidence.
    """
    pruned = 0
    for execution in executions:
        begin = _passed_on(read_place(execution.begin))
        has_end = execution.end is not None and execution.end != execution.begin
        end = _passed_on(read_place(execution.end)) if execution.end is not None and has_end else None
        if PRUNED in (begin.state, end.state if end else ""):
            pruned += 1
            continue
        yield begin, end
        for place in () if reader is None else reader.others(execution.exec_id):
            other = _passed_on(read_place(place))
            if other.state != PRUNED:
                yield other, None
    if pruned:
        sys.stderr.write(f"ringfence: {pruned} executions were pruned, and only their hashes are left\n")


def _others(reader: Reader) -> Iterator[Pair]:
    for log in reader.logs():
        for place in reader.records(log.number, log.first_seq):
            read = _passed_on(read_place(place))
            if read.state != PRUNED and read.members.get("type") not in (BEGIN, END, DENIED):
                yield read, None


def _passed_on(read: Read) -> Read:
    if read.state in (ALTERED, MISSING):
        raise Unavailable(
            f"record {read.place.seq} of {read.place.log_id} is {read.state}, and is not passed on as evidence",
            reason="damaged",
            fix="see 'ringfence evidence verify'; export the others with --exec",
        )
    return read


def _audit_lines(pairs: Iterable[Pair]) -> Iterator[bytes]:
    from ringfence.evidence.projections.audit_json import audit_line

    for begin, end in _ended(pairs):
        yield audit_line(begin.members, end.members if end else None).encode() + b"\n"


def _cloud_events(pairs: Iterable[Pair]) -> Iterator[bytes]:
    from ringfence.evidence.projections.cloudevents import cloud_event

    for pair in pairs:
        for each in pair:
            if each is not None:
                yield _line(cloud_event(each.members, each.place.hash.hex()))


def _ocsf_events(pairs: Iterable[Pair]) -> Iterator[bytes]:
    from ringfence import __version__
    from ringfence.evidence.projections.ocsf import ocsf_events

    for begin, end in pairs:
        for event in ocsf_events(begin.members, end.members if end else None, version=__version__):
            yield _line(event)


def _otlp_requests(pairs: Iterable[Pair]) -> Iterator[bytes]:
    """Yield OTLP/JSON as the collector's file receiver reads it: one request a line."""
    from ringfence import __version__
    from ringfence.evidence.projections.otel import Span, otlp_json, span_of

    spans: list[Span] = []
    for begin, end in _ended(pairs):
        spans.append(span_of(begin.members, end.members if end else None))
        if len(spans) == _SPANS_A_LINE:
            yield _line(otlp_json(spans, version=__version__))
            spans.clear()
    if spans:
        yield _line(otlp_json(spans, version=__version__))


def _ended(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Leave out what has not ended: 001's line and a span are of what is over."""
    return (pair for pair in pairs if pair[1] is not None or pair[0].members.get("type") == "decision.denied")


_OF_ANY_RECORD: Final = ("cloudevents", "ocsf")
_LINES: Final[dict[str, Callable[[Iterable[Pair]], Iterator[bytes]]]] = {
    "audit-json": _audit_lines,
    "cloudevents": _cloud_events,
    "ocsf": _ocsf_events,
    "otlp": _otlp_requests,
}


def _logs(desk: Desk, reader: Reader) -> Iterator[bytes]:
    """Yield every log of the home, one after the other."""
    from ringfence import __version__
    from ringfence.evidence.chain import Row
    from ringfence.evidence.log_file import Header, SignedHead, log_lines

    key = desk.key
    for log in reader.logs():
        rows = (Row(place.seq, place.hash, place.text) for place in reader.records(log.number, log.first_seq))
        heads = (SignedHead(one.size, one.note) for one in reader.checkpoints(log.number))
        header = Header(reader.start(log.number), () if key is None else (key,), __version__)
        yield from log_lines(header, rows, heads)


def _line(members: dict[str, Any]) -> bytes:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


@contextmanager
def _sink(path: Path | None) -> Iterator[Callable[[bytes], object]]:
    """Give what writes to standard output, or to a file that is there whole or not at all, and for its owner alone."""
    if path is None:
        yield write_out
        sys.stdout.buffer.flush()
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with os.fdopen(fd, "wb") as file:
            yield _checked(file, path)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        partial.unlink(missing_ok=True)


def _checked(file: BinaryIO, path: Path) -> Callable[[bytes], object]:
    def write(chunk: bytes) -> None:
        try:
            file.write(chunk)
        except OSError as error:
            raise _unwritable(path, error) from error

    return write


def _unwritable(path: Path, error: OSError) -> InvalidRequest:
    return InvalidRequest(
        f"{path} cannot be written: {error.strerror or error}",
        reason="unreadable",
        fix="name a file in a directory that you may write to",
    )


def _confirm(path: Path, kind: str, *, as_json: bool) -> None:
    size = path.stat().st_size
    if as_json:
        from ringfence.interfaces.cli.policy import print_json

        print_json({"success": True, "output": str(path), "format": kind, "bytes": size})
        return
    proves = kind in ("bundle", "in-toto", "log")
    hint = "; verify it with 'ringfence evidence verify FILE --key VKEY'" if proves else ""
    sys.stderr.write(f"ringfence: wrote {path} ({size} bytes){hint}\n")
