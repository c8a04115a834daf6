"""Tells those who watch what the journal of this process has made durable; nothing waits for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfence.evidence.projections.cloudevents import cloud_event
from ringfence.evidence.projections.otel import otlp_json, span_of
from ringfence.journal.reader import reading
from ringfence.observe.home import read_positions, write_positions
from ringfence.observe.opening import open_observers

if TYPE_CHECKING:
    from ringfence.database.port import Database
    from ringfence.journal.log import Written
    from ringfence.observe.settings import ObserveSettings

Record = Mapping[str, Any]


class Audience:
    """The observers of one process, each of which goes on where an earlier process of the same log left off."""

    def __init__(self, home: Path, database: Database, settings: ObserveSettings, version: str) -> None:
        """Nobody is told anything before the first record; `version` is ours, which spans carry."""
        self._version = version
        self._home = home
        self._database = database
        self._logs: set[str] = set()
        self._observers = open_observers(
            settings, event=cloud_event, span=self._span, positions=read_positions(home), reread=self._reread
        )

    def written(self, written: Sequence[Written]) -> None:
        """Tell of records that are durable now."""
        for each in written:
            record = json.loads(each.sealed.text)
            if record["log_id"] not in self._logs:
                self._logs.add(record["log_id"])
                self._observers.resume()
            self._observers.offer(record, each.sealed.hash, len(each.sealed.text))

    def checkpointed(self, note: str) -> None:
        """Copy a signed note to its second places."""
        self._observers.offer_checkpoint(note)

    def close(self) -> None:
        """Tell what is still queued, for a moment, and remember how far each has come."""
        self._observers.close()
        write_positions(self._home, self._observers.positions())

    def _span(self, begin: Record | None, end: Record | None) -> Mapping[str, Any] | None:
        if begin is None and end is not None:
            begin = self._begin_of(end)
        return None if begin is None else otlp_json([span_of(begin, end)], version=self._version)

    def _begin_of(self, end: Record) -> Record | None:
        with reading(self._database) as reader:
            found = reader.execution(end["exec_id"])
        return None if found is None or found.begin.text is None else json.loads(found.begin.text)

    def _reread(self, position: Mapping[str, int], limit: int) -> list[tuple[Record, bytes]]:
        """Return records of this process's logs that come after `position`."""
        found: list[tuple[Record, bytes]] = []
        with reading(self._database) as reader:
            for log in reader.logs():
                if log.log_id not in self._logs:
                    continue  # another process tells of those
                for place in reader.records(log.number, position.get(log.log_id, -1) + 1):
                    if place.text is not None:
                        found.append((json.loads(place.text), place.hash))
                    if len(found) >= limit:
                        return found
        return found
