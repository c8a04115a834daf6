"""Assess a bash script by the programs it starts, however they are wrapped, and by what it hides."""

from __future__ import annotations

from ringfence.authority.levels import RiskLevel
from ringfence.risk.assessment import Refusal, RiskAssessment, Sign, assessed, refused
from ringfence.risk.grammar import GrammarMissing, TooComplex
from ringfence.risk.python_source import assess_python
from ringfence.risk.sensitive import sensitive
from ringfence.risk.shell_programs import SHELLS, family_of, look_behind, program_of
from ringfence.risk.shell_tree import Command, Script, read_script
from ringfence.risk.vocabulary import names

LANGUAGE = "bash"
MAX_NESTING = 6
MAX_COMMANDS = 2000

_PURE = names(
    "echo printf true false : test [ seq expr basename dirname exit return break continue wait sleep pwd cd date cal "
    "factor yes let shift tr rev tac cut paste head tail wc sort uniq fold nl column cmp comm"
)
_READING = names(
    "ls cat grep egrep fgrep find stat file du df diff less more tree which type whoami id uname hostname env "
    "printenv jq "
    "md5sum sha1sum sha256sum b2sum od xxd hexdump strings base64 rg fd awk sed xargs time timeout nice nohup command"
)
_WRITING = names(
    "cp mv mkdir touch ln tee rm rmdir install truncate split patch tar zip unzip gzip gunzip bzip2 xz chmod mktemp git"
)
_NETWORK = names(
    "curl wget nc ncat netcat ssh scp sftp rsync ftp tftp telnet socat ping dig nslookup host traceroute pip pip3 "
    "npm npx "
    "yarn apt apt-get yum dnf apk gem cargo go docker podman kubectl aws gcloud az"
)
_CRITICAL = names(
    "sudo su doas pkexec mkfs fdisk parted mount umount insmod rmmod modprobe iptables nft ip ifconfig route "
    "nmap masscan "
    "tcpdump shutdown reboot halt poweroff init systemctl service crontab at chroot unshare nsenter setcap "
    "useradd usermod "
    "passwd visudo dd shred wipefs chown ptrace gdb strace killall pkill"
)


def assess_bash(code: str) -> RiskAssessment:
    """Return what `code` would start and reach, from its syntax tree alone; nothing of it runs."""
    reader = _Reader()
    try:
        reader.read(code, 0)
    except GrammarMissing as missing:
        return refused(LANGUAGE, Refusal.GRAMMAR_MISSING, str(missing), reader.signs)
    except TooComplex as bound:
        return refused(LANGUAGE, Refusal.TOO_COMPLEX, str(bound), reader.signs)
    if reader.broken:
        return refused(LANGUAGE, Refusal.UNPARSABLE, "not valid bash, or beyond the grammar", reader.signs)
    return assessed(LANGUAGE, reader.signs)


class _Reader:
    def __init__(self) -> None:
        self.signs: list[Sign] = []
        self.broken = False
        self._seen = 0
        self._downloads = False

    def read(self, code: str, depth: int) -> None:
        if depth > MAX_NESTING:
            raise TooComplex(f"scripts nested deeper than {MAX_NESTING}")
        if self.broken:
            return  # already unparsable; what is invalid is slow to parse, so once is enough
        script = read_script(code)
        self.broken = script.broken
        for unclear in script.unclear:
            self._say(unclear.what, RiskLevel.HIGH, "hides what runs from a reader", unclear.line)
        for redirect in script.redirects:
            found = sensitive(redirect.target) if redirect.target is not None else None
            if found is not None:
                self._say(f"names {found[0]}", found[1], "a place programs have no business with", redirect.line)
            elif redirect.writes and redirect.target != "/dev/null":
                self._say("writes a file", RiskLevel.MEDIUM, "changes files", redirect.line)
        for command in script.commands:
            self._judge(command, script, depth)

    def _judge(self, command: Command, script: Script, depth: int) -> None:
        self._seen += 1
        if self._seen > MAX_COMMANDS or len(command.via) > MAX_NESTING:
            raise TooComplex(f"more than {MAX_COMMANDS} commands, or nested deeper than {MAX_NESTING}")
        if command.name is None:
            self._say("computed command", RiskLevel.HIGH, "starts a program known only when it runs", command.line)
        elif command.name in script.functions:
            self._say(f"function {command.name}", RiskLevel.HIGH, "a name the script gives a new meaning", command.line)
        else:
            self._judge_program(command, program_of(command.name))
        for word in command.argv[1:]:
            found = sensitive(word) if word is not None else None
            if found is not None:
                self._say(f"names {found[0]}", found[1], "a place programs have no business with", command.line)
        self._judge_behind(command, script, depth)

    def _judge_behind(self, command: Command, script: Script, depth: int) -> None:
        behind = look_behind(command)
        for what in behind.unclear:
            self._say(what, RiskLevel.HIGH, "runs code this reader does not see", command.line)
        for language, text in behind.inline:
            if language == "python":
                self.signs += assess_python(text).signs
        for nested in behind.commands:
            self._judge(nested, script, depth)
        for text in behind.scripts:
            self.read(text, depth + 1)

    def _judge_program(self, command: Command, program: str) -> None:
        if program in _NETWORK:
            self._downloads = True
        level, why = _level_of(program)
        if level is not RiskLevel.SAFE:
            self._say(program, level, why, command.line)
        interpreter = program in SHELLS or family_of(program) in ("python", "perl", "ruby", "node", "php")
        if interpreter and command.has_input and self._downloads:
            self._say(f"download into {program}", RiskLevel.CRITICAL, "runs what the network sends", command.line)
        if program == "rm" and _is_forced(command):
            self._say("rm -rf", RiskLevel.HIGH, "removes whole trees", command.line)
            if any(word in ("/", "/*", "~", "/home", "/etc", "/usr") for word in command.argv):
                self._say("rm -rf /", RiskLevel.CRITICAL, "removes the system", command.line)

    def _say(self, pattern: str, level: RiskLevel, why: str, line: int) -> None:
        self.signs.append(Sign(pattern, level, why, line))


def _is_forced(command: Command) -> bool:
    options = {letter for word in command.argv[1:] if word and word[0] == "-" and word[1:2] != "-" for letter in word}
    return bool(options & {"r", "R"}) or "--recursive" in command.argv


def _level_of(program: str) -> tuple[RiskLevel, str]:
    if program in _CRITICAL or program.startswith("mkfs."):
        return RiskLevel.CRITICAL, "administers the system"
    if program in _NETWORK:
        return RiskLevel.HIGH, "reaches the network"
    if program in _WRITING:
        return RiskLevel.MEDIUM, "changes files"
    if program in _READING:
        return RiskLevel.LOW, "reads files"
    if program in _PURE:
        return RiskLevel.SAFE, ""
    return RiskLevel.HIGH, "starts a program nobody here knows"
