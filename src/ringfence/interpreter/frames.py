"""What a session and the interpreter in its box say to each other: frames on the box's standard streams.

Whatever comes out of the box is the guest's own word: a cell can forge any of it, and gains nothing but a wrong answer
to itself. So everything is bounded, and what is not a frame ends the session.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Iterator
from enum import IntEnum

from ringfence.dataclass import dataclass, field
from ringfence.outcome import Artifact

_HEADER = struct.Struct(">BI")
MOST_FRAME_BYTES = 12 * 1024 * 1024
MOST_OUTPUT_FRAME_BYTES = 1024 * 1024
"""Of what a cell prints: the driver passes it on in far smaller pieces."""
MOST_VALUE_CHARACTERS = 64 * 1024
MOST_ARTIFACTS = 32
MOST_MARKS = 512 * 1024
"""Twice what the longest value and error need: each mark may become an object of ours, a hundred times its size."""
_MOST_NAME = 255
_MARKS = (b"{", b"[", b",", b"\\")


class Frame(IntEnum):
    """What a frame from the box holds."""

    STDOUT = 1
    STDERR = 2
    DONE = 3
    """The cell is over: how, as JSON."""


class BrokenSession(Exception):
    """The box said what no interpreter of ours says; nothing after it can be understood."""


@dataclass(frozen=True, slots=True)
class Done:
    """How a cell ended, in the words of the interpreter that ran it."""

    number: int
    error: str | None = None
    value: str | None = None
    ended: bool = False
    """Whether the program asked for its own end, as `exit()` does."""
    status: int = 0
    """The exit status it asked for."""
    artifacts: tuple[Artifact, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()


def cell(number: int, code: str) -> bytes:
    """Return the frame that has `code` run as the cell with this number."""
    told = json.dumps({"cell": number, "code": code}).encode()
    return len(told).to_bytes(4, "big") + told


class Reader:
    """Cuts the box's output into frames, however the bytes arrive."""

    def __init__(self) -> None:
        """Nothing has been said yet."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[Frame, bytes]]:
        """Return the frames completed by `data`.

        Raises:
            BrokenSession: These are no frames.
        """
        self._buffer += data
        frames: list[tuple[Frame, bytes]] = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            kind, size = _HEADER.unpack_from(self._buffer, start)
            most = MOST_FRAME_BYTES if kind == Frame.DONE else MOST_OUTPUT_FRAME_BYTES
            if kind not in Frame.__members__.values() or size > most:
                raise BrokenSession("the interpreter's output is not made of frames")
            end = start + _HEADER.size + size
            if len(self._buffer) < end:
                break
            frames.append((Frame(kind), bytes(self._buffer[start + _HEADER.size : end])))
            start = end
        del self._buffer[:start]
        return frames


def read_done(payload: bytes, *, most_artifact_bytes: int) -> Done:
    """Return how a cell ended.

    Raises:
        BrokenSession: It is not said as the interpreter says it.
    """
    if sum(map(payload.count, _MARKS)) > MOST_MARKS:
        raise BrokenSession("the end of a cell is made of more parts than an interpreter tells")
    try:
        told = json.loads(payload)
        number, error, value = told["cell"], told.get("error"), told.get("value")
        ended, status, shown = told.get("ended", False), told.get("status", 0), told.get("artifacts", [])
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        raise BrokenSession("the end of a cell is not JSON") from None
    if (
        type(number) is not int
        or not (error is None or isinstance(error, str))
        or not (value is None or isinstance(value, str))
        or type(ended) is not bool
        or type(status) is not int
        or not isinstance(shown, list)
    ):
        raise BrokenSession("the end of a cell is not written as it should be")
    artifacts, notes = _artifacts(shown, most_artifact_bytes)
    return Done(
        number,
        None if error is None else error[:MOST_VALUE_CHARACTERS],
        None if value is None else value[:MOST_VALUE_CHARACTERS],
        ended,
        status & 0xFF,
        artifacts,
        notes,
    )


def _artifacts(shown: list[object], most_bytes: int) -> tuple[tuple[Artifact, ...], tuple[str, ...]]:
    import hashlib  # not at the top: most cells show nothing

    kept: list[Artifact] = []
    left_out: list[str] = []
    for each in shown:
        match each:
            case {"name": str(name), "b64": str(text)} if _is_name(name):
                pass
            case _:
                raise BrokenSession("what a cell shows is not written as it should be")
        try:
            content = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise BrokenSession("what a cell shows is not base64") from None
        if len(kept) >= MOST_ARTIFACTS or sum(artifact.size for artifact in kept) + len(content) > most_bytes:
            left_out.append(name)
            continue
        kept.append(Artifact(name, len(content), hashlib.sha256(content).hexdigest(), content))
    return tuple(kept), tuple(_notes(left_out))


def _notes(left_out: list[str]) -> Iterator[str]:
    for name in left_out[:MOST_ARTIFACTS]:
        yield f"artifact {name} was not collected: too much"
    if len(left_out) > MOST_ARTIFACTS:
        yield f"{len(left_out) - MOST_ARTIFACTS} more artifacts were not collected"


def _is_name(name: str) -> bool:
    """Whether `name` can be one file of a directory, and looks like nothing else when it is printed."""
    return 0 < len(name) <= _MOST_NAME and name.isascii() and name.isprintable() and "/" not in name and name[0] != "."
