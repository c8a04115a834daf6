"""Small real logs: sealed, under a tree, with checkpoints signed by a real key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from ringfence.evidence.chain import Row, Start
from ringfence.evidence.log_file import Header, SignedHead
from ringfence.evidence.merkle import inclusion_proof, roots_in
from ringfence.evidence.note import Checkpoint, log_origin
from ringfence.evidence.sealing import Head, Sealed
from ringfence.evidence.statement import Content, ProvenRecord
from ringfence.journal.signer import Signer

SET_BY_LOG = ("v", "log_id", "seq", "prev_hash")
POLICY = '{"tools":["code_run"]}'
POLICY_DIGEST = "sha256:" + sha256(POLICY.encode()).hexdigest()


class Log:
    """One log that is written, signed and proved."""

    def __init__(self, log_id: str, members: Iterable[Mapping[str, Any]] = ()) -> None:
        self.log_id = log_id
        self.head = Head.empty(log_id)
        self.sealed: list[Sealed] = []
        for one in members:
            self.append(one)

    def append(self, members: Mapping[str, Any]) -> None:
        kept = {name: value for name, value in members.items() if name not in SET_BY_LOG and value is not None}
        sealed, self.head = self.head.seal(kept)
        self.sealed.append(sealed)

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(log_origin(self.log_id), self.head.size, self.head.frontier.root())

    def proven(self, seq: int) -> ProvenRecord:
        def hashes(begin: int, end: int) -> Iterator[bytes]:
            return (one.hash for one in self.sealed[begin:end])

        proof = inclusion_proof(seq, self.head.size, roots_in(hashes))
        return ProvenRecord(self.log_id, seq, self.sealed[seq].text, proof)

    def rows(self) -> Iterator[Row]:
        return (Row(one.seq, one.hash, one.text) for one in self.sealed)


def content(signer: Signer, *logs: Log, seqs: Iterable[int] | None = None, **changes: Any) -> Content:
    """Return all the records of some logs, or only those with the sequence numbers given."""
    wanted = None if seqs is None else set(seqs)
    records = tuple(log.proven(one.seq) for log in logs for one in log.sealed if wanted is None or one.seq in wanted)
    shape: dict[str, Any] = {
        "records": records,
        "notes": {log.log_id: signer.sign_checkpoint(log.checkpoint()) for log in logs},
        "keys": (signer.key,),
        "signer": signer.key,
        "documents": {},
        "selection": {"session_id": "sess_abc123"},
        "pruned": (),
        "tool_version": "0.1.0",
        "created_ms": 1_763_269_300_000,
    }
    return Content(**(shape | changes))


def header(signer: Signer, log: Log) -> Header:
    return Header(Start(log.log_id), (signer.key,), "0.1.0")


def signed(signer: Signer, log: Log, sizes: Iterable[int]) -> list[SignedHead]:
    """Return the checkpoints that were signed when the log had these sizes."""
    heads = []
    for size in sizes:
        shorter = Log(log.log_id)
        shorter.sealed = log.sealed[:size]
        shorter.head = Head(log.log_id, size, b"", shorter.head.frontier.extend(one.hash for one in shorter.sealed))
        heads.append(SignedHead(size, signer.sign_checkpoint(shorter.checkpoint())))
    return heads
