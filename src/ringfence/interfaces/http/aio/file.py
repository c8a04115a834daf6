"""`/v1/file`: the files of the caller's project; each read and write is an operation, judged and recorded."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from fastapi import Body, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ringfence.errors import CapabilityBlocked, InvalidRequest
from ringfence.facade import SandboxManager
from ringfence.interfaces.http.aio import file_edits, file_search
from ringfence.interfaces.http.aio.envelope import Envelope, View, expected, refusals, told
from ringfence.interfaces.http.aio.fields import Asked, FilePath, Number, Text, refuse_sudo
from ringfence.interfaces.http.aio.seat import AtSeat
from ringfence.interfaces.http.routes import Router
from ringfence.operation import brokered
from ringfence.operation.path import MAX_PATH_BYTES
from ringfence.service.aio import editing
from ringfence.service.aio.files import content_of, write_file
from ringfence.service.aio.multipart import read_form
from ringfence.service.aio.paths import guest_path

router = Router(prefix="/v1/file", tags=["aio file"])
router.include_router(file_edits.router)
router.include_router(file_search.router)
_PIECE: Final = 4 * 1024 * 1024
_FORM: Final = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "path": {"type": "string", "minLength": 1, "maxLength": MAX_PATH_BYTES},
                    },
                }
            }
        },
    }
}


class ReadBody(Asked):
    """Which lines of a file; counted from 0, without the one at `end_line`."""

    file: FilePath
    start_line: Number | None = None
    end_line: Number | None = None
    sudo: bool | None = None


class WriteBody(Asked):
    """What to write; `raw` is text whose characters stand for bytes."""

    file: FilePath
    content: Text
    encoding: Literal["utf-8", "base64", "raw"] | None = None
    append: bool | None = None
    leading_newline: bool | None = None
    trailing_newline: bool | None = None
    sudo: bool | None = None


class ReadView(View):
    """A file's text."""

    content: str
    file: str
    line_count: int | None = None


class WriteView(View):
    """A file that was written."""

    file: str
    bytes_written: int | None = None


class UploadView(View):
    """A file that was uploaded."""

    file_path: str
    file_size: int
    success: bool


@router.post("/read", response_model=None, responses={200: {"model": Envelope[ReadView]}})
async def read(seat: AtSeat, body: Annotated[ReadBody, Body()]) -> Response:
    """Read a text file, or some lines of it."""
    with expected("read", body.file, content="", file=body.file):
        refuse_sudo(sudo=body.sudo)
        path = guest_path(body.file)
        text = editing.text_of(await content_of(seat.manager, path))
    content = editing.line_range(text, body.start_line, body.end_line)
    return told({"content": content, "file": path, "line_count": len(content.splitlines())}, "the file was read")


@router.post("/write", response_model=None, responses={200: {"model": Envelope[WriteView]}})
async def write(seat: AtSeat, body: Annotated[WriteBody, Body()]) -> Response:
    """Write a file, or add to its end; the directories above it are made."""
    with expected("write", body.file, file=body.file, bytes_written=0):
        refuse_sudo(sudo=body.sudo)
        path, content = guest_path(body.file), _written(body)
        async with seat.desk.edits(seat.place):
            before = await content_of(seat.manager, path, or_empty=True) if body.append else b""
            await write_file(seat.manager, path, before + content)
    return told({"file": path, "bytes_written": len(content)}, "the file was written")


@router.post("/upload", response_model=None, responses={200: {"model": Envelope[UploadView]}}, openapi_extra=_FORM)
async def upload(request: Request, seat: AtSeat) -> Response:
    """Write a file that comes as a form's; without a `path` it lies in the work directory under its own name."""
    form = read_form(request.headers.get("content-type", ""), await request.body())
    if "file" not in form:
        raise InvalidRequest("the form has no file", reason="invalid_content")
    file = form["file"]
    wanted = (file.filename or "upload").replace("\\", "/").rpartition("/")[2]
    if "path" in form:
        wanted = form["path"].content.decode("utf-8", "replace")
        if not 0 < len(wanted) <= MAX_PATH_BYTES:
            raise InvalidRequest("path is empty or too long", reason="invalid_path")
    with expected("upload", wanted, file_path=wanted, file_size=0, success=False):
        path = guest_path(wanted)
        await write_file(seat.manager, path, file.content)
    return told({"file_path": path, "file_size": len(file.content), "success": True}, "the file was uploaded")


@router.get(
    "/download",
    response_class=Response,
    responses={
        200: {
            "description": "The file",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        **refusals((404, 409)),
    },
)
async def download(seat: AtSeat, path: Annotated[str, Query(min_length=1, max_length=4096)]) -> Response:
    """Send a file as it is; what fails is told by the status."""
    where = guest_path(path)
    found = await seat.manager.perform(brokered.FsStat(where))
    if found.out["kind"] == "directory":
        raise InvalidRequest("a directory cannot be downloaded", reason="is_a_directory")
    first = await _piece(seat.manager, where, 0)
    size = int(first["size"])
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(where.rpartition('/')[2], safe='')}",
        "Content-Length": str(size),
    }
    return StreamingResponse(_pieces(seat.manager, where, first), 200, headers, "application/octet-stream")


async def _pieces(manager: SandboxManager, path: str, first: dict[str, Any]) -> AsyncIterator[bytes]:
    """Yield a file; one that changes its size meanwhile is cut off, which its length then tells."""
    sent, piece = len(first["content"]), first
    yield first["content"]
    while piece["content"] and sent < first["size"] == piece["size"]:
        piece = await _piece(manager, path, sent)
        sent += len(piece["content"])
        yield piece["content"]


async def _piece(manager: SandboxManager, path: str, offset: int) -> dict[str, Any]:
    read = await manager.perform(brokered.FsRead(path, offset, _PIECE))
    if read.content is None:
        raise CapabilityBlocked("the policy does not hand out contents", reason="blocked")
    return {"content": read.content, "size": read.out["size"]}


def _written(body: WriteBody) -> bytes:
    try:
        if body.encoding == "base64":
            return base64.b64decode(body.content, validate=True)
        if body.encoding == "raw":
            return body.content.encode("latin-1")
        return ("\n" * bool(body.leading_newline) + body.content + "\n" * bool(body.trailing_newline)).encode()
    except (UnicodeEncodeError, binascii.Error, ValueError):
        raise InvalidRequest("the content is not as its encoding says", reason="invalid_content") from None
