"""Server-sent events, read line by line: what the service tells of a run while it runs."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ringfence.dataclass import dataclass
from ringfence.outcome_form import wrong_form

LONGEST_EVENT: Final = 256 * 1024 * 1024
"""The last one holds the whole result."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its kind, and its data as JSON."""

    kind: str
    data: dict[str, Any]


def read_events(lines: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events that the lines write; one that was not finished is left out.

    Raises:
        Unavailable: The lines are no events of ours.
    """
    kind, size = "message", 0
    data: list[bytes] = []
    for line in lines:
        line = line.rstrip(b"\r\n")
        if not line:
            if data:
                yield Event(kind, _object(b"\n".join(data)))
            kind, data, size = "message", [], 0
            continue
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        size += len(line)
        if size > LONGEST_EVENT:
            raise wrong_form("event")
        if name == b"event":
            kind = value.decode("ascii", "replace")
        elif name == b"data":
            data.append(value)


def output_of(event: Event) -> tuple[str, int, bytes]:
    """Return the stream, the offset in it, and the bytes of an `output` event.

    Raises:
        Unavailable: It is none.
    """
    stream, offset, encoded = event.data.get("stream"), event.data.get("offset"), event.data.get("data_b64")
    if not isinstance(stream, str) or not isinstance(offset, int) or not isinstance(encoded, str):
        raise wrong_form("output")
    try:
        return stream, offset, base64.b64decode(encoded, validate=True)
    except (ValueError, binascii.Error):
        raise wrong_form("output") from None


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise wrong_form("event") from None
    if not isinstance(value, dict):
        raise wrong_form("event")
    return value
