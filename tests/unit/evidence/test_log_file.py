"""A log as a file is written and read line by line, verifies like the log itself, and shows every changed byte."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.evidence.logs import Log, header, signed
from tests.unit.evidence.told import begin, denial, end, record

from ringfence.crypto import ed25519
from ringfence.errors import InvalidRequest, RingfenceError
from ringfence.evidence.anchors import Trust
from ringfence.evidence.chain import Row, Start
from ringfence.evidence.log_file import MOST_LINE_BYTES, Header, LogFile, SignedHead, log_lines, verify_log_file
from ringfence.evidence.merkle import Frontier
from ringfence.evidence.sealing import canonical_record
from ringfence.evidence.verify import Kind, Report
from ringfence.journal.signer import Signer

SIGNER, FORGER = Signer(b"s" * 32), Signer(b"f" * 32)
TRUSTED = Trust(ed25519.verify, keys=(SIGNER.key,))
UNKNOWN = Trust(ed25519.verify)


def some_runs(count: int = 3) -> Log:
    log = Log("lg-1", [record("log.opened", exec_id=None)])
    for number in range(count):
        ids = {"exec_id": f"ex-{number}", "envelope_id": f"ev-{number}"}
        log.append(begin(**ids))
        log.append(end(**ids))
    log.append(denial(exec_id="ex-no", envelope_id="ev-no"))
    return log


LOG = some_runs()
SIZES = (3, 5, 8)
LINES = list(log_lines(header(SIGNER, LOG), LOG.rows(), signed(SIGNER, LOG, SIZES)))
WHOLE = b"".join(LINES)


def verified(data: bytes, trust: Trust = TRUSTED) -> Report:
    return verify_log_file(io.BytesIO(data).readline, trust)


def is_found(data: bytes) -> bool:
    """Tell whether a changed file is refused or faulted; an exception of any other kind is a failure of the test."""
    try:
        return not verified(data).is_whole
    except RingfenceError:
        return True


def refooted(lines: list[bytes]) -> bytes:
    """Write the last line anew over the others, as whoever changed them can."""
    notes = sum(b'"ringfence.checkpoint"' in line for line in lines)
    told = {"type": "ringfence.end", "rows": len(lines) - 1 - notes, "checkpoints": notes}
    body = b"".join(lines)
    return body + canonical_record(told | {"sha256": sha256(body).hexdigest()}) + b"\n"


# --- what is written ----------------------------------------------------------------------------


def test_every_record_is_one_line_with_its_hash() -> None:
    told = [json.loads(line) for line in LINES]
    records = [line for line in told if not line["type"].startswith("ringfence.")]
    assert [line["seq"] for line in records] == list(range(8))
    for line in records:
        shown = line.pop("hash")
        assert sha256(canonical_record(line)).hexdigest() == shown


def test_a_checkpoint_stands_before_the_records_it_covers() -> None:
    kinds = [json.loads(line)["type"].startswith("ringfence.checkpoint") for line in LINES[1:-1]]
    assert [place for place, is_note in enumerate(kinds) if is_note] == [0, 4, 7]


def test_reading_gives_back_what_was_written() -> None:
    file = LogFile(io.BytesIO(WHOLE).readline)
    assert file.header == header(SIGNER, LOG)
    assert list(file.rows()) == list(LOG.rows())


def test_a_file_verifies_on_another_machine_with_the_key_alone() -> None:
    report = verified(WHOLE)
    assert report.is_proven
    assert (report.records, report.checkpoints, report.signed_size) == (8, 3, 8)


def test_a_file_verifies_against_a_checkpoint_from_outside() -> None:
    note = signed(SIGNER, LOG, [8])[0].note
    assert verified(WHOLE, replace(UNKNOWN, checkpoints=(note,))).is_proven


def test_the_keys_in_the_file_prove_nothing() -> None:
    report = verified(WHOLE, UNKNOWN)
    assert report.is_whole
    assert not report.is_proven
    assert report.signer == "unproven"


def test_an_empty_log_is_a_file_too() -> None:
    log = Log("lg-1")
    assert verified(b"".join(log_lines(header(SIGNER, log), [], []))).is_whole


def test_pruned_records_are_lines_with_a_hash_alone() -> None:
    rows = [row._replace(text=None) if row.seq in (1, 2) else row for row in LOG.rows()]
    data = b"".join(log_lines(header(SIGNER, LOG), rows, signed(SIGNER, LOG, SIZES)))
    report = verified(data)
    assert report.is_proven
    assert report.pruned == 2
    assert list(LogFile(io.BytesIO(data).readline).rows()) == rows


def test_a_log_whose_front_was_dropped_is_written_from_where_it_starts() -> None:
    rows = list(LOG.rows())
    start = Start("lg-1", 5, rows[4].hash, Frontier().extend(row.hash for row in rows[:5]))
    data = b"".join(log_lines(Header(start, (SIGNER.key,), "0.1.0"), rows[5:], signed(SIGNER, LOG, SIZES)))
    report = verified(data)
    assert report.is_proven
    assert (report.first_seq, report.records, report.uncompared) == (5, 3, 1)


def test_a_tail_that_is_gone_shows_by_the_checkpoint_over_it() -> None:
    rows = list(LOG.rows())[:6]
    report = verified(b"".join(log_lines(header(SIGNER, LOG), rows, signed(SIGNER, LOG, SIZES))))
    assert report.fault is not None
    assert report.fault.kind is Kind.TRUNCATED


def test_a_gap_or_a_text_that_is_not_canonical_is_never_written() -> None:
    rows = list(LOG.rows())
    with pytest.raises(InvalidRequest, match="record 1 of lg-1 is missing"):
        list(log_lines(header(SIGNER, LOG), [rows[0], rows[2]], []))
    with pytest.raises(InvalidRequest):
        list(log_lines(header(SIGNER, LOG), [rows[0]._replace(text=str(rows[0].text) + " ")], []))


# --- what is found ------------------------------------------------------------------------------


def changes_at(data: bytes, place: int) -> Iterator[bytes]:
    before, here, after = data[:place], data[place : place + 1], data[place + 1 :]
    yield before + bytes([here[0] ^ 1 << place % 8]) + after
    yield before + after
    yield before + here + here + after
    yield before + b" " + here + after
    yield before


def test_every_change_at_every_byte_is_found() -> None:
    log = Log("lg-1", [record("log.opened", exec_id=None), record("log.closed", exec_id=None)])
    data = b"".join(log_lines(header(SIGNER, log), log.rows(), signed(SIGNER, log, [1, 2])))
    assert not is_found(data)
    missed = [
        place
        for place in range(len(data))
        for changed in changes_at(data, place)
        if changed != data and not is_found(changed)
    ]
    assert missed == []


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_lines_that_are_removed_repeated_or_exchanged_are_found_even_with_a_new_last_line(data: st.DataObject) -> None:
    lines = LINES[:-1]
    first, second = (data.draw(st.integers(1, len(lines) - 1)) for _ in range(2))
    exchanged = lines.copy()
    exchanged[first], exchanged[second] = exchanged[second], exchanged[first]
    repeated = [*lines[:first], lines[second], *lines[first:]]
    removed = [*lines[:first], *lines[first + 1 :]]
    note = signed(SIGNER, LOG, [8])[0].note
    for changed in (exchanged, repeated, removed):
        report = None
        try:
            report = verify_log_file(io.BytesIO(refooted(changed)).readline, replace(TRUSTED, checkpoints=(note,)))
        except InvalidRequest:
            continue
        # a checkpoint may be missing: then fewer sizes are signed, and the records are as they were
        kept = [line for line in changed if b"ringfence." not in line]
        assert not report.is_whole or kept == [line for line in lines if b"ringfence." not in line]


def test_an_altered_record_is_pinpointed_in_the_file() -> None:
    lines = [line.replace(b'"exit_code":0', b'"exit_code":1') if b'"seq":4' in line else line for line in LINES[:-1]]
    report = verified(refooted(lines))
    assert report.fault is not None
    assert (report.fault.kind, report.fault.seq) == (Kind.ALTERED, 4)


def test_a_removed_record_is_pinpointed_in_the_file() -> None:
    report = verified(refooted([line for line in LINES[:-1] if b'"seq":3,' not in line]))
    assert report.fault is not None
    assert (report.fault.kind, report.fault.seq) == (Kind.REMOVED, 3)


def test_a_checkpoint_where_nobody_looks_at_it_is_found() -> None:
    forged = canonical_record({"type": "ringfence.checkpoint", "note": "nonsense"}) + b"\n"
    rows = [line for line in LINES[1:-1] if b"ringfence." not in line]
    with pytest.raises(InvalidRequest, match="does not stand before"):
        verified(refooted([LINES[0], *rows[:3], forged, *rows[3:]]))


@pytest.mark.parametrize("place", range(len(LINES)))
def test_no_line_may_be_spelled_otherwise_even_with_a_new_last_line(place: int) -> None:
    lines = LINES.copy()
    lines[place] = json.dumps(json.loads(lines[place]), ensure_ascii=False).encode() + b"\n"
    with pytest.raises(InvalidRequest):
        verified(b"".join(lines) if place == len(LINES) - 1 else refooted(lines[:-1]))


def test_the_hash_of_a_record_stands_in_its_one_place() -> None:
    line = next(line for line in LINES if b'"seq":3,' in line)
    member = b'"hash":"%b",' % json.loads(line)["hash"].encode()
    moved = b"{" + member + line.replace(member, b"", 1)[1:]
    assert json.loads(moved) == json.loads(line)
    with pytest.raises(InvalidRequest, match="canonical"):
        verified(WHOLE.replace(line, moved))


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"null\n",
        b"[" * 100_000 + b"\n",
        b'{"a":' * 100_000 + b"\n",
        b'{"seq":' + b"9" * 100_000 + b"}\n",
        b'{"type":"ringfence.end","rows":true,"checkpoints":0,"sha256":""}\n',
        b'{"hash":"%b","seq":true,"type":"ringfence.pruned"}\n' % (b"0" * 64),
        b'{"hash":"%b","seq":1.0,"type":"ringfence.pruned"}\n' % (b"0" * 64),
        b'{"hash":"%b","seq":1}\n' % (b"0" * 64),
        b'{"a":"\\ud800","hash":"%b","seq":0}\n' % (b"0" * 64),
        b'{"note":["x"],"type":"ringfence.checkpoint"}\n',
        b"\xff\n",
        b'"' + b"a" * MOST_LINE_BYTES + b'"\n',
        b"x" * (MOST_LINE_BYTES + 10),
    ],
    ids=lambda line: f"{line[:20]!r}{len(line)}",
)
def test_a_hostile_line_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidRequest):
        verified(LINES[0] + line + b"".join(LINES[1:]))
    with pytest.raises(InvalidRequest):
        verified(line + WHOLE)


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": True},
        {"more": 1},
        {"first_seq": False},
        {"first_prev": "0"},
        {"first_frontier": "1:"},
        {"keys": [1]},
        {"keys": ["x"]},
        {"tool": {"name": "other", "version": "1"}},
        {"log_id": 1},
    ],
)
def test_a_first_line_that_is_not_ours_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        LogFile(io.BytesIO(canonical_record(json.loads(LINES[0]) | change) + b"\n").readline)


def test_reading_a_file_takes_a_small_part_of_its_size() -> None:
    log = some_runs(500)
    data = b"".join(log_lines(header(SIGNER, log), log.rows(), signed(SIGNER, log, [len(log.sealed)])))
    readline = io.BytesIO(data).readline
    tracemalloc.start()
    try:
        assert sum(1 for _ in LogFile(readline).rows()) == 1002
        assert tracemalloc.get_traced_memory()[1] < len(data) / 4
    finally:
        tracemalloc.stop()


def test_writing_takes_one_line_at_a_time() -> None:
    asked: list[int] = []

    def rows() -> Iterator[Row]:
        for row in LOG.rows():
            asked.append(row.seq)
            yield row

    lines = log_lines(header(SIGNER, LOG), rows(), iter([SignedHead(8, signed(SIGNER, LOG, [8])[0].note)]))
    for _ in range(4):
        next(lines)
    assert asked == [0, 1]
