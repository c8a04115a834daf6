"""A whole log as one file of JSON Lines, written and read one line at a time, so that it may be as long as it likes.

The first line describes the log, the last one says how much there was and hashes all before it. Between them each
record is a line (its canonical text with its `hash`), and so is each checkpoint, which stands before the records it
covers: who verifies knows what to compare with when they get there. A line that is not, byte for byte, what the writer
would have written is refused; what the records themselves say is for `evidence.verify` to judge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, Final

from ringfence.dataclass import dataclass, replace
from ringfence.errors import InvalidRequest
from ringfence.evidence.anchors import Trust
from ringfence.evidence.chain import Row, Start
from ringfence.evidence.merkle import Frontier
from ringfence.evidence.note import VerifierKey
from ringfence.evidence.sealing import canonical_record, read_record
from ringfence.evidence.verify import Report, verify_log

FORMAT: Final = "ringfence.log"
VERSION: Final = 1
MOST_LINE_BYTES: Final = 4 * 1024 * 1024

_CHECKPOINT: Final = "ringfence.checkpoint"
_PRUNED: Final = "ringfence.pruned"
_FOOTER: Final = "ringfence.end"
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Header:
    """Which log it is, what stands for the records that were dropped from its front, and the keys that signed it."""

    start: Start
    keys: tuple[VerifierKey, ...]
    tool_version: str


@dataclass(frozen=True, slots=True)
class SignedHead:
    """A checkpoint as it was signed over the first `size` records."""

    size: int
    note: str


@dataclass(frozen=True, slots=True)
class _Note:
    """A checkpoint as it is in the file: how many records it covers is in the note, and nowhere else."""

    text: str


@dataclass(frozen=True, slots=True)
class _Footer:
    """How much the file holds; one that was cut short has none."""

    rows: int
    checkpoints: int
    sha256: str


def log_lines(header: Header, rows: Iterable[Row], checkpoints: Iterable[SignedHead]) -> Iterator[bytes]:
    """Yield the lines of the file, each with its line end.

    Args:
        header: The log.
        rows: Its records in their order.
        checkpoints: Its checkpoints by ascending size. Of those beyond the last row one is written, which shows that
            the log was longer once.

    Raises:
        InvalidRequest: A row is missing, or is not the canonical text of a record.
    """
    running, size = sha256(), header.start.first_seq
    row_count = checkpoint_count = 0
    waiting, reached = iter(checkpoints), -1
    line = _header_line(header)
    running.update(line)
    yield line
    remaining = iter(rows)
    while True:
        while reached <= size and (checkpoint := next(waiting, None)):
            line, reached = _note_line(_Note(checkpoint.note)), checkpoint.size
            running.update(line)
            yield line
            checkpoint_count += 1
        row = next(remaining, None)
        if row is None:
            break
        if row.seq != size:
            raise InvalidRequest(f"record {size} of {header.start.log_id} is missing", reason="log_damaged")
        line = _row_line(row)
        running.update(line)
        yield line
        row_count, size = row_count + 1, size + 1
    yield _footer_line(_Footer(row_count, checkpoint_count, running.hexdigest()))


def verify_log_file(
    readline: Callable[[int], bytes], trust: Trust, progress: Callable[[int], None] | None = None
) -> Report:
    """Verify a file as `verify_log` verifies a log in its store; the keys in the file prove nothing about the signer.

    Raises:
        InvalidRequest: A line is not what the writer writes, or the file was cut short where no fault of the log tells.
    """
    file = LogFile(readline)
    report = verify_log(
        file.header.start, file.rows(), file.checkpoints(), replace(trust, known=file.header.keys), progress
    )
    if report.is_whole:
        file.finish()
    return report


class LogFile:
    """A file that is read line by line; its rows and its checkpoints may be read in turns.

    Nobody has read all of it before `finish` says so.
    """

    def __init__(self, readline: Callable[[int], bytes]) -> None:
        """Read the first line.

        Args:
            readline: Returns the next line with its line end, but no more bytes than asked for; `b""` at the end.

        Raises:
            InvalidRequest: It is not the first line of such a file.
        """
        self._readline = readline
        self._running = sha256()
        self._number = 0
        self._row_count = self._checkpoint_count = self._passed = 0
        self._pending: Row | _Note | _Footer | None = None
        self.header = _read_header(self._line(), self._number)

    def rows(self) -> Iterator[Row]:
        """Yield the records in the order they are in, and pass over checkpoints that nobody asked for.

        Raises:
            InvalidRequest: A line is not what the writer writes, or the file was cut short.
        """
        while not isinstance(item := self._peek(), _Footer):
            self._pending = None
            if isinstance(item, Row):
                yield item
            else:
                self._passed += 1

    def checkpoints(self) -> Iterator[str]:
        """Yield the signed notes that come before the next record.

        Raises:
            InvalidRequest: A line is not what the writer writes, or the file was cut short.
        """
        while isinstance(item := self._peek(), _Note):
            self._pending = None
            yield item.text

    def finish(self) -> None:
        """Require that all was read, and that it was all that was written.

        Raises:
            InvalidRequest: The last line does not match those before it, is not the last, or checkpoints stand where
                they were not looked at.
        """
        footer = self._peek()
        if not isinstance(footer, _Footer):
            raise _damaged("there is more in the file", self._number)
        if footer != _Footer(self._row_count, self._checkpoint_count, self._running.hexdigest()):
            raise _damaged("the last line does not match the lines before it", self._number)
        if self._passed:
            raise _damaged("a checkpoint does not stand before the records it covers", self._number)
        if self._readline(1):
            raise _damaged("something follows the last line", self._number + 1)

    def _peek(self) -> Row | _Note | _Footer:
        if self._pending is None:
            before = self._running.copy()
            line = self._line()
            item = self._pending = _read_item(line, self._number)
            if isinstance(item, _Footer):
                self._running = before  # it hashes what came before it
            elif isinstance(item, Row):
                self._row_count += 1
            else:
                self._checkpoint_count += 1
        return self._pending

    def _line(self) -> bytes:
        self._number += 1
        line = self._readline(MOST_LINE_BYTES + 1)
        if len(line) > MOST_LINE_BYTES:
            raise _damaged(f"the line is longer than {MOST_LINE_BYTES} bytes", self._number)
        if not line.endswith(b"\n"):
            raise _damaged("the file was cut short", self._number)
        self._running.update(line)
        return line


def _header_line(header: Header) -> bytes:
    start = header.start
    return _line(
        {
            "type": FORMAT,
            "v": VERSION,
            "log_id": start.log_id,
            "tool": {"name": "ringfence", "version": header.tool_version},
            "keys": [key.text() for key in header.keys],
            "first_seq": start.first_seq,
            "first_prev": start.first_prev.hex(),
            "first_frontier": start.frontier.to_text(),
        }
    )


def _read_header(line: bytes, number: int) -> Header:
    match _parsed(line, number):
        case {
            "log_id": str(log_id),
            "tool": {"version": str(version)},
            "keys": list(keys),
            "first_seq": int(first_seq),
            "first_prev": str(first_prev),
            "first_frontier": str(frontier),
        } if _HASH.fullmatch(first_prev) and all(isinstance(key, str) for key in keys):
            start = Start(log_id, int(first_seq), bytes.fromhex(first_prev), Frontier.from_text(frontier))
            header = Header(start, tuple(map(VerifierKey.parse, keys)), version)
            # writing it again finds every member that is missing, unknown, or of another kind or form
            if _header_line(header) == line:
                return header
        case _:
            pass
    raise _damaged("this is no header of a log of ours", number)


def _read_item(line: bytes, number: int) -> Row | _Note | _Footer:
    members = _parsed(line, number)
    match members:
        case {"type": "ringfence.checkpoint", "note": str(text)}:
            note = _Note(text)
            if _note_line(note) == line:
                return note
        case {"type": "ringfence.end", "rows": int(rows), "checkpoints": int(checkpoints), "sha256": str(digest)}:
            footer = _Footer(int(rows), int(checkpoints), digest)
            if _footer_line(footer) == line:
                return footer
        case {"seq": int(seq), "hash": str(shown)} if type(seq) is int and _HASH.fullmatch(shown):
            row = Row(seq, bytes.fromhex(shown), None)
            return row if line == _pruned_line(row) else row._replace(text=_record_text(line, members, number))
        case _:
            pass
    raise _damaged("this is no line of a log of ours", number)


def _record_text(line: bytes, members: dict[str, Any], number: int) -> str:
    # encoded once, in the two halves that the hash stands between: the record's text without it, the line with it
    before = _canonical({name: value for name, value in members.items() if name < "hash"}, number)[:-1]
    after = _canonical({name: value for name, value in members.items() if name > "hash"}, number)[1:]
    if before + b',"hash":"%b",' % members["hash"].encode() + after + b"\n" != line:
        raise _damaged("the line is not in its canonical form", number)
    return (before + b"," + after).decode()


def _row_line(row: Row) -> bytes:
    if row.text is None:
        return _pruned_line(row)
    return _line({**read_record(row.text), "hash": row.hash.hex()})


def _pruned_line(row: Row) -> bytes:
    return _line({"type": _PRUNED, "seq": row.seq, "hash": row.hash.hex()})


def _note_line(note: _Note) -> bytes:
    return _line({"type": _CHECKPOINT, "note": note.text})


def _footer_line(footer: _Footer) -> bytes:
    return _line({"type": _FOOTER, "rows": footer.rows, "checkpoints": footer.checkpoints, "sha256": footer.sha256})


def _parsed(line: bytes, number: int) -> dict[str, Any]:
    try:
        members = json.loads(line.decode())
    except (ValueError, RecursionError):
        raise _damaged("the line is not JSON in UTF-8", number) from None
    if not isinstance(members, dict):
        raise _damaged("the line is no JSON object", number)
    return members


def _canonical(members: dict[str, Any], number: int) -> bytes:
    try:
        return canonical_record(members)
    except InvalidRequest as refused:
        raise _damaged(str(refused), number) from None


def _line(members: dict[str, Any]) -> bytes:
    return canonical_record(members) + b"\n"


def _damaged(problem: str, number: int) -> InvalidRequest:
    return InvalidRequest(f"line {number}: {problem}", reason="log_damaged", line=number)
