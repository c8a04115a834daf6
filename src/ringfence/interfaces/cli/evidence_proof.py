"""Whether one record is under a checkpoint that a key of ours signed; said in words where it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfence.dataclass import dataclass
from ringfence.errors import RingfenceError
from ringfence.evidence.merkle import verify_inclusion
from ringfence.evidence.note import Checkpoint, VerifierKey, log_origin, open_note
from ringfence.interfaces.cli.evidence_desk import INTACT, PRUNED, Read

if TYPE_CHECKING:
    from ringfence.journal.reader import Proof, Reader


@dataclass(frozen=True, slots=True)
class Proven:
    """What the proof of one record came to."""

    seq: int
    verdict: str
    """`verified`, `unsigned` (no checkpoint covers it yet) or `broken`."""
    why: str
    proof: Proof | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as one object, with what somebody else needs to verify it again."""
        fields: dict[str, Any] = {"seq": self.seq, "verdict": self.verdict, "why": self.why}
        if self.proof is not None:
            fields |= {
                "checkpoint": self.proof.note,
                "size": self.proof.size,
                "inclusion": [step.hex() for step in self.proof.hashes],
            }
        return fields


def prove(reader: Reader, read: Read, key: VerifierKey | None) -> Proven:
    """Hold a record against the first checkpoint that covers it, as the holder of `key` can."""
    from ringfence.journal.signer import verify

    place = read.place
    if read.state not in (INTACT, PRUNED):
        return Proven(place.seq, "broken", f"the record is {read.state}")
    try:
        proof = reader.proof(place.log, place.seq)
        if proof is None:
            return Proven(place.seq, "unsigned", "no checkpoint covers it yet")
        if key is None:
            return Proven(place.seq, "broken", "this home has no evidence key", proof)
        opened = open_note(proof.note, (key,), verify)
        checkpoint = Checkpoint.parse(opened.text)
    except (RingfenceError, ValueError, LookupError) as error:
        return Proven(place.seq, "broken", str(error))
    if checkpoint.origin != log_origin(place.log_id):
        return Proven(place.seq, "broken", "the checkpoint is of another log", proof)
    if not verify_inclusion(place.hash, place.seq, checkpoint.size, proof.hashes, checkpoint.root):
        return Proven(place.seq, "broken", f"it is not under the checkpoint of {checkpoint.size} records", proof)
    why = f"under the checkpoint of {checkpoint.size} records that {opened.signers[0].name} signed"
    return Proven(place.seq, "verified", why, proof)
