"""The shapes of the tools for processes; output comes in pieces, and every byte that is missing is counted."""

from __future__ import annotations

from typing import Any, Final

from ringfence.interfaces.mcp.schemas import CODE, ENV, FILES, LANGUAGE, MOST_SECONDS, TIMEOUT, giving, taking

MOST_PIECE: Final = 64 << 10
USUAL_PIECE: Final = 16 << 10
MOST_WAIT_SECONDS: Final = 60
MOST_SENT: Final = 64 << 10

_OFFSET: Final = {"type": "integer", "minimum": 0, "maximum": 1 << 62}
_EXIT_CODE: Final = {
    "anyOf": [{"type": "integer"}, {"type": "null"}],
    "description": "What the program ended with, once it has",
}
_STATE: Final = {"type": "string", "description": "running, or how it ended: succeeded, failed, killed, timed_out …"}
_SIDE: Final = {"type": "integer", "minimum": 1, "maximum": 1000}
_ID: Final = {"type": "string", "minLength": 1, "maxLength": 128, "description": "What start_process gave"}

START: Final = taking(
    (),
    command={**CODE, "description": "A bash command line; or else code"},
    code={**CODE, "description": "A program's text, instead of command"},
    language={**LANGUAGE, "default": "bash", "description": "Of code"},
    terminal={
        "type": "object",
        "properties": {"rows": _SIDE, "columns": _SIDE},
        "required": ["rows", "columns"],
        "additionalProperties": False,
        "description": "Give it a terminal of this size instead of pipes; everything then comes as stdout",
    },
    env=ENV,
    files=FILES,
    timeout=TIMEOUT,
    idle_timeout={
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": MOST_SECONDS,
        "description": "Seconds without output and input after which it is killed",
    },
)
STARTED: Final = giving(process_id={"type": "string"}, exec_id={"type": "string"}, state=_STATE)
READ: Final = taking(
    ("process_id",),
    process_id=_ID,
    stdout_offset={**_OFFSET, "description": "stdout_next_offset of the last read; 0 at first"},
    stderr_offset={**_OFFSET, "description": "stderr_next_offset of the last read; 0 at first"},
    max_bytes={"type": "integer", "minimum": 4, "maximum": MOST_PIECE, "default": USUAL_PIECE},
    wait_seconds={
        "type": "number",
        "minimum": 0,
        "maximum": MOST_WAIT_SECONDS,
        "default": 0,
        "description": "Wait so long for something new to read, or for its end",
    },
)


def _stream(name: str) -> dict[str, Any]:
    return {
        name: {
            "type": "string",
            "description": "What it wrote from the offset on; bytes that are not UTF-8 are U+FFFD",
        },
        f"{name}_next_offset": {**_OFFSET, "description": "Where to read on"},
        f"{name}_lost_bytes": {
            **_OFFSET,
            "description": "Bytes between the offset and this that are not kept any more",
        },
    }


SAID: Final = giving(
    process_id={"type": "string"}, state=_STATE, exit_code=_EXIT_CODE, **_stream("stdout"), **_stream("stderr")
)
SEND: Final = taking(
    ("process_id",),
    process_id=_ID,
    data={"type": "string", "maxLength": MOST_SENT, "default": "", "description": "Text for its input, as UTF-8"},
    end={"type": "boolean", "default": False, "description": "Whether nothing more comes after it"},
)
SENT: Final = giving(process_id={"type": "string"}, state=_STATE, sent_bytes={"type": "integer", "minimum": 0})
KILL: Final = taking(("process_id",), process_id=_ID)
KILLED: Final = giving(process_id={"type": "string"}, state=_STATE, exit_code=_EXIT_CODE)
