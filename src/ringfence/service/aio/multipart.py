"""The parts of a form that carries a file: read strictly, from a body that is already bounded and in memory."""

from __future__ import annotations

import re
from typing import Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest

_BOUNDARY: Final = re.compile(
    r'multipart/form-data\s*;\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))\s*\Z', re.IGNORECASE
)
_PARAMETER: Final = re.compile(r';\s*(name|filename)="((?:[^"\\\r\n]|\\.)*)"')
_MOST_PARTS: Final = 16
_MOST_HEAD: Final = 8 * 1024


@dataclass(frozen=True, slots=True)
class Part:
    """One field of a form; a file has a name of its own."""

    name: str
    filename: str | None
    content: bytes


def read_form(content_type: str, body: bytes) -> dict[str, Part]:
    """Return the fields of a form by their names.

    Raises:
        InvalidRequest: It is no form, or one that two readers could take for two.
    """
    found = _BOUNDARY.match(content_type)
    if found is None:
        raise InvalidRequest("the body must be multipart/form-data", reason="unsupported_media_type")
    mark = b"--" + (found[1] or found[2]).encode("latin-1", "replace")
    # every boundary begins a line, so the first is given the end of a line that is not there
    pieces = (b"\r\n" + body).split(b"\r\n" + mark, _MOST_PARTS + 2)
    if len(pieces) < 3 or pieces[0] or pieces[-1].rstrip(b"\r\n") != b"--" or len(pieces) - 2 > _MOST_PARTS:
        raise _malformed()
    fields: dict[str, Part] = {}
    for piece in pieces[1:-1]:
        part = _part(piece)
        if part.name in fields:
            raise _malformed()
        fields[part.name] = part
    return fields


def _part(piece: bytes) -> Part:
    head, ended, content = piece.partition(b"\r\n\r\n")
    if not head.startswith(b"\r\n") or not ended or len(head) > _MOST_HEAD:
        raise _malformed()
    try:
        lines = head[2:].decode().split("\r\n")
    except UnicodeDecodeError:
        raise _malformed() from None
    told = [line for line in lines if line.lower().startswith("content-disposition:")]
    if len(told) != 1:
        raise _malformed()
    named = {name: re.sub(r"\\(.)", r"\1", value) for name, value in _PARAMETER.findall(told[0])}
    if "name" not in named:
        raise _malformed()
    return Part(named["name"], named.get("filename"), content)


def _malformed() -> InvalidRequest:
    return InvalidRequest("the form cannot be read", reason="invalid_content")
