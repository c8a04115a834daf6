"""A whole log as one file of JSON Lines, written and read one line at a time, so that it may be as long as it likes.

The first line describes the log, the last one says how much there was and hashes all before it. Between them each
record is a line (its canonical text with its `hash`), and so is each checkpoint, after the last record it covers. A
line that is not, byte for byte, what the writer would have written is refused; whether the records are the ones that
were sealed is for `evidence.verify` to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, TypeAlias

from ringfence.errors import InvalidRequest
from ringfence.evidence.merkle import Frontier
from ringfence.evidence.sealing import NO_HASH, canonical_record, read_record

FORMAT: Final = "ringfence.log"
VERSION: Final = 1
MOST_LINE_BYTES: Final = 4 * 1024 * 1024

_CHECKPOINT: Final = "ringfence.checkpoint"
_PRUNED: Final = "ringfence.pruned"
_FOOTER: Final = "ringfence.end"
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Header:
    """Which log it is, and what stands for the records that were dropped from its front."""

    log_id: str
    tool_version: str
    first_seq: int = 0
    first_prev: bytes = NO_HASH
    first_frontier: Frontier = field(default_factory=Frontier)


@dataclass(frozen=True, slots=True)
class Row:
    """One record; `text` is absent where the record was pruned and its hash alone is left."""

    seq: int
    hash: bytes
    text: str | None


@dataclass(frozen=True, slots=True)
class SignedHead:
    """A checkpoint as it was signed over the first `size` records."""

    size: int
    note: str


@dataclass(frozen=True, slots=True)
class Footer:
    """How much the file holds; one that was cut short has none."""

    size: int
    checkpoints: int


Item: TypeAlias = Header | Row | SignedHead | Footer


def log_lines(header: Header, rows: Iterable[Row], checkpoints: Iterable[SignedHead]) -> Iterator[bytes]:
    """Yield the lines of the file, each with its line end.

    Args:
        header: The log.
        rows: Its records in their order, from `header.first_seq` on without a gap.
        checkpoints: Its checkpoints in their order; those beyond the last row are left out.

    Raises:
        InvalidRequest: A row is missing, or is not the canonical text of a record.
    """
    running = sha256()
    written, waiting = 0, iter(checkpoints)
    checkpoint = next(waiting, None)
    line = _header_line(header)
    running.update(line)
    yield line
    seq = header.first_seq
    for row in rows:
        if row.seq != seq:
            raise InvalidRequest(f"record {seq} of {header.log_id} is missing", reason="log_damaged")
        line = _row_line(row)
        running.update(line)
        yield line
        seq += 1
        while checkpoint is not None and checkpoint.size <= seq:
            line = _checkpoint_line(checkpoint)
            running.update(line)
            yield line
            written += 1
            checkpoint = next(waiting, None)
    yield _footer_line(Footer(seq, written), running.hexdigest())


def read_log(readline: Callable[[int], bytes]) -> Iterator[Item]:
    """Yield what a file holds, line by line: the header first, the footer last.

    Args:
        readline: Returns the next line with its line end but no more bytes than asked for; `b""` at the end.

    Raises:
        InvalidRequest: A line is not what the writer writes, is not in its place, or the file was cut short.
    """
    running, number = sha256(), 1
    line = _next_line(readline, number)
    header = _read_header(line, number)
    running.update(line)
    yield header
    seq, checkpoints, last_size = header.first_seq, 0, header.first_seq
    while True:
        number += 1
        line = _next_line(readline, number)
        members = _parsed(line, number)
        kind = members.get("type")
        if kind == _FOOTER:
            break
        if kind == _CHECKPOINT:
            checkpoint = _read_checkpoint(line, members, number)
            if not last_size < checkpoint.size <= seq:
                raise _damaged("a checkpoint is not in its place", number)
            checkpoints, last_size = checkpoints + 1, checkpoint.size
            yield checkpoint
        else:
            row = _read_row(line, members, number)
            if row.seq != seq:
                raise _damaged(f"record {seq} should be here", number)
            seq += 1
            yield row
        running.update(line)
    if line != _footer_line(Footer(seq, checkpoints), running.hexdigest()):
        raise _damaged("the last line does not match the lines before it", number)
    if readline(1):
        raise _damaged("something follows the last line", number + 1)
    yield Footer(seq, checkpoints)


def _header_line(header: Header) -> bytes:
    members = {
        "type": FORMAT,
        "v": VERSION,
        "log_id": header.log_id,
        "tool": {"name": "ringfence", "version": header.tool_version},
        "first_seq": header.first_seq,
        "first_prev": header.first_prev.hex(),
        "first_frontier": header.first_frontier.to_text(),
    }
    return _line(members)


def _read_header(line: bytes, number: int) -> Header:
    match _parsed(line, number):
        case {
            "log_id": str(log_id),
            "tool": {"version": str(version)},
            "first_seq": int(first_seq),
            "first_prev": str(first_prev),
            "first_frontier": str(frontier),
        } if _HASH.fullmatch(first_prev):
            header = Header(log_id, version, int(first_seq), bytes.fromhex(first_prev), Frontier.from_text(frontier))
            # writing it again finds every member that is missing, unknown, or of another kind or form
            if _header_line(header) == line and header.first_frontier.size == first_seq:
                return header
        case _:
            pass
    raise _damaged("this is no header of a log of ours", number)


def _row_line(row: Row) -> bytes:
    if row.text is None:
        return _pruned_line(row)
    return _line({**read_record(row.text), "hash": row.hash.hex()})


def _read_row(line: bytes, members: dict[str, Any], number: int) -> Row:
    shown, seq = members.pop("hash", None), members.get("seq")
    if not isinstance(shown, str) or not _HASH.fullmatch(shown) or type(seq) is not int:
        raise _damaged("this is no record", number)
    if members.get("type") == _PRUNED:
        row = Row(seq, bytes.fromhex(shown), None)
        if _pruned_line(row) != line:
            raise _damaged("a pruned record has a hash and nothing else", number)
        return row
    # encoded once, in the two halves that the hash stands between: the record's text without it, the line with it
    before = _canonical({name: value for name, value in members.items() if name < "hash"}, number)[:-1]
    after = _canonical({name: value for name, value in members.items() if name > "hash"}, number)[1:]
    if before + b',"hash":"%b",' % shown.encode() + after + b"\n" != line:
        raise _damaged("the line is not in its canonical form", number)
    return Row(seq, bytes.fromhex(shown), (before + b"," + after).decode())


def _pruned_line(row: Row) -> bytes:
    return _line({"type": _PRUNED, "seq": row.seq, "hash": row.hash.hex()})


def _checkpoint_line(checkpoint: SignedHead) -> bytes:
    return _line({"type": _CHECKPOINT, "size": checkpoint.size, "note": checkpoint.note})


def _read_checkpoint(line: bytes, members: dict[str, Any], number: int) -> SignedHead:
    match members:
        case {"size": int(size), "note": str(note)}:
            checkpoint = SignedHead(int(size), note)
            if _checkpoint_line(checkpoint) == line:
                return checkpoint
        case _:
            pass
    raise _damaged("this is no checkpoint", number)


def _footer_line(footer: Footer, digest: str) -> bytes:
    return _line({"type": _FOOTER, "size": footer.size, "checkpoints": footer.checkpoints, "sha256": digest})


def _next_line(readline: Callable[[int], bytes], number: int) -> bytes:
    line = readline(MOST_LINE_BYTES + 1)
    if len(line) > MOST_LINE_BYTES:
        raise _damaged(f"the line is longer than {MOST_LINE_BYTES} bytes", number)
    if not line.endswith(b"\n"):
        raise _damaged("the file was cut short", number)
    return line


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
