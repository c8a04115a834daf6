"""`/evidence`: what ran in the caller's tenant, on whose word and with what effect, and the proof of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from ringfence.errors import InvalidRequest
from ringfence.interfaces.http import evidence_desk
from ringfence.interfaces.http.door import HouseOf, allowed
from ringfence.interfaces.http.problem import documented
from ringfence.interfaces.http.routes import Router
from ringfence.service.callers import Access, Principal

router = Router(prefix="/evidence", tags=["evidence"])
_EXPORT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "The export"}
}
Auditor = Annotated[Principal, Depends(allowed(Access.AUDITOR))]
Name = Annotated[str | None, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Moment = Annotated[int | None, Field(ge=0, lt=1 << 52, description="milliseconds since 1970")]


class Asked(BaseModel):
    """Which executions are meant; what is not said is not asked."""

    model_config = ConfigDict(extra="forbid")

    status: Literal["ok", "error", "denied", "running"] | None = None
    outcome: Literal["succeeded", "failed", "timed_out", "killed", "cancelled", "denied", "error"] | None = None
    tool_name: Name = None
    task_id: Name = None
    project_id: Name = None
    session_id: Name = None
    user_id: Name = None
    space_id: Name = None
    conversation_id: Name = None
    turn_id: Name = None
    skill_id: Name = None
    tenant: Name = None
    subject_id: Name = None
    call_id: Name = None
    since_ms: Moment = None
    until_ms: Moment = None


class AskedPage(Asked):
    """The same, a page at a time."""

    limit: int = Field(50, ge=1, le=500)
    cursor: str | None = Field(None, min_length=1, max_length=512, pattern=r"^[A-Za-z0-9_-]+$")


class AskedExport(Asked):
    """The same, or some by name, in a format."""

    format: Literal["bundle", "in-toto", "log", "audit-json", "cloudevents", "ocsf", "otlp"] = "bundle"
    exec_id: list[str] = Field(default_factory=list, max_length=500)


class EvidencePage(BaseModel):
    """Executions, newest first; `cursor` is where the next page begins, or null."""

    execs: list[dict[str, Any]]
    cursor: str | None


class Evidence(BaseModel):
    """One execution as its records tell it."""

    exec_id: str
    intact: bool
    records: list[dict[str, Any]]


class Verdict(BaseModel):
    """Whether all of the journal is what was written."""

    verdict: str = Field(description="proven, signer unproven, tampered, or nothing signed")
    against: str | None
    records: int | None = None
    faults: list[str] | None = None


@router.get("", response_model=EvidencePage, responses=documented(422))
async def list_evidence(who: Auditor, house: HouseOf, asked: Annotated[AskedPage, Query()]) -> dict[str, Any]:
    """List executions, each held against the hash of its records as it is shown."""
    return await house.readers.read(
        who.tenant, evidence_desk.listing, house, _selection(who, asked), asked.cursor, asked.limit
    )


@router.get("/verify", response_model=Verdict, response_model_exclude_unset=True)
async def verify_evidence(who: Auditor, house: HouseOf) -> dict[str, Any]:
    """Read every record of the journal and say whether it is what was written."""
    found = await house.readers.read_everything(evidence_desk.verdict, house)
    return evidence_desk.told_to(who, found)


@router.get(
    "/export",
    response_class=StreamingResponse,
    responses={**_EXPORT, **documented(404, 422)},
)
async def export_evidence(who: Auditor, house: HouseOf, asked: Annotated[AskedExport, Query()]) -> StreamingResponse:
    """Hand out evidence in a format that other programs read, or that proves itself."""
    selection = _selection(who, asked)
    if asked.exec_id and asked.model_fields_set - {"exec_id", "format"}:
        raise InvalidRequest("exec_id and a selection exclude each other", fix="give one of them")
    if asked.format == "log" and asked.model_fields_set - {"format"}:
        raise InvalidRequest("a log is exported whole, or it could not be verified", fix="use format=bundle")
    if selection is None:
        raise evidence_desk.nothing()
    chunks = evidence_desk.exporting(house, selection, asked.format, asked.exec_id, who)
    # the first before the answer begins: most of what can go wrong does so there
    first = await house.readers.read(who.tenant, _first, chunks)
    return StreamingResponse(
        chain(first, chunks),
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="evidence.{asked.format}"'},
    )


@router.get("/{evidence_id}", response_model=Evidence, responses=documented(404))
async def get_evidence(who: Auditor, house: HouseOf, evidence_id: str) -> dict[str, Any]:
    """Show one execution, by its exec_id or evidence_id, with the proof that its records are in the log."""
    return await house.readers.read(who.tenant, evidence_desk.one, house, who, evidence_id)


def _selection(who: Principal, asked: Asked) -> Any:
    fields = asked.model_dump(
        exclude={"status", "outcome", "since_ms", "until_ms", "limit", "cursor", "format", "exec_id"}
    )
    return evidence_desk.selection_for(
        who,
        fields,
        status=asked.status,
        outcome=asked.outcome,
        since_ms=asked.since_ms,
        until_ms=asked.until_ms,
    )


def _first(chunks: Iterator[bytes]) -> list[bytes]:
    return [chunk for chunk in (next(chunks, None),) if chunk is not None]
