"""Holding a log against its signed checkpoints, and those against a key or a checkpoint that came from outside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ringfence.dataclass import dataclass, field
from ringfence.errors import InvalidRequest
from ringfence.evidence.chain import Chain
from ringfence.evidence.faults import FaultFound, Kind
from ringfence.evidence.note import Checkpoint, VerifierKey, Verify, log_origin, open_note, read_note


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom and what a log is verified against.

    Attributes:
        verify: Tells whether an Ed25519 signature holds.
        known: Keys that came with the log; they show that it is whole, and prove nothing about who wrote it.
        keys: Keys that came from outside the log.
        checkpoints: Signed notes that came from outside the log; those of other logs are passed over.
    """

    verify: Verify
    known: tuple[VerifierKey, ...] = ()
    keys: tuple[VerifierKey, ...] = ()
    checkpoints: tuple[str, ...] = ()


@dataclass(slots=True)
class Anchors:
    """The checkpoints of one log in ascending order, and what they have shown so far."""

    log_id: str
    trust: Trust
    first_seq: int
    notes: Iterator[str]
    count: int = 0
    last_size: int = 0
    proven_size: int = 0
    uncompared: int = 0
    _next: tuple[int, str] | None = None
    _outside: list[tuple[Checkpoint, str]] = field(default_factory=list)
    _proven_keys: set[VerifierKey] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Read what came from outside.

        Raises:
            InvalidRequest: A checkpoint from outside is none.
        """
        self._proven_keys.update(self.trust.keys)
        self._outside = sorted(_from_outside(self.trust, self.log_id), key=lambda pair: pair[0].size, reverse=True)
        while self._outside and self._outside[-1][0].size < self.first_seq:
            # the tree at that size is gone with the records below
            self.uncompared += 1
            self._outside.pop()

    @property
    def is_proven(self) -> bool:
        """Whether somebody outside vouches for the signer of the last checkpoint, and so for all before it."""
        return self.proven_size > 0 and self.proven_size >= self.last_size

    def start(self, chain: Chain) -> None:
        """Look at the first checkpoints, which may stand before the first record.

        Raises:
            FaultFound: See `reach`.
        """
        self._advance()
        while self._next and self._next[0] < chain.size:
            # one of the records that were dropped: its signature can be checked, its root no more
            self._opened(*self._next)
            self.count, self.uncompared = self.count + 1, self.uncompared + 1
            self._advance()
        self.reach(chain)

    def reach(self, chain: Chain) -> None:
        """Compare what was signed at the size the chain has now.

        Raises:
            FaultFound: A checkpoint is malformed, not signed by a key that is known, or is not of these records.
        """
        size = chain.size
        while self._outside and self._outside[-1][0].size == size:
            checkpoint, note = self._outside.pop()
            self._compare(checkpoint, chain, "checkpoint from outside")
            self.proven_size = size
            self._proven_keys.update(_signers(note, self.trust.known, self.trust.verify))
        while self._next and self._next[0] == size:
            checkpoint, signers = self._opened(*self._next)
            self._compare(checkpoint, chain, "checkpoint")
            self.count, self.last_size = self.count + 1, size
            if self._proven_keys.intersection(signers):
                self.proven_size = size
            self._advance()

    def finish(self, chain: Chain) -> None:
        """Require that nothing was signed beyond the end of the log.

        Raises:
            FaultFound: Records are missing from the end, or a checkpoint there is none.
        """
        beyond = [checkpoint.size for checkpoint, _ in self._outside]
        if self._next:
            self._opened(*self._next)
            beyond.append(self._next[0])
        if beyond:
            raise FaultFound(
                Kind.TRUNCATED,
                chain.size,
                f"the log was truncated: it ends before record {chain.size}, and {min(beyond)} records were signed",
                max(beyond) - 1,
            )

    def _advance(self) -> None:
        note = next(self.notes, None)
        before = self._next[0] if self._next else -1
        if note is None:
            self._next = None
            return
        try:
            size = Checkpoint.parse(read_note(note)[0]).size
        except InvalidRequest as error:
            raise FaultFound(
                Kind.BAD_CHECKPOINT, max(before, 0), f"the checkpoint after size {max(before, 0)} is none: {error}"
            ) from error
        if size <= before:
            raise FaultFound(Kind.BAD_CHECKPOINT, size, f"a checkpoint at size {size} stands after the one at {before}")
        self._next = (size, note)

    def _opened(self, size: int, note: str) -> tuple[Checkpoint, tuple[VerifierKey, ...]]:
        try:
            opened = open_note(note, (*self.trust.known, *self.trust.keys), self.trust.verify)
        except InvalidRequest as error:
            raise FaultFound(
                Kind.BAD_SIGNATURE, size, f"the checkpoint at size {size} is not what a known key signed: {error}"
            ) from error
        checkpoint = Checkpoint.parse(opened.text)
        if checkpoint.origin != log_origin(self.log_id):
            raise FaultFound(Kind.WRONG_LOG, size, f"the checkpoint at size {size} was signed for another log")
        return checkpoint, opened.signers

    def _compare(self, checkpoint: Checkpoint, chain: Chain, name: str) -> None:
        size = chain.size
        if checkpoint.root == chain.frontier.root():
            chain.anchored = size
            return
        first, last = chain.anchored, size - 1
        if first > last:
            raise FaultFound(
                Kind.ALTERED, size, f"the log's note of the records before {size} is not what the {name} there says"
            )
        if chain.is_last_disowned():
            raise FaultFound(
                Kind.ALTERED, last, f"record {last} was altered, and its hash with it: the {name} after it does not fit"
            )
        if first > self.first_seq:
            since = f", after the checkpoint at size {first}, which fits"
        else:
            since = ", or the log's note of the records before them was" if first else ""
        raise FaultFound(
            Kind.ALTERED,
            first,
            f"records {first} to {last} are not those of the {name} at size {size}: some were altered, removed or "
            f"inserted and the rest linked anew{since}",
            last,
        )


def _from_outside(trust: Trust, log_id: str) -> Iterator[tuple[Checkpoint, str]]:
    for note in trust.checkpoints:
        checkpoint = Checkpoint.parse(read_note(note)[0])
        if checkpoint.origin == log_origin(log_id):
            yield checkpoint, note


def _signers(note: str, keys: Iterable[VerifierKey], verify: Verify) -> tuple[VerifierKey, ...]:
    try:
        return open_note(note, keys, verify).signers
    except InvalidRequest:  # of a key we do not have: the checkpoint is trusted for where it came from
        return ()
