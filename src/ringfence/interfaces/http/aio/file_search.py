"""`/v1/file/{list,find,glob,grep,search}`: what lies in a project; patterns are tried in a box, never here."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Body
from pydantic import Field, StringConstraints
from starlette.responses import Response

from ringfence.errors import InvalidRequest
from ringfence.interfaces.http.aio.envelope import Envelope, View, expected, told
from ringfence.interfaces.http.aio.fields import Asked, FilePath, Number, Pattern, refuse_sudo
from ringfence.interfaces.http.aio.seat import AtSeat, Seat
from ringfence.interfaces.http.routes import Router
from ringfence.operation import brokered
from ringfence.service.aio.looking import MOST_FOUND, look
from ringfence.service.aio.paths import guest_path

router = Router()
Patterns = Annotated[list[Pattern], Field(max_length=100)]
Most = Annotated[int, Field(ge=1, le=MOST_FOUND)]
Lines = Annotated[int, Field(ge=0, le=100)]
SortBy = Literal["name", "path", "size", "modified", "modified_time", "type"]
_USUAL = 1000
_SIZE = re.compile(r"([0-9]{1,9})([KMG]?)B?\Z", re.IGNORECASE)
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_LARGEST = 16 * 1024**2


class ListBody(Asked):
    """Which directory, and how much of it."""

    path: FilePath
    recursive: bool | None = None
    show_hidden: bool | None = None
    file_types: Patterns | None = None
    max_depth: Annotated[int, Field(ge=1, le=64)] | None = None
    include_size: bool | None = None
    include_permissions: bool | None = None
    sort_by: SortBy | None = None
    sort_desc: bool | None = None


class SearchBody(Asked):
    """An expression to look for in one file."""

    file: FilePath
    regex: Pattern
    sudo: bool | None = None


class FindBody(Asked):
    """Files by their names."""

    path: FilePath
    glob: Pattern


class GlobBody(Asked):
    """Entries by their paths; `**` is any number of directories."""

    path: FilePath
    pattern: Pattern
    exclude: Patterns | None = None
    include_hidden: bool | None = None
    files_only: bool | None = None
    include_metadata: bool | None = None
    max_results: Most | None = None
    sort_by: SortBy | None = None
    sort_desc: bool | None = None


class GrepBody(Asked):
    """An expression to look for in many files."""

    path: FilePath
    pattern: Pattern
    include: Patterns | None = None
    exclude: Patterns | None = None
    case_insensitive: bool | None = None
    fixed_strings: bool | None = None
    context_before: Lines | None = None
    context_after: Lines | None = None
    max_results: Most | None = None
    max_file_size: Annotated[str, StringConstraints(max_length=16)] | None = None
    multiline: bool | None = None
    offset: Number | None = None
    type: Annotated[str, StringConstraints(max_length=32)] | None = None
    recursive: bool | None = None


class ListView(View):
    """A directory."""

    path: str
    files: list[dict[str, Any]] | None = None
    total_count: int | None = None


class SearchView(View):
    """Where a file has what was looked for."""

    file: str
    matches: list[str] | None = None
    line_numbers: list[int] | None = None


class FoundView(View):
    """What was found below a directory."""

    path: str
    files: list[Any] | None = None


class GrepView(View):
    """What was found in files."""

    path: str
    pattern: str
    matches: list[dict[str, Any]] | None = None
    match_count: int | None = None
    truncated: bool | None = None


@router.post("/list", response_model=None, responses={200: {"model": Envelope[ListView]}})
async def list_files(seat: AtSeat, body: Annotated[ListBody, Body()]) -> Response:
    """List a directory, or everything below it."""
    with expected("list", body.path, path=body.path, files=[], total_count=0):
        path, truncated = guest_path(body.path), False
        hidden = body.show_hidden is True
        if body.recursive:
            asked = {"look": "list", "path": path, "most": MOST_FOUND, "depth": body.max_depth, "hidden": hidden}
            async with seat.turn() as manager:
                told_of = await look(manager, asked)
            entries, truncated = [_described(one) for one in told_of["found"]], bool(told_of.get("truncated"))
        else:
            entries = [one for one in await _entries(seat, path) if hidden or not one["name"].startswith(".")]
    if body.file_types:
        wanted = {kind.lstrip("*.") for kind in body.file_types}
        entries = [one for one in entries if one["is_directory"] or (one["extension"] or "").lstrip(".") in wanted]
    entries = _sorted(entries, body.sort_by, descending=body.sort_desc is True)
    directories = sum(bool(one["is_directory"]) for one in entries)
    return told(
        {
            "path": path,
            "files": entries,
            "total_count": len(entries),
            "directory_count": directories,
            "file_count": len(entries) - directories,
            "truncated": truncated,
        }
    )


@router.post("/search", response_model=None, responses={200: {"model": Envelope[SearchView]}})
async def search(seat: AtSeat, body: Annotated[SearchBody, Body()]) -> Response:
    """Find the lines of one file that an expression fits."""
    with expected("search", body.file, file=body.file, matches=[], line_numbers=[]):
        refuse_sudo(sudo=body.sudo)
        path = guest_path(body.file)
        if (await seat.manager.perform(brokered.FsStat(path))).out["kind"] == "directory":
            raise InvalidRequest(f"{path} is a directory", reason="is_a_directory")
        async with seat.turn() as manager:
            found = await look(manager, {**_GREP, "path": path, "pattern": body.regex, "most": MOST_FOUND})
    lines = [one for one in found["found"] if isinstance(one, dict)]
    matches, numbers = [one["line_content"] for one in lines], [one["line_number"] for one in lines]
    return told({"file": path, "matches": matches, "line_numbers": numbers})


@router.post("/find", response_model=None, responses={200: {"model": Envelope[FoundView]}})
async def find(seat: AtSeat, body: Annotated[FindBody, Body()]) -> Response:
    """Find files by a pattern of their names."""
    with expected("find", body.path, path=body.path, files=[]):
        path = guest_path(body.path)
        async with seat.turn() as manager:
            found = await look(manager, {"look": "find", "path": path, "pattern": body.glob, "most": MOST_FOUND})
    return told({"path": path, "files": found["found"], "truncated": bool(found.get("truncated"))})


@router.post("/glob", response_model=None, responses={200: {"model": Envelope[FoundView]}})
async def glob(seat: AtSeat, body: Annotated[GlobBody, Body()]) -> Response:
    """Find entries by a pattern of their paths."""
    with expected("glob", body.path, path=body.path, pattern=body.pattern, files=[], total_count=0):
        path = guest_path(body.path)
        asked = {
            "look": "glob",
            "path": path,
            "pattern": body.pattern,
            "exclude": body.exclude or [],
            "hidden": body.include_hidden is True,
            "files_only": body.files_only is not False,
            "most": body.max_results or _USUAL,
        }
        async with seat.turn() as manager:
            found = await look(manager, asked)
    entries = _sorted([_described(one) for one in found["found"]], body.sort_by, descending=body.sort_desc is True)
    return told(
        {
            "path": path,
            "pattern": body.pattern,
            "files": entries,
            "total_count": len(entries),
            "truncated": bool(found.get("truncated")),
        }
    )


@router.post("/grep", response_model=None, responses={200: {"model": Envelope[GrepView]}})
async def grep(seat: AtSeat, body: Annotated[GrepBody, Body()]) -> Response:
    """Find lines of many files that an expression fits."""
    with expected("grep", body.path, path=body.path, pattern=body.pattern, matches=[], match_count=0):
        path = guest_path(body.path)
        asked = {
            **_GREP,
            "path": path,
            "pattern": body.pattern,
            "include": body.include or [],
            "exclude": body.exclude or [],
            "ignore_case": body.case_insensitive is True,
            "fixed": body.fixed_strings is True,
            "before": body.context_before or 0,
            "after": body.context_after or 0,
            "most": body.max_results or _USUAL,
            "max_size": _size(body.max_file_size),
            "multiline": body.multiline is True,
            "skip": body.offset or 0,
            "type": body.type,
            "recursive": body.recursive is not False,
        }
        async with seat.turn() as manager:
            found = await look(manager, asked)
    return told(
        {
            "path": path,
            "pattern": body.pattern,
            "matches": found["found"],
            "match_count": len(found["found"]),
            "files_searched": found.get("files_searched"),
            "files_matched": found.get("files_matched"),
            "truncated": bool(found.get("truncated")),
        }
    )


_GREP = {
    "look": "grep", "include": [], "exclude": [], "ignore_case": False, "fixed": False, "before": 0, "after": 0,
    "max_size": _LARGEST, "multiline": False, "skip": 0, "type": None, "recursive": True,
}  # fmt: skip


async def _entries(seat: Seat, path: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    cursor: str | None = None
    while len(entries) < MOST_FOUND:
        page = (await seat.manager.perform(brokered.FsList(path, cursor))).out
        for found in page["entries"]:
            name: str = found["name"]
            entries.append(
                {
                    "name": name,
                    "path": found["path"] or f"{path}/{name}",
                    "is_directory": found["kind"] == "directory",
                    "size": found["size"],
                    "modified_time": _moment(found["modified_ns"] / 1e9),
                    "permissions": None,
                    "extension": _extension(name),
                }
            )
        cursor = page["cursor"]
        if cursor is None:
            break
    return entries


def _described(found: Any) -> dict[str, Any]:
    """Return an entry that the program in the box told of; it is the guest's word, so each part is checked."""
    told_of: dict[str, Any] = found if isinstance(found, dict) else {}
    name, size, modified = str(told_of.get("name", "")), told_of.get("size"), told_of.get("modified")
    return {
        "name": name,
        "path": str(told_of.get("path", "")),
        "is_directory": told_of.get("is_directory") is True,
        "size": size if isinstance(size, int) else 0,
        "modified_time": _moment(modified) if isinstance(modified, int | float) else None,
        "permissions": str(told_of.get("permissions", "")),
        "extension": _extension(name),
    }


def _sorted(entries: list[dict[str, Any]], by: str | None, *, descending: bool) -> list[dict[str, Any]]:
    names = {None: "path", "modified": "modified_time", "type": "extension"}
    field = names.get(by, by or "path")
    return sorted(entries, key=lambda one: (one[field] is not None, one[field]), reverse=descending)


def _extension(name: str) -> str | None:
    stem, dot, suffix = name.rpartition(".")
    return f".{suffix}" if dot and stem else None


def _moment(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):  # no calendar has it: a guest can give a file any time
        return None


def _size(text: str | None) -> int:
    if text is None:
        return _LARGEST
    found = _SIZE.match(text)
    if found is None:
        raise InvalidRequest("max_file_size is a number with K, M or G", reason="invalid_unit")
    return min(_LARGEST, int(found[1]) * _UNITS[found[2].upper()])
