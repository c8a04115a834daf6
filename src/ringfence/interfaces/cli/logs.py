"""`ringfence logs PROCESS`: what a process said, harmless on a terminal, with every lost byte told."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

from ringfence.interfaces.cli.process_desk import ProcessDesk, data_of, parser_of, say
from ringfence.interfaces.cli.screen import Screen

_WAIT_MS = 20_000


def logs_command(words: Sequence[str]) -> int:
    """Carry out `ringfence logs` and return the exit code."""
    parser = parser_of("logs")
    parser.add_argument("process_id")
    parser.add_argument("-f", "--follow", action="store_true")
    options = parser.parse_args(list(words))
    desk = ProcessDesk()
    if options.json:
        if options.follow:
            parser.error("--json is one object, and --follow never ends")
        answer = desk.poll(options.process_id, (0, 0))
        say(answer, "", as_json=True)
        return 0
    shown = {"stdout": _Shown(sys.stdout.buffer), "stderr": _Shown(sys.stderr.buffer)}
    offsets = (0, 0)
    while True:
        answer = desk.poll(options.process_id, offsets, wait_ms=_WAIT_MS if options.follow else 0)
        moved = [_show(name, stream, answer[name]) for name, stream in shown.items()]
        offsets = answer["stdout"]["next_offset"], answer["stderr"]["next_offset"]
        if not any(moved) and (answer["state"] != "running" or not options.follow):
            for stream in shown.values():
                stream.end()
            return 0


def _show(name: str, stream: _Shown, piece: dict[str, Any]) -> bool:
    if piece["lost_bytes"]:
        sys.stderr.write(f"ringfence: {piece['lost_bytes']} bytes of {name} are no longer kept\n")
        sys.stderr.flush()
    data = data_of(piece)
    stream.write(data)
    return bool(data)


class _Shown:
    """One output of ours: on a terminal what a guest wrote is shown, and never obeyed."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._screen = Screen() if out.isatty() else None

    def write(self, data: bytes) -> None:
        # a terminal's lines end in \r\n: shown as they are meant, since a bare \r could hide what stands before it
        self._put(data if self._screen is None else self._screen.show(data.replace(b"\r\n", b"\n")))

    def end(self) -> None:
        if self._screen is not None:
            self._put(self._screen.end())

    def _put(self, data: bytes) -> None:
        self._out.write(data)
        self._out.flush()
