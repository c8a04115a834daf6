"""`ringfence send PROCESS [TEXT]`: a line, or all of standard input, for the input of a process."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import Any

from ringfence.interfaces.cli.process_desk import ProcessDesk, parser_of, say, state_of

_AT_ONCE = 128 * 1024


def send_command(words: Sequence[str]) -> int:
    """Carry out `ringfence send` and return the exit code."""
    parser = parser_of("send")
    parser.add_argument("process_id")
    parser.add_argument("text", nargs="?")
    parser.add_argument("-n", dest="newline", action="store_false")
    parser.add_argument("--end", action="store_true")
    options = parser.parse_args(list(words))
    desk = ProcessDesk()
    if options.text is not None:
        data = options.text.encode("utf-8", "surrogateescape") + (b"\n" if options.newline else b"")
    else:
        data = b"" if options.end and sys.stdin.isatty() else sys.stdin.buffer.read()
    answer: dict[str, Any] = {}
    for start in range(0, max(1, len(data)), _AT_ONCE):
        piece = data[start : start + _AT_ONCE]
        last = start + _AT_ONCE >= len(data)
        form = {"data_b64": base64.b64encode(piece).decode("ascii"), "end": options.end and last}
        answer = desk.do(options.process_id, "stdin", form)
    if options.json:
        say(answer, state_of(answer), as_json=True)
    return 0
