"""What must be true of the runs in a log whatever its links say: authorised once, ended once, never after a denial."""

from __future__ import annotations

from typing import Any, Final

from ringfence.evidence.faults import FaultFound, Kind

# How many runs that are over are remembered, so that a log of any length is read in the same memory.
REMEMBERED: Final = 1 << 16


class Lifecycles:
    """The runs that are open at this place of a log, and those that were settled lately.

    A begin that was dropped or pruned cannot be seen: for each record that cannot be read, one end without its begin is
    let pass.
    """

    def __init__(self, unseen: int) -> None:
        """Begin after `unseen` records that were dropped."""
        self.unseen = unseen
        self._open: set[str] = set()
        self._settled: dict[str, str] = {}
        self._without_begin = 0

    @property
    def open_count(self) -> int:
        """How many runs have begun and not ended."""
        return len(self._open)

    def see(self, seq: int, members: dict[str, Any]) -> None:
        """Take the next record.

        Raises:
            FaultFound: It cannot be true beside those before it.
        """
        kind = members.get("type")
        if kind not in _TYPES:
            return
        exec_id = members.get("exec_id")
        if not isinstance(exec_id, str):
            raise _contradiction(seq, f"a record {kind} that names no run")
        if kind == "exec.begin":
            self._begin(seq, exec_id)
        elif kind == "exec.end":
            self._end(seq, exec_id, members.get("status"))
        else:
            self._deny(seq, exec_id)

    def _begin(self, seq: int, exec_id: str) -> None:
        how = "begun" if exec_id in self._open else self._settled.get(exec_id)
        if how:
            raise _contradiction(seq, f"run {exec_id} begins after it had {_PAST[how]}")
        self._open.add(exec_id)

    def _end(self, seq: int, exec_id: str, status: object) -> None:
        how = self._settled.get(exec_id)
        if how == "denied" and status == "ok":
            raise _contradiction(seq, f"run {exec_id} was denied, and ends as carried out")
        if exec_id in self._open:
            self._open.remove(exec_id)
        elif how:
            raise _contradiction(seq, f"run {exec_id} ends after it had {_PAST[how]}")
        elif self._without_begin < self.unseen:
            self._without_begin += 1
        else:
            raise _contradiction(seq, f"run {exec_id} ends and was never begun")
        self._settle(exec_id, "ended")

    def _deny(self, seq: int, exec_id: str) -> None:
        how = self._settled.get(exec_id)
        if how:
            raise _contradiction(seq, f"run {exec_id} is denied after it had {_PAST[how]}")
        self._settle(exec_id, "denied")

    def _settle(self, exec_id: str, how: str) -> None:
        self._settled[exec_id] = how
        if len(self._settled) > REMEMBERED:
            del self._settled[next(iter(self._settled))]


_TYPES: Final = frozenset({"exec.begin", "exec.end", "decision.denied"})
_PAST: Final = {"begun": "already begun", "ended": "already ended", "denied": "been denied"}


def _contradiction(seq: int, message: str) -> FaultFound:
    return FaultFound(Kind.CONTRADICTION, seq, f"record {seq}: {message}")
