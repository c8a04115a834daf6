"""Verification against everything that can be done to a stored log, each time with the record and the deed named."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.crypto.ed25519 import verify
from ringfence.errors import InvalidRequest
from ringfence.evidence import lifecycle
from ringfence.evidence.merkle import Frontier
from ringfence.evidence.note import Checkpoint, log_origin
from ringfence.evidence.sealing import Head, canonical_record, record_hash
from ringfence.evidence.verify import Kind, Report, Row, Start, Trust, verify_log
from ringfence.journal.signer import Signer

LOG = "lg-1"
SIGNER, STRANGER = Signer(bytes(range(32))), Signer(bytes(32))
INSIDE = Trust(verify, known=(SIGNER.key,))
OUTSIDE = Trust(verify, keys=(SIGNER.key,))


@dataclasses.dataclass
class Log:
    """A log as a store or a bundle keeps it, open to every kind of tampering."""

    rows: list[Row]
    notes: list[str]
    start: Start

    def report(self, trust: Trust = INSIDE) -> Report:
        return verify_log(self.start, iter(self.rows), iter(self.notes), trust)

    def fault(self, trust: Trust = INSIDE) -> tuple[str, int]:
        report = self.report(trust)
        assert report.fault is not None
        assert report.fault.log_id == LOG
        assert not report.is_whole
        assert not report.is_proven
        return report.fault.kind, report.fault.seq

    def number_anew(self) -> None:
        """What somebody must do in a table whose key is the place of a record."""
        self.rows = [row._replace(seq=place) for place, row in enumerate(self.rows)]

    def change(self, place: int, **members: Any) -> None:
        """Change what a record says, and its hash with it."""
        changed = {**json.loads(self.rows[place].text or ""), **members}
        text = canonical_record(changed).decode()
        self.rows[place] = Row(place, record_hash(text), text)

    def link_anew(self, since: int) -> None:
        """Hash every record again from a place on, as somebody without the key can do."""
        for seq in range(since, len(self.rows)):
            self.change(seq, seq=seq, prev_hash=self.rows[seq - 1].hash.hex() if seq else "0" * 64)

    def drop_front(self, count: int) -> None:
        frontier = Frontier().extend(row.hash for row in self.rows[:count])
        self.start = Start(LOG, count, self.rows[count - 1].hash, frontier)
        self.rows = self.rows[count:]


def members_of_runs(runs: int) -> Iterator[dict[str, Any]]:
    for number in range(runs):
        # the clock jumps to and fro: order comes from the place
        yield {"type": "exec.begin", "exec_id": f"ex-{number}", "time_ms": 1000 - 7 * number, "cwd": "/workspace/é"}
        yield {"type": "exec.end", "exec_id": f"ex-{number}", "time_ms": 13 * number, "status": "ok"}


def written(members: Iterable[dict[str, Any]], every: int = 10, log_id: str = LOG, signer: Signer = SIGNER) -> Log:
    head = Head.empty(log_id)
    log = Log([], [], Start(log_id))
    for one in members:
        sealed, head = head.seal(one)
        log.rows.append(Row(*sealed))
        if head.size % every == 0:
            log.notes.append(signed(head, signer))
    return log


def signed(head: Head, signer: Signer = SIGNER) -> str:
    return signer.sign_checkpoint(Checkpoint(log_origin(head.log_id), head.size, head.frontier.root()))


@pytest.fixture
def log() -> Log:
    """Thirty records of fifteen runs, signed at 10, 20 and 30."""
    return written(members_of_runs(15))


def test_a_log_as_it_was_written_is_whole_and_its_signer_unproven(log: Log) -> None:
    assert log.report() == Report(
        log_id=LOG,
        first_seq=0,
        records=30,
        pruned=0,
        size=30,
        open_execs=0,
        checkpoints=3,
        signed_size=30,
        proven_size=0,
        uncompared=0,
        signer="unproven",
        fault=None,
    )
    assert log.report().is_whole
    assert not log.report().is_proven


def test_the_signer_is_proven_by_a_key_from_outside(log: Log) -> None:
    report = log.report(OUTSIDE)
    assert (report.signer, report.proven_size, report.is_proven) == ("proven", 30, True)


def test_the_signer_is_proven_by_a_checkpoint_from_outside_and_so_are_its_later_ones(log: Log) -> None:
    early = dataclasses.replace(INSIDE, checkpoints=(log.notes[0],))
    assert (log.report(early).signer, log.report(early).proven_size) == ("proven", 30)


def test_a_checkpoint_of_an_unknown_key_from_outside_proves_only_what_it_covers() -> None:
    log = written(members_of_runs(15), signer=STRANGER)
    copied = written(members_of_runs(15)).notes
    report = log.report(Trust(verify, known=(STRANGER.key,), checkpoints=(copied[0],)))
    assert (report.signer, report.proven_size, report.signed_size) == ("unproven", 10, 30)
    report = log.report(Trust(verify, known=(STRANGER.key,), checkpoints=(copied[2],)))
    assert (report.signer, report.proven_size) == ("proven", 30)


def test_a_log_rewritten_and_signed_by_a_stranger_is_not_proven(log: Log) -> None:
    forged = written(members_of_runs(15), signer=STRANGER)
    assert forged.report(Trust(verify, known=(STRANGER.key,), keys=(SIGNER.key,))).signer == "unproven"
    # nor when it begins with what was really signed
    log.notes[1:] = forged.notes[1:]
    report = log.report(Trust(verify, known=(STRANGER.key,), keys=(SIGNER.key,)))
    assert (report.fault, report.signer, report.proven_size) == (None, "unproven", 10)
    assert forged.fault(OUTSIDE) == (Kind.BAD_SIGNATURE, 10)


def test_records_after_the_last_checkpoint_are_counted_as_not_yet_signed() -> None:
    report = written(members_of_runs(13)).report(OUTSIDE)
    assert (report.size, report.signed_size, report.signer) == (26, 20, "proven")


def test_a_log_without_checkpoints_and_one_without_records_prove_nothing() -> None:
    assert written(members_of_runs(3)).report(OUTSIDE).signer == "unproven"
    assert written([]).report(OUTSIDE).signer == "unproven"
    assert written([]).report(OUTSIDE).is_whole


def test_a_changed_text_is_found_at_its_record(log: Log) -> None:
    log.rows[7] = log.rows[7]._replace(text=(log.rows[7].text or "").replace("ok", "no"))
    assert log.fault() == (Kind.ALTERED, 7)


def test_a_text_changed_in_meaning_nothing_is_found(log: Log) -> None:
    log.rows[7] = log.rows[7]._replace(text=f" {log.rows[7].text}")
    assert log.fault() == (Kind.ALTERED, 7)
    text = f" {log.rows[8].text}"
    log = written(members_of_runs(15))
    log.rows[8] = Row(8, record_hash(text), text)
    assert log.fault() == (Kind.ALTERED, 8)


@pytest.mark.parametrize("members", [{"v": 2}, {"v": True}, {"v": "1"}, {"seq": True}, {"seq": "1"}])
def test_a_record_that_no_log_writes_is_found_however_well_it_is_linked(members: dict[str, Any]) -> None:
    log = written(members_of_runs(3))
    log.change(1, **members)
    log.link_anew(2)
    assert log.fault() == (Kind.ALTERED, 1)


def test_a_changed_hash_is_found_at_its_record(log: Log) -> None:
    log.rows[7] = log.rows[7]._replace(hash=bytes(32))
    assert log.fault() == (Kind.ALTERED, 7)


@pytest.mark.parametrize("seq", [0, 6, 7, 9, 10, 28])
def test_a_record_changed_together_with_its_hash_is_found_by_the_one_after_it(log: Log, seq: int) -> None:
    log.change(seq, cwd="/elsewhere")
    assert log.fault() == (Kind.ALTERED, seq)


def test_the_last_record_changed_together_with_its_hash_is_found_by_its_checkpoint(log: Log) -> None:
    log.change(29, cwd="/elsewhere")
    fault = log.report().fault
    assert fault is not None
    assert (fault.kind, fault.seq, fault.last_seq) == (Kind.ALTERED, 20, 29)


def test_a_record_whose_link_was_changed_is_found(log: Log) -> None:
    log.change(10, prev_hash="ab" * 32)
    assert log.fault() == (Kind.ALTERED, 10)
    log = written(members_of_runs(15))
    log.change(14, prev_hash="ab" * 32)
    fault = log.report().fault
    assert fault is not None
    assert (fault.kind, fault.seq, fault.last_seq) == (Kind.ALTERED, 13, 14)


@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize(("one", "other"), [(6, 7), (3, 25), (0, 29), (28, 29)])
def test_rows_that_were_swapped_are_found(log: Log, one: int, other: int, renumbered: bool) -> None:
    log.rows[one], log.rows[other] = log.rows[other], log.rows[one]
    if renumbered:
        log.number_anew()
    assert log.fault() == (Kind.REORDERED, one)


@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize(("source", "target"), [(5, 12), (12, 5), (0, 29), (29, 0)])
def test_a_row_that_was_moved_is_found(log: Log, source: int, target: int, renumbered: bool) -> None:
    log.rows.insert(target, log.rows.pop(source))
    if renumbered:
        log.number_anew()
    assert log.fault() == (Kind.REORDERED, min(source, target))


@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize("seq", [0, 7, 10, 28])
def test_a_row_that_is_missing_is_found(log: Log, seq: int, renumbered: bool) -> None:
    del log.rows[seq]
    if renumbered:
        log.number_anew()
    assert log.fault() == (Kind.REMOVED, seq)


def test_several_rows_that_are_missing_are_named(log: Log) -> None:
    del log.rows[7:12]
    fault = log.report().fault
    assert fault is not None
    assert (fault.kind, fault.seq, fault.last_seq) == (Kind.REMOVED, 7, 11)


@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize(("copied", "place"), [(7, 8), (7, 7), (3, 20), (20, 3)])
def test_a_row_that_was_copied_in_is_found(log: Log, copied: int, place: int, renumbered: bool) -> None:
    log.rows.insert(place, log.rows[copied])
    if renumbered:
        log.number_anew()
    kind, seq = log.fault()
    assert kind == Kind.INSERTED
    assert abs(seq - place) <= 1 or seq == copied


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("renumbered", [False, True])
def test_a_row_that_was_made_up_is_found(log: Log, renumbered: bool, linked: bool) -> None:
    made_up = Log(list(log.rows), [], log.start)
    made_up.change(12, cwd="/forged", prev_hash=log.rows[11].hash.hex() if linked else "ab" * 32)
    log.rows.insert(12, made_up.rows[12])
    if renumbered:
        log.number_anew()
    assert log.fault() == (Kind.INSERTED, 12)


def test_a_row_at_a_place_the_log_never_reached_was_inserted(log: Log) -> None:
    log.rows.insert(5, log.rows[5]._replace(seq=999))
    assert log.fault() == (Kind.INSERTED, 5)


def test_a_record_of_another_log_is_found(log: Log) -> None:
    other = written(members_of_runs(15), log_id="lg-2")
    log.rows[4] = other.rows[4]
    assert log.fault() == (Kind.WRONG_LOG, 4)


def test_a_whole_log_under_another_name_is_found(log: Log) -> None:
    log.start = Start("lg-2")
    report = log.report()
    assert report.fault is not None
    assert (report.fault.kind, report.fault.log_id, report.fault.seq) == (Kind.WRONG_LOG, "lg-2", 0)


def test_checkpoints_of_another_log_are_found(log: Log) -> None:
    log.notes = written(members_of_runs(15), log_id="lg-2").notes
    assert log.fault() == (Kind.WRONG_LOG, 10)


@pytest.mark.parametrize("kept", [0, 9, 10, 25, 29])
def test_a_tail_cut_below_a_checkpoint_is_found(log: Log, kept: int) -> None:
    del log.rows[kept:]
    assert log.fault() == (Kind.TRUNCATED, kept)


def test_a_tail_cut_together_with_its_checkpoints_is_found_from_outside(log: Log) -> None:
    outside = dataclasses.replace(INSIDE, checkpoints=(log.notes[2],))
    del log.rows[20:], log.notes[2:]
    assert log.report().is_whole
    assert log.fault(outside) == (Kind.TRUNCATED, 20)


@pytest.mark.parametrize("since", [0, 4, 10, 15, 21])
def test_a_suffix_that_was_linked_anew_is_found_between_two_checkpoints(log: Log, since: int) -> None:
    log.change(since, cwd="/elsewhere")
    log.link_anew(since + 1)
    fault = log.report().fault
    assert fault is not None
    between = since // 10 * 10
    assert (fault.kind, fault.seq, fault.last_seq) == (Kind.ALTERED, between, between + 9)


def test_a_record_cut_out_with_the_rest_linked_anew_is_found(log: Log) -> None:
    # the begin and the end of one run: the others still make sense
    del log.rows[12:14]
    log.link_anew(12)
    assert log.fault() == (Kind.ALTERED, 10)


def test_a_suffix_linked_anew_and_signed_by_the_stolen_key_is_found_from_outside(log: Log) -> None:
    outside = dataclasses.replace(OUTSIDE, checkpoints=(log.notes[1],))
    members = list(members_of_runs(15))
    members[12]["cwd"] = "/elsewhere"
    forged = written(members)
    assert forged.report(OUTSIDE).is_proven
    assert forged.fault(outside) == (Kind.ALTERED, 10)


def test_an_edited_checkpoint_is_found(log: Log) -> None:
    log.notes[1] = log.notes[1].replace("\n20\n", "\n19\n")
    assert log.fault() == (Kind.BAD_SIGNATURE, 19)
    log.notes[1] = log.notes[1].replace("\n19\n", "\n020\n")
    assert log.fault() == (Kind.BAD_CHECKPOINT, 10)
    log.notes[1] = "nonsense"
    assert log.fault() == (Kind.BAD_CHECKPOINT, 10)


def test_checkpoints_out_of_order_or_twice_are_found(log: Log) -> None:
    log.notes[1:1] = log.notes[:1]
    assert log.fault() == (Kind.BAD_CHECKPOINT, 10)
    log.notes[:2] = reversed(log.notes[2:])
    assert log.fault()[0] == Kind.BAD_CHECKPOINT


def test_a_checkpoint_signed_by_a_stranger_is_found(log: Log) -> None:
    log.notes[1] = written(members_of_runs(15), signer=STRANGER).notes[1]
    assert log.fault() == (Kind.BAD_SIGNATURE, 20)


def test_a_checkpoint_forged_beyond_the_end_or_before_the_beginning_is_found(log: Log) -> None:
    log.notes[2] = log.notes[2].replace("\n30\n", "\n40\n")
    assert log.fault() == (Kind.BAD_SIGNATURE, 40)
    log.notes[2] = log.notes[2].replace("\n40\n", "\n30\n")
    log.drop_front(15)
    assert log.report().is_whole
    log.notes[0] = log.notes[0].replace("\n10\n", "\n9\n")
    assert log.fault() == (Kind.BAD_SIGNATURE, 9)


def test_the_first_fault_is_the_one_reported(log: Log) -> None:
    log.rows[25] = log.rows[25]._replace(hash=bytes(32))
    log.notes[1] = log.notes[1].replace("\n20\n", "\n19\n")
    assert log.fault() == (Kind.BAD_SIGNATURE, 19)
    log.rows[4] = log.rows[4]._replace(hash=bytes(32))
    assert log.fault() == (Kind.ALTERED, 4)


def test_a_log_whose_texts_were_pruned_is_whole(log: Log) -> None:
    log.rows[:14] = [row._replace(text=None) for row in log.rows[:14]]
    report = log.report(OUTSIDE)
    assert (report.is_proven, report.pruned, report.records) == (True, 14, 30)


def test_a_hash_changed_where_the_text_was_pruned_is_found(log: Log) -> None:
    log.rows[:14] = [row._replace(text=None) for row in log.rows[:14]]
    log.rows[13] = log.rows[13]._replace(hash=bytes(32))
    assert log.fault() == (Kind.ALTERED, 13)
    log.rows[13] = written(members_of_runs(15)).rows[13]
    log.rows[5] = log.rows[5]._replace(hash=bytes(32))
    assert log.fault() == (Kind.ALTERED, 0)


@pytest.mark.parametrize("dropped", [1, 6, 10, 13, 29, 30])
def test_a_log_whose_front_was_dropped_is_whole(log: Log, dropped: int) -> None:
    log.drop_front(dropped)
    report = log.report(OUTSIDE)
    assert (report.is_proven, report.first_seq, report.size) == (True, dropped, 30)
    assert report.uncompared == len([size for size in (10, 20, 30) if size < dropped])


def test_a_front_that_was_forged_is_found(log: Log) -> None:
    log.drop_front(6)
    good = log.start
    log.start = dataclasses.replace(good, frontier=Frontier().extend([bytes(32)] * 6))
    assert log.fault() == (Kind.ALTERED, 6)
    log.start = dataclasses.replace(good, first_prev=bytes(32))
    assert log.fault() == (Kind.ALTERED, 6)
    log.start = dataclasses.replace(good, first_seq=5)
    assert log.fault() == (Kind.ALTERED, 5)
    log.start = Start(LOG)
    assert log.fault() == (Kind.REMOVED, 0)
    log.start = Start(LOG, first_prev=b"x" * 32)
    assert log.fault() == (Kind.ALTERED, 0)


def test_a_front_that_was_forged_right_at_a_checkpoint_is_found(log: Log) -> None:
    log.drop_front(10)
    log.start = dataclasses.replace(log.start, frontier=Frontier().extend([bytes(32)] * 10))
    fault = log.report().fault
    assert fault is not None
    assert (fault.kind, fault.seq, fault.last_seq) == (Kind.ALTERED, 10, None)


def test_a_checkpoint_from_outside_below_the_dropped_front_is_counted_as_not_compared(log: Log) -> None:
    outside = dataclasses.replace(INSIDE, checkpoints=(log.notes[0],))
    log.drop_front(15)
    report = log.report(outside)
    assert (report.is_whole, report.signer, report.uncompared) == (True, "unproven", 2)


def test_a_checkpoint_from_outside_that_is_none_is_the_fault_of_who_gave_it(log: Log) -> None:
    with pytest.raises(InvalidRequest):
        log.report(dataclasses.replace(INSIDE, checkpoints=("nonsense",)))


def test_a_checkpoint_from_outside_of_another_log_says_nothing(log: Log) -> None:
    other = written(members_of_runs(20), log_id="lg-2").notes[3]
    assert log.report(dataclasses.replace(INSIDE, checkpoints=(other,))) == log.report()


BEGIN, END = ({"type": kind, "exec_id": "ex-1", "status": "ok"} for kind in ("exec.begin", "exec.end"))
FAILED = {**END, "status": "denied"}
DENIED = {"type": "decision.denied", "exec_id": "ex-1", "status": "denied"}


@pytest.mark.parametrize(
    ("members", "seq"),
    [
        ([END], 0),
        ([BEGIN, END, END], 2),
        ([BEGIN, BEGIN], 1),
        ([BEGIN, END, BEGIN], 2),
        ([DENIED, END], 1),
        ([DENIED, FAILED], 1),
        ([DENIED, BEGIN], 1),
        ([DENIED, DENIED], 1),
        ([BEGIN, DENIED, END], 2),
        ([BEGIN, END, DENIED], 2),
        ([{"type": "exec.begin"}], 0),
    ],
)
def test_records_that_cannot_all_be_true_are_found(members: list[dict[str, Any]], seq: int) -> None:
    assert written(members).fault() == (Kind.CONTRADICTION, seq)


@pytest.mark.parametrize("members", [[BEGIN, END], [BEGIN, FAILED], [DENIED], [BEGIN], [{"type": "policy.loaded"}]])
def test_records_that_can_be_true_are_let_be(members: list[dict[str, Any]]) -> None:
    report = written(members).report()
    assert report.fault is None
    assert report.open_execs == (members == [BEGIN])


def test_an_end_whose_begin_was_dropped_or_pruned_is_let_be_once_for_each_such_record(log: Log) -> None:
    log.drop_front(7)
    assert log.report().is_whole
    for members in ([BEGIN, END, END], [{"type": "policy.loaded"}, BEGIN, END, END]):
        twice = written(members)
        twice.rows[0] = twice.rows[0]._replace(text=None)
        assert twice.fault() == (Kind.CONTRADICTION, len(members) - 1)


def test_the_memory_for_runs_that_are_over_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "REMEMBERED", 4)
    lives = lifecycle.Lifecycles(0)
    for seq, members in enumerate(members_of_runs(50)):
        lives.see(seq, members)
    assert len(lives._settled) == 4


def test_progress_is_told_every_ten_thousand_records() -> None:
    told: list[int] = []
    log = written(({"type": "policy.loaded"} for _ in range(20_001)), every=10_000)
    assert verify_log(log.start, log.rows, log.notes, OUTSIDE, told.append).is_whole
    assert told == [10_000, 20_000]


def lines_of(log: Log) -> list[str]:
    """The log as lines of text, as a file would hold it."""
    return [f"{row.seq} {row.hash.hex()} {row.text}" for row in log.rows] + [json.dumps(note) for note in log.notes]


def read_lines(lines: list[str]) -> Log | None:
    """Read what `lines_of` wrote; what cannot be read at all is nothing."""
    log = Log([], [], Start(LOG))
    try:
        for line in lines:
            if line[:1] == '"':
                log.notes.append(json.loads(line))
                continue
            seq, digest, text = line.split(" ", 2)
            if seq != str(int(seq)) or digest != bytes.fromhex(digest).hex():
                return None
            log.rows.append(Row(int(seq), bytes.fromhex(digest), text))
    except ValueError:
        return None
    return log


WHOLE = lines_of(written(members_of_runs(15)))
SIGNED_LAST = dataclasses.replace(OUTSIDE, checkpoints=tuple(written(members_of_runs(15)).notes[2:]))


def is_noticed(lines: list[str]) -> bool:
    log = read_lines(lines)
    return log is None or not log.report(SIGNED_LAST).is_proven


@settings(max_examples=300)
@given(st.data())
def test_no_byte_of_a_log_can_be_changed_added_or_left_out(data: st.DataObject) -> None:
    lines = list(WHOLE)
    at = data.draw(st.integers(0, len(lines) - 1))
    # bytes that JSON spells in another way would not be a change of the note; the notes have a test of their own
    whole = lines[at].encode() if lines[at][:1] != '"' else json.loads(lines[at]).encode()
    place = data.draw(st.integers(0, len(whole) - 1))
    byte = bytes([data.draw(st.integers(0, 255))])
    changed = data.draw(
        st.sampled_from(
            [
                whole[:place] + byte + whole[place + 1 :],
                whole[:place] + byte + whole[place:],
                whole[:place] + whole[place + 1 :],
            ]
        )
    )
    if changed == whole:
        return
    text = changed.decode(errors="surrogateescape")
    lines[at] = text if lines[at][:1] != '"' else json.dumps(text)
    assert is_noticed(lines)


@settings(max_examples=200)
@given(st.data())
def test_no_record_of_a_log_can_be_left_out_repeated_moved_or_swapped(data: st.DataObject) -> None:
    lines = list(WHOLE)
    places = st.integers(0, 29)
    one, other = data.draw(places), data.draw(places)
    match data.draw(st.sampled_from(["leave out", "repeat", "move", "swap", "cut"])):
        case "leave out":
            del lines[one]
        case "repeat":
            lines.insert(other, lines[one])
        case "move":
            lines.insert(other, lines.pop(one))
        case "swap":
            lines[one], lines[other] = lines[other], lines[one]
        case _:
            del lines[one:30]
    assert lines == WHOLE or is_noticed(lines)


def test_the_log_of_the_two_tests_above_is_proven_when_nothing_was_changed() -> None:
    assert not is_noticed(WHOLE)
