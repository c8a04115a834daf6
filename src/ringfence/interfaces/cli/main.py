"""The `ringfence` command: find the subcommand, run it, and turn every ending into its exit code.

Exit codes of `run` and `shell`: 0 ok, 1 program failed, 2 usage, 3 denied, 4 consent needed, 5 quota, 6 timeout,
7 unavailable, 8 internal; 128 + N when signal N ended the command itself (130 is Ctrl-C, 141 a closed pipe).
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from ringfence.errors import InternalError, RingfenceError
from ringfence.interfaces.cli.interrupt import Interrupted
from ringfence.interfaces.cli.usage import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_MANY_OBJECTS = 50_000
Handler = Callable[[Sequence[str]], int]


def command() -> NoReturn:
    """Be the `ringfence` command: run it, and end the process without taking the interpreter apart.

    That would be a fifth of `ringfence run`, for memory which the kernel takes back anyway. Threads are waited for and
    what was registered to be done at exit is done, as always.
    """
    name = sys.argv[1] if sys.argv[1:] else "help"
    if name in ("run", "shell"):
        gc.set_threshold(_MANY_OBJECTS)  # what is imported stays; looking through it seventy times finds nothing
    if name != "help" and not name.startswith("-"):  # for a few words it does not pay
        from ringfence.interfaces.cli.bytecode import read_directly

        read_directly()
    ended: list[int] = []
    atexit.register(_leave, ended)  # first, and so called last
    ended.append(main())
    sys.exit(ended[0])


def _leave(ended: Sequence[int]) -> None:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # the interpreter has its own way to say so
    for code in ended:
        os._exit(code)


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
    name, rest = (words[0], words[1:]) if words else ("--help", [])
    asks_for_help = bool({"-h", "--help"} & set(_own_words(rest)))
    if name in ("run", "shell") and not asks_for_help:
        from ringfence.interfaces.cli.lightly import lightly

        lightly("argparse")
        from ringfence.interfaces.cli.run import run_command

        return run_command(name, rest)
    from ringfence.interfaces.cli import help_text

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
    if asks_for_help:
        sys.stdout.write(help_text.COMMANDS[name])
        return 0
    return _handler(name)(rest)


def _handler(name: str) -> Handler:
    """Import only what the named command needs; it is in the module of its name."""
    module = importlib.import_module(f"ringfence.interfaces.cli.{name}")
    handler: Handler = getattr(module, f"{name}_command")
    return handler


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
