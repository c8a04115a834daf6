"""`ringfence policy`: find the action; `lint` is carried out here, the others where more is to be shown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfence.interfaces.cli.options import StrictParser
from ringfence.interfaces.cli.usage import UsageError

if TYPE_CHECKING:
    from ringfence.authority.policy import PolicySnapshot

_ACTIONS = ("lint", "check", "explain", "test", "diff", "replay", "show")


def policy_command(words: Sequence[str]) -> int:
    """Carry out `ringfence policy ACTION` and return the exit code."""
    action, rest = (words[0], list(words[1:])) if words else ("", [])
    if action not in _ACTIONS:
        wrong = f"there is no 'ringfence policy {action}'" if action else "'ringfence policy' takes an action"
        raise UsageError(wrong, fix=f"give one of {', '.join(_ACTIONS)} first")
    if action == "lint":
        return _lint(rest)
    if action == "diff":
        from ringfence.interfaces.cli.policy_diff import diff_command

        return diff_command(rest)
    if action == "replay":
        return _replay(rest)
    if action == "show":
        return _show(rest)
    if action == "explain":
        from ringfence.interfaces.cli.policy_explain import explain_command

        return explain_command(rest)
    from ringfence.interfaces.cli.policy_check import check_command, run_tests

    return check_command(rest) if action == "check" else run_tests(rest)


def load(path: str) -> PolicySnapshot:
    """Read a policy that is to be explained or compared.

    Raises:
        InvalidRequest: It cannot be read, or has an error; the message has the line and the fix of the first.
    """
    from ringfence.authority.policy_reader import load_policy

    return load_policy(read_policy_file(path), path)


def read_policy_file(path: str) -> bytes:
    """Return the bytes of a policy file, and no more of them than a policy may have.

    Raises:
        InvalidRequest: It cannot be read.
    """
    from ringfence.authority.yaml_tree import MAX_BYTES
    from ringfence.errors import InvalidRequest

    try:
        with Path(path).open("rb") as file:  # which may be a pipe: it is read once
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}",
            reason="policy_unreadable",
            fix="name a policy file that you may read",
        ) from error


def print_json(fields: dict[str, Any]) -> None:
    """Print one object on one line, and nothing else."""
    import json

    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _lint(words: list[str]) -> int:
    parser = StrictParser(prog="ringfence policy lint")
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--skills", action="append", metavar="DIR")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)

    from ringfence.authority.finding import errors
    from ringfence.authority.policy_lint import lint

    content = read_policy_file(options.file)
    findings = lint(content, options.file, skills=None if options.skills is None else _skills_in(options.skills))
    wrong = len(errors(findings))
    doubtful = len(findings) - wrong
    if options.json:
        from ringfence.capability.canonical import digest_of

        print_json(
            {
                "success": not wrong,
                "file": options.file,
                "policy_version_hash": digest_of(content),
                "errors": wrong,
                "warnings": doubtful,
                "findings": [finding.to_json() for finding in findings],
            }
        )
    else:
        from ringfence.interfaces.cli.render import one_line

        # Keys of the file are quoted in the findings: whoever wrote them must not drive the reader's terminal.
        sys.stdout.writelines(one_line(str(finding)) for finding in findings)
        sys.stdout.write(one_line(f"{options.file}: {_counted(wrong, 'error')}, {_counted(doubtful, 'warning')}"))
        sys.stdout.flush()
    return 2 if wrong else 0


def _skills_in(directories: list[str]) -> list[str]:
    """Return the ids of all skills that calls could name, where these directories are served.

    Raises:
        InvalidRequest: One of them is no directory; then every name would look wrong.
    """
    from ringfence.errors import InvalidRequest
    from ringfence.skills.shelf import shelf_of
    from ringfence.workspaces.home import default_home

    for directory in directories:
        if not Path(directory).is_dir():
            raise InvalidRequest(
                f"--skills {directory}: is no directory", reason="unreadable", fix="name one of skills"
            )
    return sorted(shelf_of(default_home(), tuple(map(Path, directories))).read().skills)


def _replay(words: list[str]) -> int:
    from ringfence.interfaces.cli.evidence_desk import open_desk
    from ringfence.interfaces.cli.evidence_records import JournalRecords
    from ringfence.interfaces.cli.policy_replay import replay_command

    # which home is the business of whoever opens it; what is left is for the replay to read
    parser = StrictParser(prog="ringfence policy replay")
    parser.add_argument("--home", type=Path)
    options, rest = parser.parse_known_args(words)
    desk = open_desk(options.home)
    with ExitStack() as opened:
        journal: list[JournalRecords] = []

        def evidence() -> JournalRecords:
            journal.append(JournalRecords(desk, opened.enter_context(desk.reading())))
            return journal[0]

        code = replay_command(rest, evidence, desk.now_ms)
        for each in journal:
            each.warn()
    return code


def _show(words: list[str]) -> int:
    """Print the exact text of a policy that decisions were made under, or what a mode means."""
    parser = StrictParser(prog="ringfence policy show")
    parser.add_argument("--home", type=Path)
    shown = parser.add_mutually_exclusive_group(required=True)
    shown.add_argument("--hash")
    shown.add_argument("--mode")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    if options.mode is not None:
        from ringfence.interfaces.cli.policy_modes import show_mode

        return show_mode(options.mode, as_json=options.json)
    from ringfence.interfaces.cli.evidence_hand_out import document_command

    home = [] if options.home is None else ["--home", str(options.home)]
    return document_command([*home, *(["--json"] if options.json else []), options.hash])


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
