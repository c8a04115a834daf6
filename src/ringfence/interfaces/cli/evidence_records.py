"""The records of a whole journal one by one, for what sums them up or decides again from them."""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ringfence.interfaces.cli.evidence_desk import INTACT, PRUNED, Desk, read_place

if TYPE_CHECKING:
    from ringfence.content.store import ContentStore
    from ringfence.journal.reader import Reader

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
        name = digest_name(record.get("inputs_digest"))
        return None if name is None else self.content_named(name)

    def content_named(self, digest: str) -> bytes | None:
        """Return the content of a `sha256:…`, or nothing when it is not kept."""
        return None if self._contents is None else self._contents.get(digest)

    def warn(self) -> None:
        """Say what was left out."""
        if self.broken:
            sys.stderr.write(
                f"ringfence: {self.broken} records are not what was written and were left out; "
                "see 'ringfence evidence verify'\n"
            )
        if self.pruned:
            sys.stderr.write(f"ringfence: {self.pruned} records were pruned and were left out\n")


def digest_name(digest: object) -> str | None:
    """Return a recorded digest as `sha256:<hex>`, or nothing when it is none."""
    if not isinstance(digest, Mapping) or digest.get("algo") != "sha256":
        return None
    try:
        raw = base64.b64decode(str(digest.get("b64", "")), validate=True)
    except (binascii.Error, ValueError):
        return None
    return f"sha256:{raw.hex()}" if len(raw) == 32 else None
