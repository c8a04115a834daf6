"""`ringfence start -- COMMAND`: start a process in the service of this home, and say what it is called."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Any

from ringfence.interfaces.cli.options import positive_count, positive_seconds
from ringfence.interfaces.cli.process_desk import ProcessDesk, parser_of, say, state_of


def start_command(words: Sequence[str]) -> int:
    """Carry out `ringfence start` and return the exit code."""
    at = words.index("--") if "--" in words else len(words)
    parser = parser_of("start")
    parser.add_argument("--terminal", action="store_true")
    parser.add_argument("--project")
    parser.add_argument("--timeout", type=positive_seconds)
    parser.add_argument("--idle-timeout", dest="idle_timeout", type=positive_seconds)
    parser.add_argument("--port", dest="ports", action="append", type=positive_count, default=[])
    parser.add_argument("--env", action="append", default=[])
    options = parser.parse_args(list(words[:at]))
    command = list(words[at + 1 :])
    if not command:
        parser.error("there is no command: write it after --")
    form: dict[str, Any] = {"exec": {"kind": "shell", "code": _script(command)}, "ports": options.ports}
    if options.env:
        form["exec"]["env"] = dict(_pair(parser.error, each) for each in options.env)
    form |= {"project_id": options.project} if options.project else {"ephemeral": True}
    if options.terminal:
        rows, columns = _own_size()
        form["terminal"] = {"rows": rows, "columns": columns}
    if options.timeout is not None:
        form["policy_overrides"] = {"timeout_ms": options.timeout * 1000}
    if options.idle_timeout is not None:
        form["idle_timeout_ms"] = options.idle_timeout * 1000
    answer = ProcessDesk().start(form)
    if options.json:
        say(answer, "", as_json=True)
    else:
        say(answer, f"{answer['process_id']} {state_of(answer)}", as_json=False)
    return 0


def _script(command: list[str]) -> str:
    """Return one word as the script it is, and several as the command that they spell."""
    return command[0] if len(command) == 1 else shlex.join(command)


def _pair(error: Any, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        error(f"--env {name}: write it as NAME=VALUE")
    return name, value


def _own_size() -> tuple[int, int]:
    try:
        size = os.get_terminal_size()
    except OSError:
        return 24, 80
    return size.lines, size.columns
