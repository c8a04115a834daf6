"""What can be wrong with a log of evidence, and where."""

from __future__ import annotations

import enum

from ringfence.dataclass import dataclass


class Kind(enum.StrEnum):
    """The ways in which a log is not what was written."""

    ALTERED = "altered"
    REMOVED = "removed"
    INSERTED = "inserted"
    REORDERED = "reordered"
    TRUNCATED = "truncated"
    BAD_CHECKPOINT = "bad_checkpoint"
    BAD_SIGNATURE = "bad_signature"
    WRONG_LOG = "wrong_log"
    CONTRADICTION = "contradiction"
    """The records are linked and signed, and cannot all be true: an end without a begin, a run after its denial."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The first thing that is wrong with a log; with `last_seq`, it lies somewhere from `seq` to there."""

    kind: Kind
    log_id: str
    seq: int
    message: str
    last_seq: int | None = None


class FaultFound(Exception):
    """Ends the reading of a log at its first fault."""

    def __init__(self, kind: Kind, seq: int, message: str, last_seq: int | None = None) -> None:
        """Say what, where and in plain words."""
        super().__init__(message)
        self.kind, self.seq, self.message, self.last_seq = kind, seq, message, last_seq

    def in_log(self, log_id: str) -> Fault:
        """Return the fault with the log it was found in."""
        return Fault(self.kind, log_id, self.seq, self.message, self.last_seq)
