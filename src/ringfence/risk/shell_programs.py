"""Programs that start other programs: what `env`, `xargs`, `find -exec`, `sh -c` and their like really run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ringfence.capability.process import MULTICALL
from ringfence.capability.process import SHELLS as EVERY_SHELL
from ringfence.dataclass import dataclass, field, replace
from ringfence.risk.shell_tree import Command, Word
from ringfence.risk.vocabulary import names

SHELLS = EVERY_SHELL - MULTICALL
# Shell words that change what later words mean; none of them is a program on a list.
REBINDERS = names(
    "alias unalias hash enable shopt set bind complete declare typeset local export readonly unset read mapfile"
)
# Start the command that begins at some word of theirs; which one, only their own options tell.
STARTERS = names(
    "parallel sem watch su runuser sg script strace ltrace unshare nsenter setpriv systemd-run batch screen tmux ssh "
    "docker podman nerdctl kubectl bwrap proot fakeroot firejail dbus-run-session entr rlwrap start-stop-daemon pkexec "
    "chpst capsh linux32 linux64 setarch i386 x86_64 perf valgrind xterm ld.so prlimit choom uclampset numactl cgexec "
    "unbuffer tini dumb-init gosu su-exec torsocks proxychains proxychains4 xvfb-run catchsegv eatmydata faketime "
    "softlimit setuidgid envdir chronic logsave daemonize"
)
# Take a command apart in ways of their own; naming one on a list says nothing about what it starts.
LAUNCHERS = STARTERS | names(
    "gdb at crontab expect socat run-parts vi vim view ex ed emacs nano less more man tclsh m4 awk gawk mawk nawk "
    "original-awk bc dc sqlite3 psql mysql"
)
_INTERPRETERS = {
    "python": ("c", names("-m --command")),
    "pypy": ("c", names("-m")),
    "node": ("epr", names("--eval --print --require --import --loader --experimental-loader -i --interactive")),
    "nodejs": ("epr", names("--eval --print --require --import")),
    "deno": ("", names("eval repl run")),
    "bun": ("e", names("--eval -p --print x")),
    "perl": ("eEMmnpis", names("-d")),
    "ruby": ("enprIs", names("--eval")),
    "php": ("rBRE", names("--run")),
    "lua": ("eli", names("-")),
    "rscript": ("e", names("-")),
}
_VALUE_OPTIONS = {"python": names("-W -X"), "pypy": names("-W -X")}
# Options with which a program otherwise harmless starts another one, or writes where it is told.
_STARTING_OPTIONS = {
    "tar": names("--checkpoint-action --to-command --use-compress-program -I -F --info-script --new-volume-script"),
    "sort": names("--compress-program -o --output"),
    "split": names("--filter"),
    "git": names("-c --config-env --exec-path --upload-pack --receive-pack --ext-diff --open-files-in-pager -O"),
    "rsync": names("-e --rsh --rsync-path"),
    "zip": names("-T -TT --unzip-command"),
    "sed": names("-i --in-place -f --file -e --expression -s"),
    "date": names("-s --set"),
    "make": names("--eval -f --file --makefile SHELL"),
    "npm": names("exec x run-script"),
    "rg": names("--pre --hostname-bin"),
    "fd": names("-x --exec -X --exec-batch"),
}


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """How to find the command behind a prefix: its flags, its options with a value, and operands before it."""

    flags: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    operands: int = 0
    assignments: bool = False


_WRAPPERS = {
    "env": _Wrapper(names("-i - -0 --null --ignore-environment -v --debug"), names("-u --unset -C --chdir"), 0, True),
    "sudo": _Wrapper(names("-n -E -H -k -S -b -P"), names("-u -g -p -C -h -r -t -U --user --group"), 0, True),
    "doas": _Wrapper(names("-n"), names("-u -C")),
    "timeout": _Wrapper(
        names("-v --verbose --preserve-status --foreground -f -p"), names("-k -s --signal --kill-after"), 1
    ),
    "nice": _Wrapper(values=names("-n --adjustment")),
    "ionice": _Wrapper(names("-t --ignore"), names("-c -n --class --classdata")),
    "chrt": _Wrapper(names("-b -f -i -o -r"), names("-T -P -D"), 1),
    "taskset": _Wrapper(names("-a -c"), operands=1),
    "nohup": _Wrapper(),
    "setsid": _Wrapper(names("-c -f -w --fork --wait --ctty")),
    "stdbuf": _Wrapper(values=names("-i -o -e --input --output --error")),
    "time": _Wrapper(names("-p -v -a"), names("-f -o")),
    "chroot": _Wrapper(names("--skip-chdir"), names("--userspec --groups"), 1),
    "command": _Wrapper(names("-p")),
    "builtin": _Wrapper(),
    "exec": _Wrapper(names("-c -l -cl -lc"), names("-a")),
    "coproc": _Wrapper(),
    "xargs": _Wrapper(
        names("-0 --null -r --no-run-if-empty -t --verbose -x --exit -i -l"),
        names("-a -d -E -I -L -n -P -s --arg-file --delimiter --max-args --max-procs --max-lines --replace"),
    ),
    "flock": _Wrapper(names("-s -x -e -u -n -o -F"), names("-w -E --timeout"), 1),
}
_FIND_RUNS = names("-exec -execdir -ok -okdir")
_FIND_WRITES = names("-fprint -fprint0 -fprintf -fls")
_SHELL_VALUES = names("-o +o -O +O --rcfile --init-file")
_STANDARD_INPUT = names("/dev/stdin /dev/fd/0 /proc/self/fd/0")
_GIT_RUNS = names("foreach run -x --exec")
_MOST_PERHAPS = 64


@dataclass(slots=True)
class Behind:
    """What a command starts: commands, scripts for another shell, inline programs, or something nobody can tell."""

    commands: list[Command] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    inline: list[tuple[str, str]] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    perhaps: list[Command] = field(default_factory=list)
    """Beside what is unclear: commands that it may be, which nobody allows and somebody may deny."""
    perhaps_scripts: list[str] = field(default_factory=list)


def program_of(word: str) -> str:
    """Return the program a command name leads to: the last part of its path."""
    return word.rsplit("/", 1)[-1]


def family_of(program: str) -> str:
    """Return an interpreter's name without its version: `python3.12` is python."""
    return program.lower().rstrip("0123456789.") or program


def look_behind(command: Command) -> Behind:
    """Return what `command` starts besides itself."""
    behind = Behind()
    name = command.name
    if name is None:
        return behind
    program = program_of(name)
    reader = _reader_of(program)
    if reader is not None:
        reader(command, program, behind)
    return behind


_Reading = Callable[[Command, str, Behind], None]


def _reader_of(program: str) -> _Reading | None:
    if program in _WRAPPERS:
        return _read_wrapper
    if program in SHELLS:
        return _read_shell
    if family_of(program) in _INTERPRETERS:
        return _read_interpreter
    if program in _STARTING_OPTIONS:
        return _read_starting_options
    if program in LAUNCHERS or program.startswith("ld-") or program in REBINDERS:
        return _read_launcher
    if program in MULTICALL:
        return _read_multicall
    return {"eval": _read_eval, "trap": _read_trap, "find": _read_find, "source": _read_source, ".": _read_source}.get(
        program
    )


def _inner(command: Command, argv: tuple[Word, ...], program: str) -> Command:
    return replace(command, argv=argv, via=(*command.via, program))


def _read_wrapper(command: Command, program: str, behind: Behind) -> None:
    wrapper, rest = _WRAPPERS[program], command.argv[1:]
    at, operands = 0, wrapper.operands
    while at < len(rest):
        word = rest[at]
        if word is None:
            behind.unclear.append(f"{program} runs something only the shell can expand")
            _suspect(command, rest[at:], program, behind)
            return
        if word == "--":
            at += 1
        elif word in wrapper.values:
            at += 2
            continue
        elif word in wrapper.flags or _attached(word, wrapper.values) or _is_priority(program, word):
            at += 1
            continue
        elif word.startswith("-") and len(word) > 1:
            behind.unclear.append(f"{program} with the option {word}")
            _suspect(command, rest[at:], program, behind)
            return
        elif wrapper.assignments and _is_assignment(word):
            behind.unclear.append(f"{program} changes the environment")
            at += 1
            continue
        elif operands:
            operands -= 1
            at += 1
            continue
        break
    if wrapper.operands and rest[at - 1 : at] == ("--",):
        at += operands
    nested = rest[at:]
    if not nested:
        return
    if program == "xargs":
        nested = (*nested, None)  # its input adds arguments that nobody can read here
    if program == "coproc":
        _suspect(command, nested[1:], program, behind)  # the first word may be the name of what follows
    behind.commands.append(_inner(command, nested, program))


def _suspect(command: Command, words: tuple[Word, ...], program: str, behind: Behind) -> None:
    """Name every command that may begin in `words`, where nobody can tell at which of them it does."""
    for at, word in enumerate(words[:_MOST_PERHAPS]):
        if word is None:
            continue
        behind.perhaps.append(_inner(command, words[at:], program))
        # one word may be a script: of `-c`, of `--split-string=`, or joined by whoever starts it
        value = word.partition("=")[2] if word.startswith("--") else word[2:] if word.startswith("-") else word
        if " " in value:
            behind.perhaps_scripts.append(value)


def _attached(word: str, values: frozenset[str]) -> bool:
    """Whether `word` is an option with its value in the same word: `-n5`, `--signal=KILL`."""
    if word.startswith("--"):
        return word.partition("=")[0] in values and "=" in word
    return word[:2] in values and len(word) > 2


def _is_priority(program: str, word: str) -> bool:
    return program == "nice" and word.lstrip("-").isdigit() and word.startswith("-")


def _is_assignment(word: str) -> bool:
    before, equals, _ = word.partition("=")
    return bool(equals) and before.replace("_", "a").isalnum()


def _read_shell(command: Command, program: str, behind: Behind) -> None:
    rest = command.argv[1:]
    is_value = False
    for at, word in enumerate(rest):
        if is_value:
            is_value = False
            continue
        if word is None:
            behind.unclear.append(f"{program} runs something only the shell can expand")
            return
        if word in _SHELL_VALUES:
            is_value = True
            continue
        if word in _STANDARD_INPUT or word == "-s":
            break
        if word.startswith("-") and not word.startswith("--") and "c" in word:
            code = next((part for part in rest[at + 1 :] if part is None or not part.startswith(("-", "+"))), None)
            if code is None:
                behind.unclear.append(f"{program} -c with text only the shell can expand")
            else:
                behind.scripts.append(code)
            return
        if not word.startswith(("-", "+")):
            behind.unclear.append(f"{program} runs a script that is not at hand")
            return
    _read_program_from_input(command, program, "bash", behind)


def _read_program_from_input(command: Command, program: str, language: str, behind: Behind) -> None:
    if command.document is None:
        behind.unclear.append(f"{program} reads its program from its input")
    elif language == "bash":
        behind.scripts.append(command.document)
    else:
        behind.inline.append((language, command.document))


def _read_interpreter(command: Command, program: str, behind: Behind) -> None:
    family = family_of(program)
    letters, long_options = _INTERPRETERS[family]
    language = {"python": "python", "pypy": "python", "node": "javascript", "nodejs": "javascript"}.get(family, "")
    takes_value = _VALUE_OPTIONS.get(family, frozenset())
    skip = False
    for at, word in enumerate(command.argv[1:], 1):
        if skip:
            skip = False
        elif word is None:
            behind.unclear.append(f"{program} runs something only the shell can expand")
            return
        elif word in takes_value:
            skip = True
        elif word.partition("=")[0] in long_options or _has_letter(word, letters):
            behind.unclear.append(f"{program} {word} runs code from its command line")
            code = command.argv[at + 1] if at + 1 < len(command.argv) else None
            if language and code is not None:
                behind.inline.append((language, code))
            return
        elif word != "-" and not word.startswith("-"):
            return  # a script: the list that names the interpreter speaks for it
    behind.unclear.append(f"{program} reads its program from its input")
    if command.document is not None and language:
        behind.inline.append((language, command.document))


def _has_letter(word: str, letters: str) -> bool:
    return word.startswith("-") and not word.startswith("--") and any(letter in word[1:] for letter in letters)


def _read_starting_options(command: Command, program: str, behind: Behind) -> None:
    options = _STARTING_OPTIONS[program]
    for at, word in enumerate(command.argv[1:], 1):
        if word is None:
            continue
        stem = word.partition("=")[0]
        # GNU programs take any unambiguous beginning of a long option
        if any(_same_option(stem, option) for option in options):
            behind.unclear.append(f"{program} {word} starts or writes something else")
            _suspect(command, command.argv[at : at + 2], program, behind)
        elif program == "git" and word in _GIT_RUNS:
            behind.unclear.append(f"git {word} may start something else")
            _suspect(command, command.argv[at + 1 :], program, behind)
        elif program == "sed" and not word.startswith("-") and not _is_plain_sed(word):
            behind.unclear.append("sed with a script that may write or execute")
            return
        elif program == "sed" and not word.startswith("-"):
            return


def _same_option(stem: str, option: str) -> bool:
    if option.startswith("--"):
        return len(stem) > 3 and option.startswith(stem)
    return stem == option or (len(option) == 2 and option[0] == "-" and stem.startswith(option))


def _is_plain_sed(script: str) -> bool:
    """Whether a sed script is one substitution with harmless flags, or prints lines by number."""
    if script[:1] == "s" and len(script) > 3 and script[1] not in "\\\n" and "\\" not in script and "\n" not in script:
        parts = script.split(script[1])
        return len(parts) == 4 and set(parts[3]) <= set("gpiI0123456789")
    return bool(script) and set(script) <= set("0123456789,$pdq")


def _read_launcher(command: Command, program: str, behind: Behind) -> None:
    what = "changes what other words mean" if program in REBINDERS else "starts programs in a way of its own"
    behind.unclear.append(f"{program} {what}")
    if program in STARTERS or program.startswith("ld-"):
        _suspect(command, command.argv[1:], program, behind)


def _read_multicall(command: Command, program: str, behind: Behind) -> None:
    nested = command.argv[1:]
    if nested:
        behind.commands.append(_inner(command, nested, program))


def _read_eval(command: Command, program: str, behind: Behind) -> None:
    given = command.argv[2:] if command.argv[1:2] == ("--",) else command.argv[1:]
    words = [word for word in given if word is not None]
    if len(words) < len(given):
        behind.unclear.append(f"{program} of text only the shell can expand")
    elif words:
        behind.scripts.append(" ".join(words))


def _read_trap(command: Command, program: str, behind: Behind) -> None:
    words = [word for word in command.argv[1:] if word is None or word not in ("--", "-")]
    if not words or (words[0] or "").startswith("-"):
        return
    if words[0] is None:
        behind.unclear.append(f"{program} of text only the shell can expand")
    elif len(words) > 1:
        behind.scripts.append(words[0])


def _read_source(command: Command, program: str, behind: Behind) -> None:
    behind.unclear.append(f"{program} runs a script that is not at hand")
    if command.document is not None and _STANDARD_INPUT.intersection(command.argv[1:2]):
        behind.perhaps_scripts.append(command.document)


def _read_find(command: Command, program: str, behind: Behind) -> None:
    words = iter(command.argv)
    for word in words:
        if word == "-delete":
            behind.commands.append(_inner(command, ("rm", "-r", "-f", None), program))
        elif word in _FIND_WRITES:
            behind.unclear.append(f"find {word} writes a file")
        elif word in _FIND_RUNS:
            # `words` goes on behind the command, as find itself does; reading it twice would be quadratic
            nested = tuple(None if part is None or "{}" in part else part for part in _until_end(words))
            if nested:
                behind.commands.append(_inner(command, nested, program))


def _until_end(words: Iterator[Word]) -> Iterator[Word]:
    before: Word = None
    for word in words:
        if word == ";" or (word == "+" and before == "{}"):
            return
        yield word
        before = word
