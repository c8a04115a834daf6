"""The tools for what goes on by itself: start it, read what it says, feed it, end it; each is one recorded run."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any, Final

from ringfence.authority.catalogue import TOOLS
from ringfence.authority.levels import SideEffect
from ringfence.interfaces.mcp import process_schemas as schemas
from ringfence.interfaces.mcp.answers import answer
from ringfence.interfaces.mcp.offer import Arguments, Offer, hints_of, hints_of_tool
from ringfence.outcome import Status

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from ringfence.facade import SandboxManager
    from ringfence.outcome import OnOutput

_PATIENCE_SECONDS: Final = 10.0
"""How long a process may take to read what it is sent."""
_RUN: Final = TOOLS["shell_exec"].side_effect


async def _start(manager: SandboxManager, arguments: Arguments, _on_output: OnOutput) -> CallToolResult:
    size = arguments.get("terminal")
    process = await manager.start_process(
        arguments.get("command"),
        language=arguments.get("language", "bash"),
        code=arguments.get("code"),
        terminal=None if size is None else (size["rows"], size["columns"]),
        idle_timeout=arguments.get("idle_timeout"),
        timeout=arguments.get("timeout"),
        env=arguments.get("env", {}),
        files=arguments.get("files", {}),
    )
    fields = {"process_id": process.process_id, "exec_id": process.exec_id, "state": str(process.state)}
    return answer(fields, f"started {process.process_id}; read it with read_process")


async def _read(manager: SandboxManager, arguments: Arguments, on_output: OnOutput) -> CallToolResult:
    process = await manager.process(arguments["process_id"])
    said = await process.poll(
        arguments.get("stdout_offset", 0),
        arguments.get("stderr_offset", 0),
        arguments.get("max_bytes", schemas.USUAL_PIECE),
        float(arguments.get("wait_seconds", 0)),
    )
    is_over = said.state is not Status.RUNNING
    fields: dict[str, Any] = {
        "process_id": process.process_id,
        "state": str(said.state),
        "exit_code": said.exit_code,
    }
    for name, piece in (("stdout", said.stdout), ("stderr", said.stderr)):
        on_output(name, piece.data)
        text, taken = _whole(piece.data, is_over=is_over)
        fields[name] = text
        fields[f"{name}_next_offset"] = piece.next_offset - (len(piece.data) - taken)
        fields[f"{name}_lost_bytes"] = piece.lost_bytes
    return answer(fields, _told(fields))


def _whole(data: bytes, *, is_over: bool) -> tuple[str, int]:
    """Return the bytes as text without a character whose rest is yet to come, and how many bytes it stands for."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=is_over)
    return text, len(data) - len(decoder.getstate()[0])


def _told(fields: dict[str, Any]) -> str:
    parts = []
    for name in ("stdout", "stderr"):
        if fields[f"{name}_lost_bytes"]:
            parts.append(f"[{fields[f'{name}_lost_bytes']} bytes of {name} are lost]")
        if fields[name]:
            parts.append(fields[name].rstrip("\n") if name == "stdout" else f"[stderr]\n{fields[name].rstrip(chr(10))}")
    ended = "" if fields["exit_code"] is None else f", exit code {fields['exit_code']}"
    where = f"read on at {fields['stdout_next_offset']}, {fields['stderr_next_offset']}"
    return "\n".join([*parts, f"[{fields['state']}{ended}; {where}]"])


async def _send(manager: SandboxManager, arguments: Arguments, _on_output: OnOutput) -> CallToolResult:
    process = await manager.process(arguments["process_id"])
    data = str(arguments.get("data", "")).encode()
    await process.send(data, end=arguments.get("end", False), wait_seconds=_PATIENCE_SECONDS)
    fields = {"process_id": process.process_id, "state": str(process.state), "sent_bytes": len(data)}
    return answer(fields, f"sent {len(data)} bytes to {process.process_id}")


async def _kill(manager: SandboxManager, arguments: Arguments, _on_output: OnOutput) -> CallToolResult:
    process = await manager.process(arguments["process_id"])
    await process.kill()
    fields = {"process_id": process.process_id, "state": str(process.state), "exit_code": process.exit_code}
    return answer(fields, f"{process.process_id}: {fields['state']}")


def _needs(arguments: Arguments) -> str:
    return f"code.run:{arguments.get('language', 'bash')}"


OFFERS: Final = (
    Offer(
        "start_process",
        "Start a process",
        "Start a command, such as a server or a long build, that goes on by itself in an isolated box; read_process "
        "tells what it says. It ends by itself, with kill_process, at its limits, or with the server.",
        schemas.START,
        schemas.STARTED,
        hints_of_tool("shell_exec"),
        _start,
        _needs,
    ),
    Offer(
        "read_process",
        "Read from a process",
        "Tell where a process stands and what it wrote since the offsets; ask next from the offsets that it gives.",
        schemas.READ,
        schemas.SAID,
        hints_of({SideEffect.READ}),
        _read,
        _needs,
    ),
    Offer(
        "send_process",
        "Send to a process",
        "Give text to the input of a process.",
        schemas.SEND,
        schemas.SENT,
        hints_of(_RUN),
        _send,
        _needs,
    ),
    Offer(
        "kill_process",
        "Kill a process",
        "End a process and everything it started; one that is over stays as it is.",
        schemas.KILL,
        schemas.KILLED,
        hints_of(_RUN, idempotent=True),
        _kill,
        _needs,
    ),
)
