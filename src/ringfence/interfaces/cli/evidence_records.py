"""The records of a whole journal one by one, for what sums them up or decides again from them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ringfence.evidence.described import CannotTell, content_of
from ringfence.evidence.recorded import from_bytes, operation_from_bytes
from ringfence.interfaces.cli.evidence_desk import INTACT, PRUNED, Desk, read_place

if TYPE_CHECKING:
    from ringfence.content.store import ContentStore
    from ringfence.journal.reader import Reader
    from ringfence.operation.form import Operation
    from ringfence.outcome import Outcome

Record = Mapping[str, Any]


class JournalRecords:
    """Implements `policy_replay.EvidenceReader`; what was tampered with is left out, and counted."""

    def __init__(self, desk: Desk, reader: Reader) -> None:
        """Read what `reader` sees."""
        self._reader = reader
        self._contents: ContentStore | None = desk.contents if (desk.home / "content").is_dir() else None
        self.pruned = self.broken = 0

    def records(self, since_ms: int | None = None, until_ms: int | None = None) -> Iterator[Record]:
        """Yield the records of a period, log by log in their order."""
        for log in self._reader.logs():
            for place in self._reader.records(log.number, log.first_seq):
                read = read_place(place)
                if read.state != INTACT:
                    self.pruned += read.state == PRUNED
                    self.broken += read.state != PRUNED
                    continue
                at = read.members["time_ms"]
                if (since_ms is None or at >= since_ms) and (until_ms is None or at < until_ms):
                    yield read.members

    def document(self, digest: str) -> str | None:
        """Return the text of a document, or nothing when it is not kept."""
        return self._reader.document(digest)

    def content(self, record: Record) -> bytes | None:
        """Return what the record's `inputs_digest` is of, or nothing when contents are not kept."""
        if self._contents is None:
            return None
        execution = self._reader.execution(str(record.get("exec_id", "")))
        end = None if execution is None or execution.end is None else read_place(execution.end)
        operation = None if end is None or end.state != INTACT else self.operation(end.members)
        if operation is None or isinstance(operation, CannotTell):
            return None
        return content_of(operation)

    def operation(self, end: Record) -> Operation | CannotTell | None:
        """Return the whole operation that an end is of, or nothing when its content was not kept."""
        content = self._kept(end, "operation")
        return None if content is None else operation_from_bytes(content)

    def result(self, end: Record) -> Outcome | CannotTell | None:
        """Return what came of it, or nothing when that was not kept."""
        content = self._kept(end, "result")
        return None if content is None else from_bytes(content)

    def _kept(self, end: Record, name: str) -> bytes | None:
        kept = end.get("content")
        if self._contents is None or not isinstance(kept, Mapping) or name not in kept:
            return None
        return self._contents.get(str(kept[name]))

    def warn(self) -> None:
        """Say what was left out."""
        if self.broken:
            sys.stderr.write(
                f"ringfence: {self.broken} records are not what was written and were left out; "
                "see 'ringfence evidence verify'\n"
            )
        if self.pruned:
            sys.stderr.write(f"ringfence: {self.pruned} records were pruned and were left out\n")
