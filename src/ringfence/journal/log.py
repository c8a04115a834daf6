"""One log: what a single transaction adds to it, and nothing of that before the transaction is durable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ringfence.dataclass import dataclass, field
from ringfence.errors import InvalidRequest
from ringfence.evidence.note import Checkpoint, log_origin
from ringfence.evidence.records import BEGIN, DENIED, END
from ringfence.journal import store

if TYPE_CHECKING:
    from ringfence.database.port import Cursor
    from ringfence.evidence.documents import Document
    from ringfence.evidence.records import Members
    from ringfence.evidence.sealing import Head, Sealed
    from ringfence.journal.signer import Signer


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """When a log is signed: after so many records, or so long after the first that no checkpoint covers."""

    every: int = 1024
    seconds: float = 60.0


class Written(NamedTuple):
    """A record with the place it was given."""

    members: Members
    sealed: Sealed


class Begun(NamedTuple):
    """An execution that has no end yet."""

    seq: int
    started_ms: int


@dataclass(slots=True)
class Log:
    """Where a log stands, as far as it is durable."""

    state: store.LogState
    """As it was when this process took it."""
    head: Head
    signed: int
    """How many of its records the last checkpoint covers."""
    begun: dict[str, Begun] = field(default_factory=dict)
    documents: set[str] = field(default_factory=set)
    """What is known to be kept already."""

    def became(self, draft: Draft) -> None:
        """Take over what a transaction has made durable."""
        self.head, self.signed = draft.head, draft.signed
        self.begun.update(draft.begun)
        for exec_id in draft.ended:
            self.begun.pop(exec_id, None)
        if len(self.documents) > _MOST_DOCUMENTS:
            self.documents.clear()
        self.documents.update(draft.documents)


class Draft:
    """What one transaction is about to add to a log; dropped with it when it fails."""

    def __init__(self, log: Log, cursor: Cursor, signer: Signer) -> None:
        """Nothing is added yet."""
        self._log = log
        self._cursor = cursor
        self._signer = signer
        self._rows: list[store.Row] = []
        self._opened: dict[str, Begun] = {}
        self.head, self.signed = log.head, log.signed
        self.written: list[Written] = []
        self.begun: dict[str, Begun] = {}
        self.ended: list[str] = []
        self.documents: list[str] = []

    def add(self, members: Members, documents: Sequence[Document] = ()) -> None:
        """Give a record its place.

        Raises:
            InvalidRequest: It has no canonical form, is larger than any call has need of, or ends what did not begin
                here.
        """
        sealed, head = self.head.seal(members)
        if len(sealed.text) > _MOST_CHARACTERS and members["type"] != END:
            # the room that is kept for ends must not go into one beginning; what an end says is bounded as it is made
            raise InvalidRequest(
                f"what is to be written down of this call is more than {_MOST_CHARACTERS} characters",
                reason="record_too_large",
            )
        self.head = head
        self.written.append(Written(members, sealed))
        kind, time_ms = members["type"], members["time_ms"]
        mac = self._signer.mac(sealed.hash)
        row = store.Row(sealed.seq, time_ms, kind, members.get("exec_id"), sealed.hash, sealed.text, mac)
        self._rows.append(row)
        for document in documents:
            if document.digest not in self._log.documents:
                store.keep_document(self._cursor, document.digest, document.kind, document.body)
                self.documents.append(document.digest)
        if kind not in (BEGIN, END, DENIED):
            return
        exec_id = members["exec_id"]
        if kind == BEGIN:
            self.begun[exec_id] = self._opened[exec_id] = Begun(sealed.seq, time_ms)
        elif kind == END:
            began = self.begun.get(exec_id) or self._log.begun.get(exec_id)
            if began is None:
                raise InvalidRequest(f"{exec_id} is not open in this log, so it cannot end in it")
            self.ended.append(exec_id)
            was_open = self._opened.pop(exec_id, None) is None
            self._close(began.seq, sealed.seq, began.started_ms, members, was_open=was_open)
        else:
            self._close(sealed.seq, sealed.seq, time_ms, members, was_open=False)

    def finish(self) -> None:
        """Write the records themselves, and which of them are open.

        Raises:
            InvalidRequest: An execution of that name is open already.
        """
        for exec_id, begun in self._opened.items():
            store.open_exec(self._cursor, exec_id, self._log.state.number, begun.seq)
        self._opened = {}
        if self._rows:
            store.append(self._cursor, self._log.state, self._rows)
            self._rows = []

    def sign(self, now_ms: int) -> str:
        """Sign the log as it will be after this transaction, and return the note."""
        self.finish()
        size, frontier = self.head.size, self.head.frontier
        checkpoint = Checkpoint(log_origin(self.head.log_id), size, frontier.root(), (f"time {now_ms}",))
        note = self._signer.sign_checkpoint(checkpoint)
        kept = store.Checkpoint(size, now_ms, checkpoint.root, frontier.to_text(), note)
        store.add_checkpoint(self._cursor, self._log.state, kept)
        self.signed = size
        return note

    def _close(self, begin_seq: int, end_seq: int, started_ms: int, members: Members, *, was_open: bool) -> None:
        found_by = {name: members.get(name) for name in store.ID_FIELDS}
        number, exec_id, outcome = self._log.state.number, members["exec_id"], members["outcome"]
        ended = store.Exec(exec_id, number, begin_seq, end_seq, started_ms, outcome, **found_by)
        store.close_exec(self._cursor, ended, was_open=was_open)


_MOST_DOCUMENTS = 4096
_MOST_CHARACTERS = 1 << 20
