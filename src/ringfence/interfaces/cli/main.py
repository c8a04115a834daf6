"""The `ringfence` command: find the subcommand, run it, and turn every ending into its exit code.

Exit codes of `run` and `shell`: 0 ok, 1 program failed, 2 usage, 3 denied, 4 consent needed, 5 quota, 6 timeout,
7 unavailable, 8 internal; 128 + N when signal N ended the command itself (130 is Ctrl-C, 141 a closed pipe).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from ringfence.errors import InternalError, RingfenceError
from ringfence.interfaces.cli.interrupt import Interrupted
from ringfence.interfaces.cli.usage import UsageError

Handler = Callable[[Sequence[str]], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except Interrupted as stop:
        return stop.exit_code
    except KeyboardInterrupt:
        return 130
    except RingfenceError as error:
        return _fail(error, words)
    except BrokenPipeError:
        # What is still buffered has no reader either: let the interpreter flush it into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
        return 141
    except Exception as error:  # noqa: BLE001 the outermost handler: our own failure must not look like the guest's
        return _fail(InternalError(f"{type(error).__name__}: {error}", fix="report it, with this line"), words)


def _dispatch(words: list[str]) -> int:
    from ringfence.interfaces.cli import help_text

    name, rest = (words[0], words[1:]) if words else ("--help", [])
    if name in ("-h", "--help", "help"):
        sys.stdout.write(help_text.OVERVIEW)
        return 0 if words else 2
    if name == "--version":
        from ringfence import __version__

        sys.stdout.write(f"ringfence {__version__}\n")
        return 0
    if name in help_text.PENDING_COMMANDS:
        raise UsageError(
            f"'ringfence {name}' is not in this version; it arrives with {help_text.PENDING_COMMANDS[name]}",
            reason="not_in_this_version",
            fix="see 'ringfence --help' for what is here",
        )
    if name not in help_text.COMMANDS:
        raise UsageError(f"there is no command {name!r}", fix="see 'ringfence --help'")
    if {"-h", "--help"} & set(_own_words(rest)):
        sys.stdout.write(help_text.COMMANDS[name])
        return 0
    return _handler(name)(rest)


def _handler(name: str) -> Handler:
    """Import only what the named command needs: start-up time is part of the promise."""
    if name == "doctor":
        from ringfence.interfaces.cli.doctor import doctor_command

        return doctor_command
    if name == "bench":
        from ringfence.interfaces.cli.bench import bench_command

        return bench_command
    if name == "errors":
        from ringfence.interfaces.cli.errors import errors_command

        return errors_command
    if name == "policy":
        from ringfence.interfaces.cli.policy import policy_command

        return policy_command
    if name == "evidence":
        from ringfence.interfaces.cli.evidence import evidence_command

        return evidence_command
    if name == "workspace":
        from ringfence.interfaces.cli.workspace import workspace_command

        return workspace_command
    if name == "metrics":
        from ringfence.interfaces.cli.metrics import metrics_command

        return metrics_command
    if name == "grant":
        from ringfence.interfaces.cli.grant import grant_command

        return grant_command
    if name == "skill":
        from ringfence.interfaces.cli.skill import skill_command

        return skill_command
    if name == "serve":
        from ringfence.interfaces.cli.serve import serve_command

        return serve_command
    if name == "key":
        from ringfence.interfaces.cli.key import key_command

        return key_command
    from ringfence.interfaces.cli.run import run_command

    return lambda rest: run_command(name, rest)


def _fail(error: RingfenceError, words: Sequence[str]) -> int:
    from ringfence.interfaces.cli.render import error_exit_code, error_json, error_line

    if "--json" in _own_words(words):
        sys.stdout.write(error_json(error))
        sys.stdout.flush()
    else:
        sys.stderr.write(error_line(error))
    return error_exit_code(error)


def _own_words(words: Sequence[str]) -> Sequence[str]:
    """Return the words before `--`: what follows belongs to the guest."""
    return words[: words.index("--")] if "--" in words else words
