"""The content of a bundle, taken from the journal: records with their proofs, checkpoints, and the papers they name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

from ringfence.errors import InvalidRequest, QuotaExceeded, Unavailable
from ringfence.evidence.merkle import HASH_BYTES, RootIn, inclusion_proof, node_hash, roots_in
from ringfence.evidence.statement import MOST_RECORDS
from ringfence.interfaces.cli.evidence_desk import ALTERED, MISSING, PRUNED, Desk, Read, read_place

if TYPE_CHECKING:
    from ringfence.journal.reader import Execution, Place, Reader


_SMALL = 512
"""Ranges up to here are hashed anew each time; larger ones are remembered."""


def bundled(desk: Desk, reader: Reader, executions: Iterable[Execution], selection: Mapping[str, str]) -> bytes:
    """Return the bundle of some executions, signed with the key of the home.

    Raises:
        InvalidRequest: There is nothing to bundle.
        QuotaExceeded: There is more than one bundle holds.
        Unavailable: A record was tampered with, or is not signed yet.
    """
    from ringfence import __version__
    from ringfence.evidence.bundle import make_bundle
    from ringfence.evidence.statement import Content, ProvenRecord, Pruned
    from ringfence.journal.signer import Signer, verify

    kept: list[Read] = []
    pruned: list[Place] = []
    for execution in executions:
        ends = (execution.end,) if execution.end is not None and execution.end != execution.begin else ()
        for place in (execution.begin, *ends, *reader.others(execution.exec_id)):
            read = read_place(place)
            if read.state in (ALTERED, MISSING):
                raise Unavailable(
                    f"record {place.seq} of {place.log_id} is {read.state}, and is not passed on as evidence",
                    reason="damaged",
                    fix="see 'ringfence evidence verify'; export the others with --exec",
                )
            if read.state == PRUNED:
                pruned.append(place)
            else:
                kept.append(read)
        if len(kept) > MOST_RECORDS:
            raise QuotaExceeded(
                f"a bundle holds at most {MOST_RECORDS} records",
                reason="budget",
                fix="select less, such as with --since, or export everything with --format log",
            )
    if not kept:
        raise InvalidRequest("nothing was selected", reason="not_found", fix="see 'ringfence evidence list'")
    notes = _last_notes(reader, {each.place.log for each in kept} | {place.log for place in pruned})
    trees = {log: _tree(reader, log, size) for log, (size, _) in notes.items()}
    records = tuple(
        ProvenRecord(
            each.place.log_id,
            each.place.seq,
            each.place.text or "",
            _path(each.place, notes[each.place.log][0], trees[each.place.log]),
        )
        for each in kept
    )
    if desk.key is None:  # a copy without its key is not given another one
        raise Unavailable(
            f"there is no evidence key in {desk.home}, so nobody could sign the bundle",
            reason="no_signing_key",
            fix="export it where the key is, or all of the log with --format log",
        )
    signer = Signer.in_home(desk.home)
    content = Content(
        records=records,
        notes={reader.start(log).log_id: note for log, (_, note) in notes.items()},
        keys=(signer.key,),
        signer=signer.key,
        documents=_documents(reader, kept),
        selection=selection,
        pruned=tuple(Pruned(place.log_id, place.seq, place.seq) for place in pruned),
        tool_version=__version__,
        created_ms=desk.now_ms,
    )
    return make_bundle(content, signer.sign, verify)


def _last_notes(reader: Reader, logs: Iterable[int]) -> dict[int, tuple[int, str]]:
    found: dict[int, tuple[int, str]] = {}
    for log in logs:
        for checkpoint in reader.checkpoints(log):
            found[log] = (checkpoint.size, checkpoint.note)
        if log not in found:
            raise _unsigned(reader.start(log).log_id)
    return found


def _tree(reader: Reader, log: int, size: int) -> RootIn:
    """Return what gives the roots of ranges in a tree; the log is read once, however many records are to be proven."""
    start = reader.start(log)
    first = start.first_seq
    hashes = b"".join(place.hash for place in islice(reader.records(log, first), max(0, size - first)))

    def entries(begin: int, end: int) -> Iterator[bytes]:
        return (
            hashes[at : at + HASH_BYTES]
            for at in range(HASH_BYTES * (begin - first), HASH_BYTES * (end - first), HASH_BYTES)
        )

    small = roots_in(entries, start.frontier)

    @cache
    def root_in(begin: int, end: int) -> bytes:
        if end - begin <= _SMALL or begin < first:
            return small(begin, end)
        middle = begin + (1 << (end - begin - 1).bit_length() - 1)
        return node_hash(root_in(begin, middle), root_in(middle, end))

    return root_in


def _path(place: Place, size: int, tree: RootIn) -> tuple[bytes, ...]:
    if place.seq >= size:
        raise _unsigned(place.log_id)
    return inclusion_proof(place.seq, size, tree)


def _documents(reader: Reader, kept: Iterable[Read]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in kept:
        named = each.members.get("documents", {})
        for digest in named.values() if isinstance(named, Mapping) else ():
            if digest not in found and (text := reader.document(digest)) is not None:
                found[digest] = text
    return found


def _unsigned(log_id: str) -> Unavailable:
    return Unavailable(
        f"what was selected of {log_id} is not under a signed checkpoint yet",
        reason="busy",
        fix="try again in a minute, when the process that runs it has signed its log",
    )
