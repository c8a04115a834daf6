"""The tools on the files of a project: each one operation of a broker, judged and recorded like a run."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final

from ringfence.errors import InvalidRequest
from ringfence.interfaces.mcp import schemas
from ringfence.interfaces.mcp.answers import answer, named
from ringfence.interfaces.mcp.offer import Arguments, Offer, hints_of_tool
from ringfence.operation.brokered import FsList, FsRead, FsWrite
from ringfence.operation.form import summary

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from ringfence.facade import SandboxManager
    from ringfence.outcome import BrokerOutcome, OnOutput

_LONGEST_CHARACTER = 4


async def _read_file(manager: SandboxManager, arguments: Arguments, _on_output: OnOutput) -> CallToolResult:
    offset, length = arguments.get("offset", 0), arguments.get("length", schemas.USUAL_READ)
    outcome = await manager.perform(FsRead(arguments["path"], offset, length))
    content = outcome.content
    text, taken = (None, outcome.out["bytes"]) if content is None else _as_text(content, outcome.out)
    end = offset + taken
    fields = {
        "path": outcome.out["path"],
        "content": text,
        "content_base64": base64.b64encode(content).decode() if content is not None and text is None else None,
        "withheld": content is None,
        "offset": offset,
        "next_offset": end if end < outcome.out["size"] else None,
        "size": outcome.out["size"],
        **_recorded(outcome),
    }
    return answer(fields, _told(fields, taken))


def _as_text(content: bytes, out: Any) -> tuple[str | None, int]:
    """Return the bytes as text, without a last character that was cut in two, and how many bytes it stands for."""
    for cut in range(_LONGEST_CHARACTER if out["offset"] + len(content) < out["size"] else 1):
        whole = content[: len(content) - cut]
        try:
            return whole.decode(), len(whole)
        except UnicodeDecodeError:
            continue
    return None, len(content)


def _told(fields: dict[str, Any], taken: int) -> str:
    if fields["withheld"]:
        return f"[{fields['path']}: {fields['size']} bytes; the policy keeps contents out of results]"
    more = f"; read on at offset {fields['next_offset']}" if fields["next_offset"] is not None else ""
    if fields["content"] is None:
        return f"[{fields['path']}: {taken} bytes that are not text, in content_base64{more}]"
    return f"{fields['content']}\n[truncated{more}]" if more else str(fields["content"])


async def _write_file(manager: SandboxManager, arguments: Arguments, _on_output: OnOutput) -> CallToolResult:
    operation = FsWrite(arguments["path"], _content(arguments), arguments.get("overwrite", False))
    outcome = await manager.perform(operation)
    fields = {
        "path": outcome.out["path"],
        "bytes": outcome.out["bytes"],
        "created": outcome.out["created"],
        "sha256": base64.b64decode(outcome.out["digest"]["b64"]).hex(),
        **_recorded(outcome),
    }
    done = "created" if fields["created"] else "replaced"
    return answer(fields, f"{done} {fields['path']} with {fields['bytes']} bytes")


def _content(arguments: Arguments) -> bytes:
    if ("content" in arguments) == ("content_base64" in arguments):
        raise InvalidRequest("write_file takes content or content_base64, and one of them", reason="invalid_content")
    if "content" in arguments:
        return str(arguments["content"]).encode()
    try:
        return base64.b64decode(arguments["content_base64"], validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("content_base64 is not base64", reason="invalid_content") from None


async def _list_files(manager: SandboxManager, arguments: Arguments, _on_output: OnOutput) -> CallToolResult:
    operation = FsList(arguments.get("path", "work"), arguments.get("cursor"), arguments.get("limit", 200))
    outcome = await manager.perform(operation)
    entries = [{name: each[name] for name in ("name", "path", "kind", "size")} for each in outcome.out["entries"]]
    fields = {
        "path": outcome.out["path"],
        "entries": entries,
        "cursor": outcome.out["cursor"],
        **_recorded(outcome),
    }
    more = "\n[more: ask again with the cursor]" if fields["cursor"] is not None else ""
    return answer(fields, (named(entries) or f"[{fields['path']} is empty]") + more)


def _needs(operation: FsRead | FsWrite | FsList) -> str | None:
    needed = summary(operation)
    return None if needed.endswith(":invalid") else needed  # a path that leads out is for nobody


def _recorded(outcome: BrokerOutcome) -> dict[str, str | None]:
    return {"exec_id": outcome.exec_id, "evidence_id": outcome.evidence_id}


OFFERS: Final = (
    Offer(
        "read_file",
        "Read a file",
        "Read a file of the project, or a part of it: text as text, anything else as base64.",
        schemas.READ_FILE,
        schemas.READ,
        hints_of_tool("file_read"),
        _read_file,
        lambda arguments: _needs(FsRead(arguments["path"])),
    ),
    Offer(
        "write_file",
        "Write a file",
        "Write a file of the project; an existing one is replaced only with overwrite.",
        schemas.WRITE_FILE,
        schemas.WROTE,
        hints_of_tool("file_write", idempotent=True),
        _write_file,
        lambda arguments: _needs(FsWrite(arguments["path"])),
    ),
    Offer(
        "list_files",
        "List files",
        "List a directory of the project, page by page.",
        schemas.LIST_FILES,
        schemas.LISTED,
        hints_of_tool("file_list"),
        _list_files,
        lambda arguments: _needs(FsList(arguments.get("path", "work"))),
    ),
)
