"""A recorder as JSON, kept beside the database, so that `ringfence metrics` reads only what the journal gained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ringfence.errors import InvalidRequest
from ringfence.metrics.recorder import MOST_OPEN, Record, Recorder
from ringfence.metrics.series import MOST_SERIES, Series

VERSION: Final = 1


def snapshot(recorder: Recorder) -> dict[str, Any]:
    """Return all that was counted from records, with the position in each log up to which it was.

    It is a cache and proves nothing: whoever may write it may also write the journal's file, and metrics are no
    evidence. But it outlives pruning: what was counted before its records went stays counted.
    """
    held = recorder.held()
    tables = held.pop("tables")
    return {
        "v": VERSION,
        **held,
        "buckets": {t.family.name: list(t.family.buckets) for t in recorder.tables() if t.family.buckets},
        "tables": {name: [[list(key), cell] for key, cell in cells.items()] for name, cells in tables.items()},
    }


def restore(data: Any) -> Recorder:
    """Return the recorder of a snapshot, which counts on from its position.

    Raises:
        InvalidRequest: It is not a snapshot of this version and these families; count the journal from its start.
    """
    recorder = Recorder()
    _expect(isinstance(data, dict) and data.get("v") == VERSION, "its version is another")
    tables = {table.family.name: table for table in recorder.tables()}
    stored = data.get("tables")
    _expect(isinstance(stored, dict) and stored.keys() == tables.keys(), "its families are others")
    buckets = {name: list(table.family.buckets) for name, table in tables.items() if table.family.buckets}
    _expect(data.get("buckets") == buckets, "its histograms have other bounds")
    for name, table in tables.items():
        _fill(table, stored[name])
        _admit(table, _mapping(data.get("values"), _is_list).get(name))
    recorder.position = _mapping(data.get("position"), _is_count)
    recorder.approvals = _mapping(data.get("approvals"), _is_count)
    recorder.open = {key: tuple(labels) for key, labels in _mapping(data.get("open"), _is_begin).items()}
    _expect(len(recorder.open) <= MOST_OPEN and len(recorder.approvals) <= MOST_OPEN, "it holds too many open ends")
    _expect(_is_count(data.get("checkpoint_ms")), "its checkpoint has no time")
    recorder.checkpoint_ms = data["checkpoint_ms"]
    return recorder


def continued(saved: Any, read: Callable[[Mapping[str, int]], Iterable[Record]]) -> Recorder:
    """Return the recorder of what was saved, if it can be used, and of all that the journal holds beyond it.

    `read` gives the records after a position: each log in order, and a log that is not in it from its start.
    """
    try:
        recorder = restore(saved) if saved is not None else Recorder()
    except InvalidRequest:
        recorder = Recorder()
    recorder.catch_up(read(dict(recorder.position)))
    return recorder


def _fill(table: Series, rows: Any) -> None:
    _expect(isinstance(rows, list) and len(rows) <= 2 * MOST_SERIES + 1, "a family has too many label sets")
    width = len(table.family.buckets) + 2 if table.family.buckets else 0
    for row in rows:
        _expect(isinstance(row, list) and len(row) == 2, "a label set has no number")
        key, cell = row
        _expect(
            isinstance(key, list)
            and len(key) == len(table.family.labels)
            and all(isinstance(value, str) for value in key),
            "a label set has other labels",
        )
        if width:
            whole = isinstance(cell, list) and len(cell) == width and all(map(_is_count, cell))
        else:
            whole = _is_count(cell)
        _expect(whole, "a number is none")
        table.cells[tuple(key)] = cell


def _admit(table: Series, columns: Any) -> None:
    whole = isinstance(columns, list) and len(columns) == len(table.values) and all(map(_is_names, columns))
    _expect(whole, "a label has values that are none")
    for known, column in zip(table.values, columns, strict=True):
        known.update(column)


def _mapping(found: Any, is_value: Callable[[Any], bool]) -> dict[str, Any]:
    _expect(isinstance(found, dict) and all(map(is_value, found.values())), "a position or an open end is none")
    return dict(found)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_begin(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 6 and all(isinstance(part, str) for part in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MOST_SERIES and all(isinstance(part, str) for part in value)


def _expect(holds: bool, fault: str) -> None:
    if not holds:
        raise InvalidRequest(f"the saved metrics cannot be used: {fault}", reason="invalid_value")
