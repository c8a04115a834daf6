"""`ringfence kill PROCESS`: end a process and everything it started, or send it a signal."""

from __future__ import annotations

from collections.abc import Sequence

from ringfence.interfaces.cli.process_desk import ProcessDesk, parser_of, say, state_of


def kill_command(words: Sequence[str]) -> int:
    """Carry out `ringfence kill` and return the exit code."""
    parser = parser_of("kill")
    parser.add_argument("process_id")
    parser.add_argument("--signal")
    options = parser.parse_args(list(words))
    desk = ProcessDesk()
    if options.signal is None:
        answer = desk.do(options.process_id, "kill", {})
    else:
        answer = desk.do(options.process_id, "signal", {"signal": options.signal.upper().removeprefix("SIG")})
    say(answer, f"{answer['process_id']} {state_of(answer)}", as_json=options.json)
    return 0
