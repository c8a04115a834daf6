"""Verifying a whole log in one pass and flat memory, down to the first record that is not as it was written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from ringfence.dataclass import dataclass
from ringfence.evidence.anchors import Anchors, Trust
from ringfence.evidence.chain import Chain, Row, Start
from ringfence.evidence.faults import Fault, FaultFound, Kind
from ringfence.evidence.lifecycle import Lifecycles

__all__ = ["Fault", "Kind", "Report", "Row", "Start", "Trust", "verify_log"]

PROGRESS_EVERY: Final = 10_000


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in one log.

    Attributes:
        log_id: Whose log it is.
        first_seq: How many records were dropped from the front.
        records: How many records were read.
        pruned: How many of those only have their hash left.
        size: Where the log ends, dropped records included; with a fault, where reading ended.
        open_execs: How many runs have begun and not ended.
        checkpoints: How many checkpoints were read.
        signed_size: The size at the last checkpoint; records after it are linked and not yet signed.
        proven_size: Up to which size somebody outside the log vouches for it.
        uncompared: How many checkpoints are of sizes among the dropped records, so that no root could be compared.
        signer: `proven` when a key or checkpoint from outside the log vouches for its last checkpoint.
        fault: The first thing that is wrong, if anything is.
    """

    log_id: str
    first_seq: int
    records: int
    pruned: int
    size: int
    open_execs: int
    checkpoints: int
    signed_size: int
    proven_size: int
    uncompared: int
    signer: Literal["proven", "unproven"]
    fault: Fault | None

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong; who wrote it is another question."""
        return self.fault is None

    @property
    def is_proven(self) -> bool:
        """Whether nothing is wrong and the signer is proven: the only good answer to who asks for proof."""
        return self.fault is None and self.signer == "proven"


def verify_log(
    start: Start,
    rows: Iterable[Row],
    checkpoints: Iterable[str],
    trust: Trust,
    progress: Callable[[int], None] | None = None,
    see: Callable[[int, dict[str, Any] | None], None] | None = None,
) -> Report:
    """Read a log once and report what it holds and the first fault, if there is one.

    Args:
        start: Where what is kept of the log begins.
        rows: Its records in the order they are kept in.
        checkpoints: Its signed notes by ascending size.
        trust: The keys it is verified with, and what is known of it from outside.
        progress: Told how many records were read, every 10,000.
        see: Shown every record that is as it was written, nothing in place of one whose text was pruned.

    Raises:
        InvalidRequest: A checkpoint given from outside is none.
    """
    anchors = Anchors(start.log_id, trust, start.first_seq, iter(checkpoints))
    lives = Lifecycles(start.first_seq)
    remaining = iter(rows)
    records = pruned = 0
    fault: Fault | None = None
    try:
        chain = Chain(start, remaining)
        anchors.start(chain)
        for row in remaining:
            members = chain.accept(row)
            records += 1
            if see:
                see(row.seq, members)
            if members is None:
                pruned += 1
                lives.unseen += 1
            else:
                lives.see(row.seq, members)
            anchors.reach(chain)
            if progress and records % PROGRESS_EVERY == 0:
                progress(records)
        anchors.finish(chain)
    except FaultFound as found:
        fault = found.in_log(start.log_id)
    return Report(
        log_id=start.log_id,
        first_seq=start.first_seq,
        records=records,
        pruned=pruned,
        size=start.first_seq + records,
        open_execs=lives.open_count,
        checkpoints=anchors.count,
        signed_size=anchors.last_size,
        proven_size=anchors.proven_size,
        uncompared=anchors.uncompared,
        signer="proven" if anchors.is_proven else "unproven",
        fault=fault,
    )
