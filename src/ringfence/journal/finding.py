"""Finds executions by what their records name, a page at a time, off one index whatever was asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ringfence.errors import InvalidRequest
from ringfence.journal import store

if TYPE_CHECKING:
    from ringfence.database.port import Cursor, Value

# what a tenant's executions have an index of their own by: those that fewest share come first
_OWN = ("task_id", "turn_id", "conversation_id", "project_id", "skill_id", "user_id", "space_id", "outcome")
_ALMOST_UNIQUE = frozenset({"envelope_id", "call_id"})
# what almost every exec has; its index leaves those out, and is used only where the question says so too
_SHARED = {"tenant": "local", "subject_id": "local", "outcome": "succeeded"}


def list_execs(
    cursor: Cursor,
    filters: Mapping[str, str],
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    before: tuple[int, str] | None = None,
    limit: int = 50,
) -> tuple[store.Exec, ...]:
    """Return a page of the execs that are over, newest first.

    Args:
        cursor: Of the caller's transaction.
        filters: What they must have: any of `store.ID_FIELDS`, and `outcome`.
        since_ms: Not those that started earlier.
        until_ms: Not those that started then or later.
        before: The `started_ms` and `exec_id` that the page before this one ended with.
        limit: How many at most.

    Raises:
        InvalidRequest: There is no such filter.
    """
    conditions, values = _conditions(filters)
    for condition, bound in (("started_ms >= ?", since_ms), ("started_ms < ?", until_ms)):
        if bound is not None:
            conditions.append(condition)
            values.append(bound)
    if before is not None:
        conditions.append("(started_ms, exec_id) < (?, ?)")
        values.extend(before)
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    # the limit is part of the statement: a server that does not know it plans anew each time
    ordered = f"ORDER BY started_ms DESC, exec_id DESC LIMIT {int(limit)}"
    found = cursor.execute(f"SELECT {store.EXEC_COLUMNS} FROM journal_exec {where} {ordered}", values).fetchall()
    return tuple(store.Exec(*row) for row in found)


def _own(filters: Mapping[str, str]) -> str | None:
    """Return by which field a tenant's own executions are found, if the question names one beside the tenant."""
    if filters.get("tenant", _SHARED["tenant"]) == _SHARED["tenant"] or not _ALMOST_UNIQUE.isdisjoint(filters):
        return None
    fields = (field for field in _OWN if field in filters and filters[field] != _SHARED.get(field))
    return next(fields, None)


def _conditions(filters: Mapping[str, str]) -> tuple[list[str], list[Value]]:
    unknown = sorted(filters.keys() - {*store.ID_FIELDS, "outcome"})
    if unknown:
        raise InvalidRequest(
            f"execs are not found by {', '.join(unknown)}; known: outcome, {', '.join(store.ID_FIELDS)}"
        )
    conditions: list[str] = []
    values: list[Value] = []
    # a tenant's own index leads where there is one, so that nobody waits for, or notices, what others call the same
    own = _own(filters)
    if own is not None:
        conditions = ["tenant = ?", "tenant <> 'local'", f"{own} = ?"]
        values = [filters["tenant"], filters[own]]
        if own in _SHARED:
            conditions.append(f"{own} <> '{_SHARED[own]}'")
    led = own is not None
    for field in (*store.ID_FIELDS[:-1], "outcome", store.ID_FIELDS[-1]):
        if field not in filters or (own is not None and field in ("tenant", own)):
            continue
        values.append(filters[field])
        # one index leads, and no engine has to guess which: what is computed matches none, and what all share has none
        if led and filters[field] != _SHARED.get(field):
            conditions.append(f"{field} || '' = ?")
            continue
        conditions.append(f"{field} = ?")
        led = led or filters[field] != _SHARED.get(field)
        if field in _SHARED and filters[field] != _SHARED[field]:
            conditions.append(f"{field} <> '{_SHARED[field]}'")
    return conditions, values
