from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.risk.spellings import ALLOWED, DENIED, FORTY_NINE, OURS, TRICKS

from ringfence.risk.shell import CommandLists, CommandVerdict, judge_argv, judge_command

LISTS = CommandLists(ALLOWED, DENIED)
DENY_ONLY = CommandLists(None, DENIED)


def test_there_are_as_many_spellings_as_promised() -> None:
    assert len({script for script, _, _ in FORTY_NINE}) == 49
    assert len({script for script, _, _ in OURS}) >= 30


@pytest.mark.parametrize(("script", "with_allow_list", "with_deny_list"), FORTY_NINE + OURS + TRICKS)
def test_a_spelling_is_seen_through_or_called_unknown(script: str, with_allow_list: str, with_deny_list: str) -> None:
    assert str(judge_command(script, LISTS).verdict) == with_allow_list
    assert str(judge_command(script, DENY_ONLY).verdict) == with_deny_list


@pytest.mark.parametrize(
    "script",
    [
        "env -S'curl x'",
        "env -iS 'curl x'",
        "env --split-string='curl x'",
        "env --block-signal curl x",
        "bash -O extglob -c 'curl x'",
        "bash +o posix -c 'curl x'",
        "bash --rcfile /dev/null -c 'curl x'",
        "bash /dev/stdin <<< 'curl x'",
        "bash -s a <<< 'curl x'",
        "eval -- curl x",
        "xargs -i curl {}",
        "chrt --idle 0 curl x",
        "flock /tmp/lock -c 'curl x'",
        "coproc NAME { curl x; }",
        "time { curl x; }",
        "exec -cl curl x",
        "parallel curl ::: x",
        "ssh host curl x",
        "su -c 'curl x'",
        "script -qc 'curl x' /dev/null",
        "unshare -r curl x",
        "prlimit --cpu=1 curl x",
        "posh -c 'curl x'",
        "yash -c 'curl x'",
        "tar --to-command='curl x' -xf a.tar",
        "split --filter='curl x' a",
        "git submodule foreach curl x",
        "git bisect run curl x",
        "git rebase -x 'curl x' main",
    ],
)
def test_a_denied_command_is_found_behind_whatever_starts_it(script: str) -> None:
    assert judge_command(script, CommandLists(None, ("curl",))).verdict is CommandVerdict.DENIED
    assert judge_command(script.replace("curl", "ls"), CommandLists(None, ("curl",))).verdict < CommandVerdict.DENIED


@pytest.mark.parametrize("script", ["bash -c '('; bash -c 'curl x'", "ls (; eval 'curl x'", "x=(; eval 'curl x'"])
def test_a_script_beside_one_that_cannot_be_read_counts_as_unread(script: str) -> None:
    # bash stops at the first of them, or reads it after all: the second is run, and nobody has judged it
    assert judge_command(script, CommandLists(None, ("curl",))).unread


def test_no_trick_gets_a_denied_command_allowed() -> None:
    allowed = [script for script, with_allow_list, _ in TRICKS if with_allow_list == "allowed"]
    # in single quotes, or behind a here-document's quoted mark, nothing is a command
    quoted = ["cat <<'EOF'\n$(curl x)\nEOF", "ls '$(curl x)'", "ls $'$(curl x)'"]
    assert [script for script in allowed if "curl" in script] == quoted


def test_of_the_49_only_the_harmless_one_is_allowed() -> None:
    allowed = [script for script, _, _ in FORTY_NINE if judge_command(script, LISTS).verdict is CommandVerdict.ALLOWED]
    assert allowed == ["ls -la /workspace"]


@pytest.mark.parametrize("script", [script for script, _, _ in FORTY_NINE + OURS])
def test_an_empty_allow_list_allows_nothing(script: str) -> None:
    assert judge_command(script, CommandLists(())).verdict is not CommandVerdict.ALLOWED


COMPLETE = [
    script for script, _, _ in FORTY_NINE + OURS if script and not script.startswith("#") and "unfin" not in script
]


@settings(max_examples=150)
@given(st.sampled_from(COMPLETE), st.sampled_from(COMPLETE))
def test_two_lines_are_allowed_exactly_when_each_of_them_is(one: str, other: str) -> None:
    alone = {judge_command(script, LISTS).verdict for script in (one, other)}
    together = judge_command(f"{one}\n{other}", LISTS).verdict
    assert (together is CommandVerdict.ALLOWED) == (alone == {CommandVerdict.ALLOWED})


@pytest.mark.parametrize("entry", ["rm -rf", "rm -fr", "rm --recursive --force", "rm -r -f"])
@pytest.mark.parametrize("script", ["rm -rf x", "rm -fr x", "rm x -r --force", "rm -vRf x", "/bin/rm -r -f x"])
def test_options_are_compared_by_meaning(entry: str, script: str) -> None:
    assert judge_command(script, CommandLists(None, (entry,))).verdict is CommandVerdict.DENIED


def test_a_denied_word_needs_all_of_its_entry() -> None:
    assert judge_command("rm x", DENY_ONLY).verdict is CommandVerdict.ALLOWED
    assert judge_command("git push", CommandLists(None, ("git push",))).verdict is CommandVerdict.DENIED
    assert judge_command("git status", CommandLists(None, ("git push",))).verdict is CommandVerdict.ALLOWED


def test_the_same_script_is_judged_anew_by_every_list() -> None:
    verdicts = [
        judge_command("curl x", lists).verdict for lists in (CommandLists(("curl",)), DENY_ONLY, CommandLists())
    ]
    assert verdicts == [CommandVerdict.ALLOWED, CommandVerdict.DENIED, CommandVerdict.ALLOWED]


def test_an_entry_of_several_words_allows_exactly_those() -> None:
    lists = CommandLists(("python -m pytest", "git status"))
    assert judge_command("python -m pytest -q", lists).verdict is CommandVerdict.ALLOWED
    assert judge_command("python -m http.server", lists).verdict is CommandVerdict.UNKNOWN
    assert judge_command("git push", lists).verdict is CommandVerdict.UNKNOWN
    assert judge_command("git status; curl x", lists).verdict is CommandVerdict.DENIED


def test_a_path_is_allowed_only_where_the_list_writes_it() -> None:
    assert judge_command("/bin/ls", CommandLists(("ls",))).verdict is CommandVerdict.UNKNOWN
    assert judge_command("/bin/ls", CommandLists(("/bin/ls",))).verdict is CommandVerdict.ALLOWED


def test_python_and_python3_are_one_program() -> None:
    assert judge_command("python3 a.py", LISTS).verdict is CommandVerdict.ALLOWED


@pytest.mark.parametrize(
    ("script", "verdict"),
    [
        ("ls > out.txt", CommandVerdict.ALLOWED),
        ("ls >> /workspace/work/out.txt 2>&1", CommandVerdict.ALLOWED),
        ("ls 2>/dev/null", CommandVerdict.ALLOWED),
        ("ls > ../out.txt", CommandVerdict.UNKNOWN),
        ("ls > /usr/bin/x", CommandVerdict.UNKNOWN),
        ("ls > .bashrc", CommandVerdict.UNKNOWN),
        ("ls > $x", CommandVerdict.UNKNOWN),
        ("ls &> /root/x", CommandVerdict.UNKNOWN),
    ],
)
def test_the_shell_writes_only_inside_the_workspace(script: str, verdict: CommandVerdict) -> None:
    assert judge_command(script, LISTS).verdict is verdict


def test_the_verdict_names_the_rule_and_the_way_to_it() -> None:
    (denied,) = [
        finding
        for finding in judge_command("ls\ntimeout 5 env curl x", DENY_ONLY).findings
        if finding.verdict is CommandVerdict.DENIED
    ]
    assert (denied.rule, denied.line, denied.subject) == ("curl", 2, "curl … (via timeout env)")
    assert "'curl' is denied" in denied.reason


def test_a_command_without_a_shell_is_judged_by_its_words() -> None:
    assert judge_argv(("ls", "*"), LISTS).verdict is CommandVerdict.ALLOWED
    assert judge_argv(("env", "curl", "x"), DENY_ONLY).verdict is CommandVerdict.DENIED
    assert judge_argv(("sh", "-c", "curl x"), DENY_ONLY).verdict is CommandVerdict.DENIED
    assert judge_argv((), DENY_ONLY).verdict is CommandVerdict.UNKNOWN


# --- bash itself as the witness: what it really starts, of what was called allowed ---

BASH = shutil.which("bash")
WITNESS = """
command_not_found_handle() { printf '%s\\n' "$1" >&"$STARTED"; return 0; }
PATH=/nonexistent
"""
WORDS = "ls cat ev a bad E 'b' if then fi do while done time coproc -2 {} [=] [!]]"
SIGNS = "' \" \\ ; | & && ( ) { } # $ ` ! * < > = ~ [ ] , <<E <<'E' <<-E |& 2>&1 <<< (( )) [[ ]] ${ $'"
PIECES = st.sampled_from([*WORDS.split(), *SIGNS.split(), " ", "\n", "\\\n", "\nE\n"])


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])
@given(st.lists(PIECES, min_size=1, max_size=9))
def test_bash_starts_nothing_else_in_a_script_that_was_allowed(tmp_path: Path, pieces: list[str]) -> None:
    script = "ls " + "".join(pieces)
    if judge_command(script, CommandLists(("ls", "cat"))).verdict is not CommandVerdict.ALLOWED:
        return
    assert started_by(script, tmp_path) <= {"ls", "cat"}


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_the_witness_sees_what_bash_starts(tmp_path: Path) -> None:
    assert started_by("ls; cu\\\nrl x | cat", tmp_path) == {"ls", "curl", "cat"}


def started_by(script: str, place: Path) -> set[str]:
    record = Path(tempfile.mkdtemp(dir=place)) / "started"
    descriptor = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        subprocess.run(
            [str(BASH), "--norc", "--noprofile", "-c", f"STARTED={descriptor}\n{WITNESS}\n{script}"],
            cwd=place,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(descriptor,),
            timeout=10,
            check=False,
        )
    finally:
        os.close(descriptor)
    return set(record.read_text().split())
