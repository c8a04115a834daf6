"""The words after `ringfence run` and `ringfence shell`, parsed into one checked value.

An option whose part has not landed is refused by name: accepted and ignored, it would promise protection or a
permission that the run does not have.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ringfence.dataclass import dataclass
from ringfence.interfaces.cli.usage import UsageError

_SUFFIXES = {".py": "python", ".js": "javascript", ".mjs": "javascript", ".ts": "typescript", ".sh": "bash"}
_ISOLATIONS = ("auto", "native", "bwrap", "docker", "gvisor", "aio")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """One `run` or `shell` as the person typed it; nothing has been read from the host yet."""

    language: str
    code: str | None = None
    file: str | None = None
    args: tuple[str, ...] = ()
    isolation: str = "auto"
    security: str = "strict"
    packages: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    timeout: float | None = None
    memory_mb: int | None = None
    inputs: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    secrets: tuple[str, ...] = ()
    artifacts: str | None = None
    project: str | None = None
    policy: str | None = None
    role: str | None = None
    home: str | None = None
    correlation: Mapping[str, str] | None = None
    stdin: bool | None = None
    passthrough: bool = False
    json: bool = False
    allow_domains: tuple[str, ...] = ()
    commit: str | None = None
    """What becomes of what it changes in its project: only shown (`never`), or shown and kept for later (`ask`)."""


def parse_run(command: str, words: Sequence[str]) -> RunOptions:
    """Parse the words after `ringfence run` or `ringfence shell`.

    Raises:
        UsageError: Naming the word that is wrong, or the part that is not in this version.
    """
    mine, guests = _split_at_dashes(words)
    parsed = _parser(command).parse_args(mine)
    if parsed.isolation == "process":
        raise UsageError(
            "--isolation process: a plain subprocess isolates nothing, and is slower than a native box",
            fix="leave it out",
        )
    code, file, args = _shell_source(parsed, guests) if command == "shell" else _run_source(parsed, guests)
    return RunOptions(
        language="bash" if command == "shell" else _language(parsed.language, file),
        code=code,
        file=file,
        args=args,
        isolation=parsed.isolation,
        security=parsed.security,
        packages=tuple(parsed.packages),
        preload=tuple(parsed.preload),
        timeout=parsed.timeout,
        memory_mb=parsed.memory,
        inputs=tuple(parsed.inputs),
        env=_environment(parsed.env),
        secrets=tuple(parsed.secrets),
        artifacts=parsed.artifacts,
        project=parsed.project,
        policy=parsed.policy,
        role=parsed.role,
        home=parsed.home,
        correlation=_correlation(parsed.correlate),
        stdin=parsed.stdin,
        passthrough=parsed.passthrough,
        json=parsed.json,
        commit=_commit(parsed),
        allow_domains=tuple(parsed.allow_domains),
    )


def _of_any_width(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, width=120)


class StrictParser(argparse.ArgumentParser):
    """A parser that neither guesses abbreviations nor ends the process."""

    def __init__(self, prog: str) -> None:
        # with a width given, nobody asks the terminal for it, which takes more imports than all the rest
        super().__init__(prog=prog, add_help=False, allow_abbrev=False, formatter_class=_of_any_width)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong."""
        raise UsageError(message, fix=f"see '{self.prog} --help'")


def _parser(command: str) -> StrictParser:
    parser = StrictParser(prog=f"ringfence {command}")
    if command == "run":
        parser.add_argument("file", nargs="?")
        parser.add_argument("-c", dest="code")
        parser.add_argument("--language", choices=("python", "javascript", "typescript", "bash"))
    parser.add_argument("--isolation", choices=(*_ISOLATIONS, "process"), default="auto")
    parser.add_argument("--security", choices=("permissive", "strict"), default="strict")
    parser.add_argument("--with", dest="packages", action="append", default=[])
    parser.add_argument("--preload", action="append", default=[])
    parser.add_argument("--timeout", type=positive_seconds)
    parser.add_argument("--memory", type=positive_count)
    parser.add_argument("--input", dest="inputs", action="append", default=[])
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--secret", dest="secrets", action="append", default=[])
    parser.add_argument("--allow-domain", dest="allow_domains", action="append", default=[])
    parser.add_argument("--artifacts")
    parser.add_argument("--project")
    parser.add_argument("--policy")
    parser.add_argument("--role")
    parser.add_argument("--home")
    parser.add_argument("--correlate", action="append", default=[])
    parser.add_argument("--stdin", action=argparse.BooleanOptionalAction)
    parser.add_argument("--passthrough", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--keep", action="store_true")
    return parser


def _split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    if "--" not in words:
        return list(words), None
    at = list(words).index("--")
    return list(words[:at]), list(words[at + 1 :])


def _run_source(parsed: argparse.Namespace, guests: list[str] | None) -> tuple[str | None, str | None, tuple[str, ...]]:
    if parsed.code is None and parsed.file is None:
        raise UsageError("there is nothing to run", fix="give FILE, - for standard input, or -c CODE")
    if parsed.code is not None and parsed.file is not None:
        raise UsageError("FILE and -c CODE exclude each other", fix="put the program's arguments after --")
    return parsed.code, parsed.file, tuple(guests or ())


def _shell_source(_parsed: argparse.Namespace, guests: list[str] | None) -> tuple[str, None, tuple[str, ...]]:
    if not guests:
        raise UsageError("there is no command to run", fix="put it after --, as in: ringfence shell -- ls -l")
    if len(guests) == 1:
        return guests[0], None, ()
    import shlex

    return shlex.join(guests), None, ()


def _language(named: str | None, file: str | None) -> str:
    if named is not None:
        return named
    if file is None or file == "-":
        return "python"
    suffix = f".{file.rpartition('.')[2]}" if "." in file.rpartition("/")[2] else ""
    if suffix not in _SUFFIXES:
        raise UsageError(
            f"cannot tell the language of {file!r} from its name",
            reason="unknown_language",
            fix="give --language python, javascript, typescript or bash",
        )
    return _SUFFIXES[suffix]


def _commit(parsed: argparse.Namespace) -> str | None:
    if parsed.keep and not parsed.dry_run:
        raise UsageError(
            "--keep is for a dry run, whose changes it keeps until they are decided on", fix="add --dry-run"
        )
    if parsed.dry_run and parsed.project is None:
        raise UsageError("--dry-run is about a project's files, and none is named", fix="add --project ID")
    if not parsed.dry_run:
        return None
    return "ask" if parsed.keep else "never"


def _environment(pairs: Sequence[str]) -> dict[str, str] | None:
    env: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--env {pair!r} is not K=V", fix="write it as --env NAME=value")
        env[name] = value
    return env or None


def _correlation(pairs: Sequence[str]) -> dict[str, str] | None:
    """Read what the evidence is to be found by; `user=u1` and `user_id=u1` are the same."""
    if not pairs:
        return None
    from ringfence.evidence.correlation import NAMES

    known = {name.removesuffix("_id"): name for name in NAMES}
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        field = known.get(name.removesuffix("_id"))
        if field is None or not equals:
            raise UsageError(
                f"--correlate {pair!r} is not NAME=VALUE with a name that is known",
                fix=f"NAME is one of {', '.join(known)}",
            )
        if field in found:
            raise UsageError(f"--correlate gives {name} twice", fix="give it once")
        found[field] = value
    return found


def positive_seconds(text: str) -> float:
    """Read a number of seconds above 0, for argparse."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    # `not >` also refuses nan; inf would mean no limit at all.
    if not seconds > 0 or seconds == float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def positive_count(text: str) -> int:
    """Read a whole number above 0, for argparse."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return count
