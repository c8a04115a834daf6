"""`/sandbox/workspaces`: the files of a caller's projects, and their history; every request is one operation."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Body, Depends, Query
from fastapi import Path as InPath
from pydantic import BaseModel, ConfigDict, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from ringfence.errors import CapabilityBlocked, InvalidRequest
from ringfence.facade import SandboxManager
from ringfence.interfaces.http.door import HouseOf, allowed
from ringfence.interfaces.http.execs import as_json
from ringfence.interfaces.http.problem import documented
from ringfence.interfaces.http.routes import Router
from ringfence.operation import brokered, workspace
from ringfence.operation.brokered import Filing
from ringfence.outcome import BrokerOutcome
from ringfence.service.callers import Access, Principal
from ringfence.service.exec_form import correlation_of, project_name
from ringfence.service.house import House
from ringfence.workspaces.projects import project_names, require_project

router = Router(prefix="/sandbox/workspaces", tags=["workspaces"])

_SNAPSHOT = r"^snap_[0-9a-f]{32}$"
Agent = Annotated[Principal, Depends(allowed(Access.AGENT))]
ProjectId = Annotated[str, InPath(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}$")]
SnapshotId = Annotated[str, InPath(pattern=_SNAPSHOT)]
FilePath = Annotated[str, Query(min_length=1, max_length=4096, description="below /workspace, such as work/a.txt")]
_FOUND = documented(404, 409, 504)
_RAW = "application/octet-stream"


class ProjectView(BaseModel):
    """One project."""

    project_id: str


class ProjectPage(BaseModel):
    """Some projects of the caller's tenant, by name; `cursor` asks for those after them."""

    projects: list[ProjectView]
    cursor: str | None


class EntryView(BaseModel):
    """What is in a directory; `path` is null where no request can spell the name."""

    name: str
    path: str | None
    kind: str
    size: int
    modified_ns: int


class DirectoryPage(BaseModel):
    """A directory, or a page of it."""

    path: str
    entries: list[EntryView]
    cursor: str | None


class Done(BaseModel):
    """What an operation came to, and where its evidence is."""

    model_config = ConfigDict(extra="allow")

    exec_id: str
    evidence_id: str | None


class SnapshotView(BaseModel):
    """One snapshot: `bytes` is what restoring it writes, `added_bytes` what keeping it took."""

    model_config = ConfigDict(extra="allow")

    snapshot_id: str
    label: str
    created_at_ms: int
    entries: int
    files: int
    bytes: int
    added_bytes: int


class SnapshotList(BaseModel):
    """The snapshots of a project, oldest first."""

    snapshots: list[SnapshotView]


class ChangeView(BaseModel):
    """One path that differs; `text` says whether the patch shows it, or why not."""

    path: str
    change: str
    kind: str
    size_before: int | None = None
    size: int | None = None
    text: str | None = None


class DiffView(BaseModel):
    """What changed; `patch` is a unified diff of the texts, null where the policy keeps contents back."""

    since: str | None
    added: int
    modified: int
    deleted: int
    changes: list[ChangeView]
    complete: bool
    patch: str | None


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Labelled(_Strict):
    """What to call a snapshot."""

    label: Annotated[str, StringConstraints(max_length=200)] = ""


class Change(_Strict):
    """Whether to keep the files of now first."""

    snapshot_before: bool = False


@router.get("", response_model=None, responses={200: {"model": ProjectPage}})
async def list_projects(
    who: Agent,
    house: HouseOf,
    cursor: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """List the projects of the caller's tenant."""
    names = await asyncio.to_thread(project_names, house.files_home, who.tenant)
    after = [name for name in names if cursor is None or name > cursor]
    more = after[limit - 1] if len(after) > limit else None
    return as_json({"projects": [{"project_id": name} for name in after[:limit]], "cursor": more})


@router.get(
    "/{project_id}/files",
    response_model=None,
    responses={
        200: {
            "model": DirectoryPage,
            "description": "A directory's entries, or a file's bytes",
            "content": {_RAW: {"schema": {"type": "string", "format": "binary"}}},
        },
        **_FOUND,
    },
)
async def read_files(
    request: Request,
    who: Agent,
    house: HouseOf,
    project_id: ProjectId,
    path: FilePath = "work",
    offset: Annotated[int | None, Query(ge=0, lt=2**53)] = None,
    length: Annotated[int | None, Query(ge=0, lt=2**53)] = None,
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
    limit: Annotated[int | None, Query(ge=1, le=1000)] = None,
) -> Response:
    """List a directory, or read a file or `length` bytes of it from `offset`.

    Of a file that is larger than one operation reads, the first bytes come: `X-File-Size` is all of it, and
    `X-File-Truncated` says whether it goes on.
    """
    manager = await manager_of(request, who, house, project_id)
    found = await manager.perform(brokered.FsStat(path))
    if found.out["kind"] == "directory":
        return as_json((await manager.perform(brokered.FsList(path, cursor, limit))).out)
    read = await manager.perform(brokered.FsRead(path, offset, length))
    if read.content is None:
        raise CapabilityBlocked("the policy does not hand out contents", reason="blocked")
    headers = {
        "Content-Disposition": "attachment",  # never a page of this service
        "X-File-Size": str(read.out["size"]),
        "X-File-Truncated": str(read.out["truncated"]).lower(),
        "X-Exec-Id": read.exec_id,
    }
    return Response(read.content, 200, headers, _RAW)


@router.put(
    "/{project_id}/files",
    response_model=None,
    responses={200: {"model": Done}, **_FOUND},
    openapi_extra={
        "requestBody": {"content": {_RAW: {"schema": {"type": "string", "format": "binary"}}}, "required": False}
    },
)
async def write_file(
    request: Request,
    who: Agent,
    house: HouseOf,
    project_id: ProjectId,
    path: FilePath,
    overwrite: Annotated[bool, Query()] = True,
    directory: Annotated[bool, Query(description="make a directory; the body must be empty")] = False,
) -> Response:
    """Write a file, the body being all of it, whatever its type says; missing directories are made.

    A project that is not there yet is made. What is more than one operation may write is 413.
    """
    manager = await manager_of(request, who, house, project_id, make=True)
    content = await request.body()
    if directory and content:
        raise InvalidRequest("a directory has no content", reason="invalid_content")
    made: Filing = brokered.FsMkdir(path) if directory else brokered.FsWrite(path, content, overwrite)
    return done(await manager.perform(made))


@router.delete("/{project_id}/files", response_model=None, responses={200: {"model": Done}, **_FOUND})
async def delete_file(request: Request, who: Agent, house: HouseOf, project_id: ProjectId, path: FilePath) -> Response:
    """Delete a file, a link or an empty directory."""
    manager = await manager_of(request, who, house, project_id)
    return done(await manager.perform(brokered.FsDelete(path)))


@router.get("/{project_id}/diff", response_model=None, responses={200: {"model": DiffView}, **_FOUND})
async def diff(
    request: Request,
    who: Agent,
    house: HouseOf,
    project_id: ProjectId,
    since: Annotated[str | None, Query(pattern=_SNAPSHOT, description="a snapshot; without one, nothing")] = None,
) -> Response:
    """Say what was added, modified and deleted in the work directory since a snapshot, or since there was nothing."""
    manager = await manager_of(request, who, house, project_id)
    found = await manager.perform(workspace.WsDiff(since))
    patch = None if found.content is None else found.content.decode()
    return as_json({**found.out, "patch": patch})


@router.get("/{project_id}/snapshots", response_model=None, responses={200: {"model": SnapshotList}, **_FOUND})
async def list_snapshots(request: Request, who: Agent, house: HouseOf, project_id: ProjectId) -> Response:
    """List the snapshots with their sizes."""
    manager = await manager_of(request, who, house, project_id)
    return as_json((await manager.perform(workspace.WsSnapshots())).out)


@router.post(
    "/{project_id}/snapshots", response_model=None, responses={201: {"model": SnapshotView}, **_FOUND}, status_code=201
)
async def take_snapshot(
    request: Request,
    who: Agent,
    house: HouseOf,
    project_id: ProjectId,
    body: Annotated[Labelled | None, Body()] = None,
) -> Response:
    """Keep the work directory as it is now."""
    manager = await manager_of(request, who, house, project_id)
    return done(await manager.perform(workspace.WsSnapshot((body or Labelled()).label)), 201)


@router.delete("/{project_id}/snapshots/{snapshot_id}", response_model=None, responses={200: {"model": Done}, **_FOUND})
async def delete_snapshot(
    request: Request, who: Agent, house: HouseOf, project_id: ProjectId, snapshot_id: SnapshotId
) -> Response:
    """Forget a snapshot, and give back the room that no other needs."""
    manager = await manager_of(request, who, house, project_id)
    return done(await manager.perform(workspace.WsSnapshotDelete(snapshot_id)))


@router.post(
    "/{project_id}/snapshots/{snapshot_id}/restore", response_model=None, responses={200: {"model": Done}, **_FOUND}
)
async def restore(
    request: Request,
    who: Agent,
    house: HouseOf,
    project_id: ProjectId,
    snapshot_id: SnapshotId,
    body: Annotated[Change | None, Body()] = None,
) -> Response:
    """Put the work directory back as it was, in one step."""
    manager = await manager_of(request, who, house, project_id)
    asked = workspace.WsRestore(snapshot_id, (body or Change()).snapshot_before)
    return done(await manager.perform(asked))


@router.post("/{project_id}/reset", response_model=None, responses={200: {"model": Done}, **_FOUND})
async def reset(
    request: Request,
    who: Agent,
    house: HouseOf,
    project_id: ProjectId,
    body: Annotated[Change | None, Body()] = None,
) -> Response:
    """Start over with an empty work directory, in one step."""
    manager = await manager_of(request, who, house, project_id)
    return done(await manager.perform(workspace.WsReset((body or Change()).snapshot_before)))


async def manager_of(
    request: Request, who: Principal, house: House, project_id: str, *, make: bool = False
) -> SandboxManager:
    """Return a manager for one of the caller's projects; nothing is made by asking for it."""
    name = project_name(project_id)
    if not make:
        await asyncio.to_thread(require_project, house.files_home, name, who.tenant)
    asked = {"project_id": name}
    return house.manager_for(who, name, correlation_of(asked, request_id=getattr(request.state, "request_id", None)))


def done(outcome: BrokerOutcome, status: int = 200) -> Response:
    """Return what an operation came to, as an answer."""
    told: dict[str, Any] = {**outcome.out, "exec_id": outcome.exec_id, "evidence_id": outcome.evidence_id}
    return as_json(told, status)
