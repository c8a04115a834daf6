"""The evidence of some runs as one file that proves itself on another machine, to whoever has the key or a checkpoint.

A bundle is a DSSE envelope (`dsse`) around an in-toto statement (`statement`). Reading one checks, and in this order:
that every byte of it is the one we would have written, the signature over all of it, that of every checkpoint, the
proof of every record against its log's checkpoint, the chain between neighbours, and every document's digest. What
remains is who signed, which no file can prove about itself: that takes a key or a checkpoint from outside.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.evidence.anchors import Trust
from ringfence.evidence.dsse import key_id_of, read_envelope, seal_envelope, signed_message
from ringfence.evidence.merkle import verify_inclusion
from ringfence.evidence.note import Checkpoint, Sign, VerifierKey, Verify, log_origin, open_note, read_note
from ringfence.evidence.statement import Content, Statement, ordered, read_statement, write_statement

MOST_BYTES: Final = 64 * 1024 * 1024


class Proof(StrEnum):
    """What shows that a bundle is not somebody's invention."""

    KEY = "key"
    """The bundle and every checkpoint in it were signed by a key that came, or is known, from outside."""
    CHECKPOINT = "checkpoint"
    """The records are those under checkpoints from outside; why these were selected is the word of the signer alone."""
    NONE = "none"
    """It agrees with itself, which everybody's own bundle does."""


_VERDICTS: Final = {
    Proof.KEY: "verified: signed by a key that is known from outside",
    Proof.CHECKPOINT: "verified: the records are those of a checkpoint given from outside; the signer is unproven",
    Proof.NONE: "signer unproven",
}


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that agrees with itself in every byte; whether to believe it is what `proof` says."""

    proof: Proof
    content: Content
    records: tuple[Mapping[str, Any], ...]
    """The records' members, in the order of their logs."""
    hashes: tuple[bytes, ...]
    checkpoints: Mapping[str, Checkpoint]

    @property
    def is_proven(self) -> bool:
        """Whether anything from outside vouches for the records."""
        return self.proof is not Proof.NONE

    @property
    def verdict(self) -> str:
        """The same for people."""
        return _VERDICTS[self.proof]


def make_bundle(content: Content, sign: Sign, verify: Verify) -> bytes:
    """Return the bundle of a content, in whatever order it comes, signed with the private half of `content.signer`.

    The bundle is read again before it is handed out: one that nobody could verify is never made.

    Raises:
        InvalidRequest: A record has no valid proof, a checkpoint no valid signature, or there is too much.
    """
    payload = write_statement(ordered(content)).payload
    data = seal_envelope(payload, content.signer, sign)
    read_bundle(data, Trust(verify))
    return data


def read_bundle(data: bytes, trust: Trust) -> Bundle:
    """Return what a bundle holds after every check; one altered byte anywhere is found.

    A checkpoint from outside that is one of those in the bundle proves the records under it. One of another size proves
    the key that signed it, and so what else that key signed.

    Args:
        data: The file.
        trust: The keys and checkpoints that the caller has from somewhere else.

    Raises:
        InvalidRequest: The bundle was altered (`bundle_damaged`, `bad_signature`, `bad_note`, `no_proof`), contradicts
            a checkpoint from outside (`checkpoint_mismatch`), or is too large to be looked at (`bundle_too_large`).
    """
    if len(data) > MOST_BYTES:
        raise InvalidRequest(f"a bundle has at most {MOST_BYTES} bytes", reason="bundle_too_large")
    envelope = read_envelope(data)
    statement = read_statement(envelope.payload)
    content = statement.content
    message = signed_message(envelope.payload)
    if envelope.key_id != key_id_of(content.signer) or not trust.verify(
        content.signer.public, message, envelope.signature
    ):
        raise InvalidRequest("the signature of the bundle does not hold", reason="bad_signature")
    _check_order(statement)
    signers = _checked_notes(statement, trust)
    _check_records(statement)
    _check_documents(content)
    return Bundle(
        _proof(statement, signers, trust), content, statement.members, statement.hashes, statement.checkpoints
    )


def _checked_notes(statement: Statement, trust: Trust) -> dict[str, frozenset[VerifierKey]]:
    """Return who signed each checkpoint, of the keys inside and outside the bundle."""
    content = statement.content
    signers: dict[str, frozenset[VerifierKey]] = {}
    for log_id, note in content.notes.items():
        if statement.checkpoints[log_id].origin != log_origin(log_id):
            raise _damaged(f"the checkpoint of {log_id} is one of another log")
        signers[log_id] = frozenset(open_note(note, (*trust.keys, *content.keys), trust.verify).signers)
        if signers[log_id].isdisjoint(content.keys):
            raise _damaged(f"no key of the bundle signed the checkpoint of {log_id}")
    if not frozenset(content.keys) <= frozenset[VerifierKey]().union(*signers.values()):
        raise _damaged("the bundle names a key that signed nothing in it")
    return signers


def _check_order(statement: Statement) -> None:
    """Refuse what `ordered` would have written in another order, or left out."""
    content = statement.content
    if ordered(content) != content or list(ordered(content).notes) != list(content.notes):
        raise _damaged("the content is not in its order")
    places = [(record.log_id, record.seq) for record in content.records]
    if len(set(places)) != len(places):
        raise _damaged("a record is there twice")
    if not {log_id for log_id, _ in places} <= content.notes.keys():
        raise _damaged("a record has no checkpoint of its log")
    last = ("", -1)
    for gap in content.pruned:
        first, final = (gap.log_id, gap.first_seq), (gap.log_id, gap.last_seq)
        checkpoint = statement.checkpoints.get(gap.log_id)
        if checkpoint is None or not 0 <= gap.first_seq <= gap.last_seq < checkpoint.size or first <= last:
            raise _damaged("a range of pruned records overlaps another or is none")
        found = bisect_left(places, first)
        if found < len(places) and places[found] <= final:
            raise _damaged("a record is there that is said to be pruned")
        last = final


def _check_records(statement: Statement) -> None:
    before: tuple[str, int, bytes] = ("", -1, b"")
    for record, told, digest in zip(statement.content.records, statement.members, statement.hashes, strict=True):
        place = f"{record.log_id}/{record.seq}"
        if told.get("log_id") != record.log_id or type(told.get("seq")) is not int or told["seq"] != record.seq:
            raise _damaged(f"the record at {place} belongs somewhere else")
        checkpoint = statement.checkpoints[record.log_id]
        if not verify_inclusion(digest, record.seq, checkpoint.size, record.proof, checkpoint.root):
            raise InvalidRequest(f"the record at {place} is not under its checkpoint", reason="no_proof", record=place)
        if before[:2] == (record.log_id, record.seq - 1) and told.get("prev_hash") != before[2].hex():
            raise _damaged(f"the record at {place} does not follow the one before it")
        before = (record.log_id, record.seq, digest)


def _check_documents(content: Content) -> None:
    for name, body in content.documents.items():
        if name != "sha256:" + sha256(body.encode()).hexdigest():
            raise _damaged(f"the document {name} has another digest")


def _proof(statement: Statement, signers: Mapping[str, frozenset[VerifierKey]], trust: Trust) -> Proof:
    trusted = set(trust.keys)
    roots: dict[tuple[str, int], bytes] = {}
    for note in trust.checkpoints:
        outside = Checkpoint.parse(read_note(note)[0])
        if outside.origin in map(log_origin, statement.checkpoints):
            roots[outside.origin, outside.size] = outside.root
            trusted.update(_log_signer(note, (*statement.content.keys, statement.content.signer), trust.verify))
    by_key = by_any = True
    for log_id, checkpoint in statement.checkpoints.items():
        root = roots.get((checkpoint.origin, checkpoint.size))
        if root not in (None, checkpoint.root):
            raise InvalidRequest(
                f"{log_id} has another history than the checkpoint given from outside",
                reason="checkpoint_mismatch",
                log_id=log_id,
            )
        is_signed = not trusted.isdisjoint(signers[log_id])
        by_key &= is_signed
        by_any &= is_signed or root is not None
    if by_key and statement.content.signer in trusted:
        return Proof.KEY
    return Proof.CHECKPOINT if by_any and statement.checkpoints else Proof.NONE


def _log_signer(note: str, keys: Iterable[VerifierKey], verify: Verify) -> Iterable[VerifierKey]:
    """Return which of these keys signed a note first; whoever signed after it is a witness, and speaks for no log."""
    name, key_id, _ = read_note(note)[1][0]
    try:
        return open_note(note, [key for key in keys if (key.name, key.key_id) == (name, key_id)], verify).signers
    except InvalidRequest:
        return ()


def _damaged(problem: str) -> InvalidRequest:
    return InvalidRequest(problem, reason="bundle_damaged")
