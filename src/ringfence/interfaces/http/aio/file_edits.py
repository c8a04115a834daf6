"""`/v1/file/replace` and the editor: a file is read, changed as text and written again, one caller at a time."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Body
from pydantic import Field
from starlette.responses import Response

from ringfence.errors import InvalidRequest
from ringfence.interfaces.http.aio.envelope import Envelope, View, expected, told
from ringfence.interfaces.http.aio.fields import Asked, FilePath, Number, Text, refuse_sudo
from ringfence.interfaces.http.aio.seat import AtSeat, Seat
from ringfence.interfaces.http.routes import Router
from ringfence.operation import brokered
from ringfence.service.aio import editing
from ringfence.service.aio.files import content_of, write_file
from ringfence.service.aio.paths import guest_path

router = Router()
_SHOWN = 1000
Range = Annotated[list[Annotated[int, Field(ge=-1, lt=2**31)]], Field(min_length=2, max_length=2)]


class ReplaceBody(Asked):
    """What to replace, everywhere in a file."""

    file: FilePath
    old_str: Text
    new_str: Text
    sudo: bool | None = None


class EditorBody(Asked):
    """One command of the editor."""

    command: Literal["view", "create", "str_replace", "insert", "undo_edit"]
    path: FilePath
    file_text: Text | None = None
    old_str: Text | None = None
    new_str: Text | None = None
    insert_line: Number | None = None
    view_range: Range | None = None
    replace_mode: editing.Replace | None = Field(None, strict=False)


class ReplaceView(View):
    """A file that was changed."""

    file: str
    replaced_count: int | None = None


class EditorView(View):
    """What the editor did, or shows."""

    output: str
    path: str
    prev_exist: bool
    error: str | None = None
    old_content: str | None = None
    new_content: str | None = None


@router.post("/replace", response_model=None, responses={200: {"model": Envelope[ReplaceView]}})
async def replace(seat: AtSeat, body: Annotated[ReplaceBody, Body()]) -> Response:
    """Replace a text everywhere in a file."""
    with expected("replace", body.file, file=body.file, replaced_count=0):
        refuse_sudo(sudo=body.sudo)
        path = guest_path(body.file)
        async with seat.desk.edits(seat.place):
            text = editing.text_of(await content_of(seat.manager, path))
            changed, count = editing.replaced(text, body.old_str, body.new_str)
            if count:
                await write_file(seat.manager, path, _encoded(changed))
    return told({"file": path, "replaced_count": count}, f"{count} replaced")


@router.post("/str_replace_editor", response_model=None, responses={200: {"model": Envelope[EditorView]}})
async def edit(seat: AtSeat, body: Annotated[EditorBody, Body()]) -> Response:
    """View, create or change a file, as the editor of that name does."""
    with expected(body.command, body.path, output="", path=body.path, prev_exist=False):
        path = guest_path(body.path)
        if body.command == "view":
            return told(await _viewed(seat, path, body))
        if body.command == "undo_edit":
            raise InvalidRequest(
                "nothing is kept to be undone", reason="not_in_this_version", fix="snapshot the project"
            )
        async with seat.desk.edits(seat.place):
            return told(await _changed(seat, path, body))


async def _viewed(seat: Seat, path: str, body: EditorBody) -> dict[str, Any]:
    found = await seat.manager.perform(brokered.FsStat(path))
    if found.out["kind"] == "directory":
        listed = await seat.manager.perform(brokered.FsList(path, limit=_SHOWN))
        names = [f"{entry['name']}{'/' * (entry['kind'] == 'directory')}" for entry in listed.out["entries"]]
        return {"output": "\n".join((path, *names)), "path": path, "prev_exist": True}
    text = editing.text_of(await content_of(seat.manager, path))
    first, last = body.view_range or (1, -1)
    return {"output": editing.numbered(text, first, last), "path": path, "prev_exist": True}


async def _changed(seat: Seat, path: str, body: EditorBody) -> dict[str, Any]:
    if body.command == "create":
        _require(body.file_text, "file_text", body.command)
        existed = await _exists(seat, path)
        await write_file(seat.manager, path, _encoded(body.file_text or ""))
        return {"output": f"{path} was written", "path": path, "prev_exist": existed, "new_content": body.file_text}
    before = editing.text_of(await content_of(seat.manager, path))
    if body.command == "insert":
        _require(body.insert_line, "insert_line", body.command)
        _require(body.new_str, "new_str", body.command)
        after = editing.inserted(before, body.insert_line or 0, body.new_str or "")
    else:
        _require(body.old_str, "old_str", body.command)
        after = editing.replaced_one(before, body.old_str or "", body.new_str or "", body.replace_mode)
    await write_file(seat.manager, path, _encoded(after))
    return {
        "output": f"{path} was changed",
        "path": path,
        "prev_exist": True,
        "old_content": before,
        "new_content": after,
    }


async def _exists(seat: Seat, path: str) -> bool:
    try:
        await seat.manager.perform(brokered.FsStat(path))
    except InvalidRequest as refused:
        if refused.reason != "not_found":
            raise
        return False
    return True


def _require(value: object, name: str, command: str) -> None:
    if value is None:
        raise InvalidRequest(f"{command} needs {name}", reason="invalid_value")


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("the text is not valid Unicode", reason="invalid_text") from None
