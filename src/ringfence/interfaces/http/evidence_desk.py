"""The evidence a caller of the service may read: that of its own tenant, held against its hashes as it is shown."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ringfence.errors import InvalidRequest
from ringfence.evidence.anchors import Trust
from ringfence.interfaces.cli.evidence_desk import ALTERED, MISSING, Desk, read_place
from ringfence.interfaces.cli.evidence_list import listed, running
from ringfence.interfaces.cli.evidence_proof import prove
from ringfence.interfaces.cli.evidence_selection import STATUSES, Selection, from_cursor, page, to_cursor
from ringfence.journal import store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ringfence.database.port import Database
    from ringfence.journal.reader import Execution
    from ringfence.service.callers import Principal
    from ringfence.service.house import House

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")
_LATEST: Final = 1 << 52


class HouseDesk(Desk):
    """The desk of a running service, over the database that it has open."""

    def __init__(self, house: House) -> None:
        """Nothing is read yet."""
        super().__init__(house.home)
        self._house = house

    @cached_property
    def database(self) -> Database:
        """The database of the house."""
        return self._house.database


def selection_for(
    who: Principal,
    filters: Mapping[str, str | None],
    *,
    status: str | None = None,
    outcome: str | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> Selection | None:
    """Return what the caller asked for, of what it may see; nothing where that is none of it."""
    wanted = {name: value for name, value in filters.items() if value is not None}
    if who.reads is not None:
        if wanted.get("tenant", who.reads) != who.reads:
            return None
        wanted["tenant"] = who.reads
    outcomes = None if status is None else STATUSES[status]
    if outcome is not None:
        outcomes = (outcome,) if outcomes is None or outcome in outcomes else ()
    is_running = outcome is None and status in (None, "running")
    return Selection(wanted, outcomes, since_ms, until_ms, is_running=is_running)


def listing(house: House, selection: Selection | None, cursor: str | None, limit: int) -> dict[str, Any]:
    """Return a page of executions, newest first; what has not ended comes before the first."""
    before = None if cursor is None else _position(cursor)
    if selection is None:
        return {"execs": [], "cursor": None}
    desk = HouseDesk(house)
    with desk.reading() as reader:
        rows = [*running(desk, reader, selection)] if before is None and selection.is_running else []
        found, more = page(reader, selection, before, limit)
        rows += [listed(reader, each) for each in found]
    return {"execs": [row.to_json() for row in rows], "cursor": to_cursor(found[-1]) if more else None}


def one(house: House, who: Principal, name: str) -> dict[str, Any]:
    """Return an execution by its `exec_id` or `evidence_id`, with its records, their place and the proof of it."""
    desk = HouseDesk(house)
    key = desk.key
    with desk.reading() as reader:
        execution = reader.execution(name) if _NAME.match(name) else None
        if execution is None or not _is_of(house, who, execution):
            raise nothing()
        read = [read_place(execution.begin)]
        if execution.end is not None and execution.end != execution.begin:
            read.append(read_place(execution.end))
        proofs = [prove(reader, each, key) for each in read]
    return {
        "exec_id": execution.exec_id,
        "intact": not any(each.state in (ALTERED, MISSING) for each in read),
        "records": [
            {
                "log_id": each.place.log_id,
                "seq": each.place.seq,
                "hash": each.place.hash.hex(),
                "integrity": each.state,
                "record": each.members,
                "proof": proof.to_json(),
            }
            for each, proof in zip(read, proofs, strict=True)
        ],
    }


def verdict(house: House) -> dict[str, Any]:
    """Read all of the journal and say whether it is what was written."""
    from ringfence.journal.signer import verify

    desk = HouseDesk(house)
    _sign(house)
    key = desk.key
    if key is None:
        return {"verdict": "nothing signed", "against": None}
    try:
        with desk.reading() as reader:
            found = reader.verify(Trust(verify, (), (key,), ()))
    except (TypeError, ValueError, LookupError, AttributeError, InvalidRequest) as error:
        # a table that somebody wrote to by hand may hold anything
        fault = f"a table holds what was never written to it ({type(error).__name__})"
        return {"verdict": "tampered", "against": key.name, "faults": [fault]}
    faults = [f"{each.log_id} {each.fault.kind}: {each.fault.message}" for each in found.reports if each.fault]
    faults += [*found.misled, *(f"{name} is missing" for name in found.missing_logs)]
    return {
        "verdict": "tampered" if faults else "proven" if found.is_proven else "signer unproven",
        "against": key.name,
        "records": sum(each.records for each in found.reports),
        "faults": faults,
    }


def told_to(who: Principal, found: dict[str, Any]) -> dict[str, Any]:
    """Return of a verdict what a caller may know: the particulars only where it may see all of the journal."""
    if who.everywhere:
        return found
    return {name: value for name, value in found.items() if name in ("verdict", "against")}


def exporting(house: House, selection: Selection, kind: str, execs: list[str], who: Principal) -> Iterator[bytes]:
    """Yield what was selected in one of the export formats."""
    from ringfence.interfaces.cli.evidence_export import exported

    if kind == "log" and who.reads is not None:
        raise InvalidRequest("a log is of every tenant", reason="invalid_value", fix="use format=bundle")
    desk = HouseDesk(house)
    _sign(house)
    with desk.reading() as reader:
        for name in execs:
            execution = reader.execution(name) if _NAME.match(name) else None
            if execution is None or not _is_of(house, who, execution):
                raise nothing()
        yield from exported(desk, reader, kind, selection, execs)


def nothing() -> InvalidRequest:
    """Return the one answer for what is not there and what is another tenant's."""
    return InvalidRequest("there is no such execution", reason="not_found")


def _sign(house: House) -> None:
    """Sign what this service has written, so that it can be proven now and not in a minute."""
    journal = house.manager.engine.journal
    if journal is not None:
        journal.checkpoint()


def _is_of(house: House, who: Principal, execution: Execution) -> bool:
    if who.reads is None:
        return True
    said = read_place(execution.begin).members.get("tenant")
    if said is None:  # its text was pruned, and the index knows
        with house.database.reading() as cursor:
            row = store.exec_by_id(cursor, execution.exec_id)
        said = getattr(row, "tenant", None)
    return bool(said == who.reads)


def _position(cursor: str) -> tuple[int, str]:
    started, exec_id = from_cursor(cursor)
    if not 0 <= started < _LATEST or _NAME.match(exec_id) is None:
        raise InvalidRequest("this is no cursor", reason="invalid_range", fix="give the one of the page before")
    return started, exec_id
