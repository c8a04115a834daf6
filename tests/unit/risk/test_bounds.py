"""Hostile input costs its judge a bounded effort: no crash, no recursion, no answer below HIGH or unknown."""

from __future__ import annotations

import shlex
import threading

import pytest

from ringfence.authority.levels import RiskLevel
from ringfence.risk.assessment import RiskAssessment
from ringfence.risk.policy import UnifiedRiskPolicy
from ringfence.risk.shell import CommandLists, CommandVerdict, judge_command

LISTS = CommandLists(("ls",), ("curl",))


def nested_scripts(depth: int) -> str:
    script = "curl x"
    for _ in range(depth):
        script = "bash -c " + shlex.quote(script)
    return script


PYTHON = {
    "a megabyte of parentheses": "(" * 1_000_000,
    "as many parentheses as Python takes": "(" * 199,
    "unfinished dictionaries": "{a:b,c:" * 199,
    "lambdas": "lambda: " * 16_000,
    "minus signs": "-" * 130_000 + "1",
    "a long sum": "+".join("1" * 65_000),
    "attributes": "a" + ".a" * 65_000,
    "calls": "a" + "()" * 65_000,
    "subscripts": "a" + "[0]" * 43_000,
    "joined texts": "x['a'+" + "'a'+" * 30_000 + "'a']",
    "getattr in getattr": "getattr(" * 90 + "x" + ",'a')" * 90,
    "a thousand indents": "".join(" " * n + "if 1:\n" for n in range(1000)),
    "elifs": "if 1: pass\n" + "elif 1: pass\n" * 10_000,
    "assignments": "a=" * 65_000 + "1",
    "statements": "a\n" * 65_000,
    "decoded by decoded": "".join(f"x{n} = decode(x{n - 1})\n" for n in range(1, 5000)),
    "executions": "exec(x)\n" * 16_000,
    "a huge number": "9" * 100_000,
    "unfinished text": "'''" + "a" * 130_000,
}
BASH = {
    "a megabyte of parentheses": "(" * 1_000_000,
    "parentheses": "(" * 16_000 + "ls" + ")" * 16_000,
    "open groups": "{ " * 16_000,
    "a billion braces": "{a,b}" * 6500,
    "substitutions": "$(" * 8000 + "ls" + ")" * 8000,
    "an endless pipeline": "ls|" * 10_000,
    "pipes up to the bound": "]|" * 1000,
    "here-strings": "<<<" * 10_000,
    "here-documents": "cat <<A\n" * 4000,
    "words": "echo " + "a " * 16_000,
    "evals": "eval " * 6500 + "ls",
    "wrappers": "env " * 8000 + "curl",
    "find without an end": "find " + "-exec " * 5000,
    "invalid scripts in a script": ("bash -c '" + "ls|" * 300 + "'\n") * 30,
    "scripts in scripts": nested_scripts(12),
    "concatenations": "a'b'" * 8000,
    "continued lines": "l\\\ns " * 6500,
    "back-quotes": "`" * 32_000,
    "functions": "f(){ " * 6500,
}
JAVASCRIPT = {
    "a megabyte of parentheses": "(" * 1_000_000,
    "operators that do not fit": "+," * 60_000,
    "brackets": "[" * 60_000 + "]" * 60_000,
    "a long sum": "1+" * 60_000 + "1",
    "joined texts": "x[" + "'a'+" * 30_000 + "'a']",
    "calls": "a" + "()" * 60_000,
    "subscripts": "a" + "[b]" * 40_000,
    "templates": "`${" * 40_000,
    "objects": "{a:" * 40_000,
}


@pytest.mark.parametrize("name", PYTHON)
def test_hostile_python_is_answered(name: str) -> None:
    assert isinstance(UnifiedRiskPolicy.assess(PYTHON[name], "python"), RiskAssessment)


@pytest.mark.parametrize("name", BASH)
def test_hostile_bash_is_answered_and_never_welcome(name: str) -> None:
    assert UnifiedRiskPolicy.assess(BASH[name], "bash").level >= RiskLevel.HIGH or name == "words"
    assert judge_command(BASH[name], LISTS).verdict is not CommandVerdict.ALLOWED


@pytest.mark.parametrize("language", ["javascript", "typescript"])
@pytest.mark.parametrize("name", JAVASCRIPT)
def test_hostile_javascript_is_answered(name: str, language: str) -> None:
    assert isinstance(UnifiedRiskPolicy.assess(JAVASCRIPT[name], language), RiskAssessment)


@pytest.mark.parametrize("language", ["python", "bash", "javascript"])
def test_what_is_too_large_to_be_read_is_not_called_safe(language: str) -> None:
    assessment = UnifiedRiskPolicy.assess("1\n" * 70_000, language)
    assert assessment.level >= RiskLevel.HIGH
    assert assessment.refusal is not None


def test_deep_code_does_not_overflow_the_stack_of_a_thread() -> None:
    answers: list[RiskAssessment] = []

    def answer() -> None:
        for language, programs in (("python", PYTHON), ("bash", BASH), ("javascript", JAVASCRIPT)):
            answers.extend(UnifiedRiskPolicy.assess(code, language) for code in programs.values())

    thread = threading.Thread(target=answer)
    thread.start()
    thread.join()
    assert len(answers) == len(PYTHON) + len(BASH) + len(JAVASCRIPT)
