"""Judge a shell script by the policy's command lists, on the parsed tree: a hint and an early refusal.

The kernel is the boundary. This says early, and with a reason, what the lists already forbid; what it cannot see is
`UNKNOWN`, and an allow-list never lets that pass.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from functools import lru_cache

from ringfence.authority.levels import Rising
from ringfence.dataclass import dataclass
from ringfence.risk.grammar import GrammarMissing, TooComplex
from ringfence.risk.sensitive import sensitive
from ringfence.risk.shell_programs import family_of, look_behind, program_of
from ringfence.risk.shell_tree import Command, Redirect, Script, read_script
from ringfence.risk.vocabulary import names

MAX_NESTING = 8
MAX_COMMANDS = 2000
MAX_UNCLEAR = 32  # one already decides; these explain

# Shell words that reach nothing: no list needs to name them.
_INERT = names(": true false exit return break continue wait pwd")
# Shell words that only stand before a command; the command behind them is judged instead.
_TRANSPARENT = names("command builtin exec")
_SAME_PROGRAM = {
    "ncat": "nc",
    "netcat": "nc",
    "nc.traditional": "nc",
    "nc.openbsd": "nc",
    "python3": "python",
    "nodejs": "node",
    "sudoedit": "sudo",
    "wget2": "wget",
    "slogin": "ssh",
}
_SAME_FLAGS = {"rm": {"R": "r", "--recursive": "r", "--force": "f"}}
_SAFE_TARGETS = names("/dev/null /dev/stdout /dev/stderr /dev/stdin /dev/fd/0 /dev/fd/1 /dev/fd/2")


class CommandVerdict(Rising):
    """What the lists say; the strictest answer about any part is the answer about the whole."""

    ALLOWED = "allowed"
    UNKNOWN = "unknown"
    DENIED = "denied"


@dataclass(frozen=True, slots=True)
class CommandLists:
    """`allowed_commands` and `denied_commands` of a policy; None is no allow-list, an empty one allows nothing."""

    allowed: tuple[str, ...] | None = None
    denied: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandFinding:
    """The answer about one command or construct, with the rule that gave it."""

    verdict: CommandVerdict
    subject: str
    reason: str
    rule: str | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class CommandJudgement:
    """Every answer about a script."""

    findings: tuple[CommandFinding, ...]
    unread: bool = False
    """Whether some of it was not looked at, for want of a grammar or for its size: no list can speak about that."""

    @property
    def verdict(self) -> CommandVerdict:
        """Return the strictest answer; a script about which nothing could be said is unknown."""
        return max((finding.verdict for finding in self.findings), default=CommandVerdict.UNKNOWN)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Say what stands against it, the gravest first."""
        against = [finding for finding in self.findings if finding.verdict is not CommandVerdict.ALLOWED]
        ordered = sorted(against, key=lambda finding: -finding.verdict.rank)
        return tuple(dict.fromkeys(f"{finding.subject}: {finding.reason}" for finding in ordered))


def judge_command(script: str, lists: CommandLists) -> CommandJudgement:
    """Return what `lists` say about every command that `script` could start."""
    judge = _Judge(lists)
    judge.judge_script(script, depth=0)
    return CommandJudgement(tuple(judge.findings), judge.unread)


def judge_argv(argv: tuple[str, ...], lists: CommandLists) -> CommandJudgement:
    """Return what `lists` say about a command that no shell reads."""
    judge = _Judge(lists)
    judge.judge_command(Command(argv), Script(), depth=0)
    return CommandJudgement(tuple(judge.findings), judge.unread)


class _Judge:
    def __init__(self, lists: CommandLists) -> None:
        self.findings: list[CommandFinding] = []
        # by its program: a list of hundreds must not cost a look at each of them for every word of a script
        self._denied: dict[str, list[_Rule]] = {}
        for rule in map(_rule, lists.denied):
            self._denied.setdefault(rule.program, []).append(rule)
        self._allowed = None if lists.allowed is None else [_rule(entry) for entry in lists.allowed]
        self._judged = 0
        self._broken = False
        self.unread = False

    def judge_script(self, code: str, depth: int) -> None:
        if depth > MAX_NESTING:
            self.unread = True
            self._unknown("script", f"nested deeper than {MAX_NESTING}")
            return
        if self._broken:
            # only what is not valid is slow to parse, so a script full of invalid scripts costs as much as one
            self.unread = True
            self._unknown("script", "not judged: it is inside, or beside, one that is not valid bash")
            return
        try:
            script = read_script(code)
        except GrammarMissing as missing:
            self.unread = True
            self._unknown("script", f"not judged: {missing}")
            return
        except TooComplex as bound:
            self.unread = True
            self._broken = True
            self._unknown("script", f"not judged: {bound}")
            return
        self._broken = script.broken
        if script.broken:
            self._unknown("script", "not valid bash, or beyond the grammar")
        for unclear in script.unclear[:MAX_UNCLEAR]:
            self._unknown("script", unclear.what, unclear.line)
        for redirect in script.redirects:
            self._judge_redirect(redirect)
        for command in script.commands:
            self.judge_command(command, script, depth)

    def judge_command(self, command: Command, script: Script, depth: int) -> None:
        self._judged += 1
        if self._judged > MAX_COMMANDS or len(command.via) > MAX_NESTING:
            self.unread = True
            self._unknown("script", f"more than {MAX_COMMANDS} commands, or nested deeper than {MAX_NESTING}")
            return
        self._judge_words(command, script)
        behind = look_behind(command)
        for nested in behind.commands:
            self.judge_command(nested, script, depth)
        for code in behind.scripts:
            self.judge_script(code, depth + 1)
        for suspected in behind.perhaps:
            self._judge_denial(suspected)
        for code in behind.perhaps_scripts:
            self.judge_script(code, depth + 1)
        if behind.unclear and not self._is_spelled_out(command):
            for what in behind.unclear:
                self._unknown(_shown(command), what, command.line)

    def _judge_words(self, command: Command, script: Script) -> None:
        subject = _shown(command)
        name = command.name
        if name is None:
            self._unknown(subject, "the command itself is known only when it runs", command.line)
            return
        for rule in self._denials_of(name):
            if rule.match(command.argv) is None:
                self._unknown(subject, f"may be {rule.text!r}: arguments are known only when it runs", command.line)
        self._judge_denial(command)
        self._judge_arguments(command, subject)
        self._judge_allowance(command, script, subject, name)

    def _judge_denial(self, command: Command) -> None:
        for rule in self._denials_of(command.name):
            if rule.match(command.argv):
                self._add(CommandVerdict.DENIED, _shown(command), f"{rule.text!r} is denied", rule.text, command.line)

    def _denials_of(self, name: str | None) -> list[_Rule]:
        """Return what is denied of a program, by whatever path and under each of its names."""
        if not name or not self._denied:
            return []
        program = program_of(name)
        names = dict.fromkeys((program, _SAME_PROGRAM.get(program, program), family_of(program)))
        return [rule for each in names for rule in self._denied.get(each, ())]

    def _judge_arguments(self, command: Command, subject: str) -> None:
        for word in command.argv[1:]:
            if word is None:
                self._unknown(subject, "an argument is known only when it runs", command.line)
                continue
            for part in (word, word.partition("=")[2]):
                found = sensitive(part)
                if found is not None:
                    self._unknown(subject, f"names {found[0]}", command.line)

    def _judge_allowance(self, command: Command, script: Script, subject: str, name: str) -> None:
        if name in script.functions:
            self._unknown(subject, "a function, or the program of that name if it is not defined yet", command.line)
        elif name in _INERT:
            self._add(CommandVerdict.ALLOWED, subject, "reaches nothing", None, command.line)
        elif self._allowed is None:
            self._add(CommandVerdict.ALLOWED, subject, "there is no allow-list", None, command.line)
        elif name in _TRANSPARENT:
            self._add(CommandVerdict.ALLOWED, subject, "judged by the command behind it", None, command.line)
        else:
            self._ask_allow_list(self._allowed, command, subject)

    def _ask_allow_list(self, allowed: list[_Rule], command: Command, subject: str) -> None:
        for rule in allowed:
            if rule.covers(command.argv):
                self._add(CommandVerdict.ALLOWED, subject, f"{rule.text!r} is allowed", rule.text, command.line)
                return
        if any(rule.is_program_of(command.argv) for rule in allowed):
            # `/tmp/ls` is not the `ls` of the list, and `git push` not its `git status`
            self._unknown(subject, "the list allows this program under another path or with other words", command.line)
            return
        self._add(CommandVerdict.DENIED, subject, "not on the allow-list", None, command.line)

    def _is_spelled_out(self, command: Command) -> bool:
        """Whether an allow-list entry of several words covers it: `python -m pytest` says what it starts."""
        return any(rule.is_spelled_out and rule.covers(command.argv) for rule in self._allowed or ())

    def _judge_redirect(self, redirect: Redirect) -> None:
        subject = f"{redirect.operator} {redirect.target or '…'}"
        if redirect.copies_descriptor or redirect.target in _SAFE_TARGETS:
            return
        if redirect.target is None:
            self._unknown(subject, "a file known only when it runs", redirect.line)
        elif sensitive(redirect.target) is not None:
            self._unknown(subject, "a sensitive file", redirect.line)
        elif redirect.writes and not _is_workspace_path(redirect.target):
            self._unknown(subject, "writes outside the workspace", redirect.line)

    def _unknown(self, subject: str, reason: str, line: int = 0) -> None:
        self._add(CommandVerdict.UNKNOWN, subject, reason, None, line)

    def _add(self, verdict: CommandVerdict, subject: str, reason: str, rule: str | None, line: int) -> None:
        self.findings.append(CommandFinding(verdict, subject, reason, rule, line))


class _Rule:
    """One entry of a list: a program, and words that must come with it."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            words = shlex.split(text)
        except ValueError:
            words = text.split()
        self._name = words[0] if words else ""
        self._words = words[1:]

    @property
    def is_spelled_out(self) -> bool:
        """Whether it names more than a program."""
        return bool(self._words)

    @property
    def program(self) -> str:
        """Which program it is about."""
        return program_of(self._name)

    def match(self, argv: tuple[str | None, ...]) -> bool | None:
        """Whether its program is run with all its words, in any order; None if that depends on unknown ones."""
        given = argv[1:]
        if not self._missing(given):
            return True
        return None if None in given else False

    def covers(self, argv: tuple[str | None, ...]) -> bool:
        """Whether an allowed command is exactly this one, with its words first and in order."""
        name = argv[0]
        if name is None or (name != self._name and _SAME_PROGRAM.get(name, name) != self._name):
            return False
        return list(argv[1 : 1 + len(self._words)]) == self._words

    def is_program_of(self, argv: tuple[str | None, ...]) -> bool:
        """Whether the program has this name, under any path."""
        return argv[0] is not None and program_of(argv[0]) == program_of(self._name)

    def _missing(self, given: tuple[str | None, ...]) -> bool:
        program = program_of(self._name)
        flags = _flags(program, given)
        for word in self._words:
            if word.startswith("-"):
                if not _flags(program, (word,)) <= flags:
                    return True
            elif word not in given:
                return True
        return False


@lru_cache(maxsize=4096)
def _rule(text: str) -> _Rule:
    """Return the entry `text`, taken apart once: it is the same in every policy that writes it."""
    return _Rule(text)


def _flags(program: str, words: Iterable[str | None]) -> set[str]:
    """Return the options among `words`, clusters taken apart, so that `-fr` and `-r --force` are one."""
    same = _SAME_FLAGS.get(program, {})
    flags: set[str] = set()
    for word in words:
        if word is None or not word.startswith("-") or word == "-":
            continue
        if word.startswith("--"):
            stem = word.partition("=")[0]
            full = [option for option in same if len(stem) > 2 and option.startswith(stem)]
            flags.add(same[full[0]] if full else stem)
        else:
            flags |= {same.get(letter, letter) for letter in word[1:]}
    return flags


def _is_workspace_path(path: str) -> bool:
    parts = path.split("/")
    if ".." in parts or path.startswith(("~", "-")) or parts[-1].startswith("."):
        return False
    return not path.startswith("/") or path.startswith(("/workspace/", "/tmp/"))  # noqa: S108  the box's own


def _shown(command: Command) -> str:
    """Name a command by its program; its arguments may hold what nobody else is to read, and errors go to logs."""
    program = command.argv[0] if command.argv else None
    words = "…" if program is None else program if len(command.argv) == 1 else f"{program} …"
    text = words if len(words) <= 120 else words[:119] + "…"
    return f"{text} (via {' '.join(command.via)})" if command.via else text
