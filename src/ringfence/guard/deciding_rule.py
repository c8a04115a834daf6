"""Which of the policy's own rules decides about an operation: about a command, of all the programs it would start."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final, cast

from ringfence.authority.levels import Decision
from ringfence.authority.rule import Rule, Subject, strictest
from ringfence.errors import InvalidRequest
from ringfence.operation.code import CodeRun, Language

if TYPE_CHECKING:
    from ringfence.operation.brokered import BrowserNav, NetHttp, ProcExec
    from ringfence.operation.form import Operation

Rules = tuple[Rule, ...]
_MOST_SPELLINGS: Final = 256
_TO_HOSTS: Final = ("net_http", "browser_nav")


def rule_about(operation: Operation, rules: Rules) -> tuple[Rule, str] | None:
    """Return the strictest rule that is about `operation`, and the words it is about."""
    if not rules:
        return None
    if isinstance(operation, CodeRun):
        found = _about_script(operation.code, rules) if operation.language is Language.BASH else None
        return None if found is None else (found, operation.code)
    if operation.kind == "proc_exec":
        process = cast("ProcExec", operation)
        argv = (process.tool, *process.args)
        found = _about_program(argv, rules)
        return None if found is None else (found, " ".join(argv))
    subject = _subject_of(operation)
    found = None if subject is None else strictest(rules, *subject)
    return None if subject is None or found is None else (found, subject[1])


def _about_script(script: str, rules: Rules) -> Rule | None:
    from ringfence.risk.shell import CommandLists, CommandVerdict, judge_command

    for rule, pattern in _strictest_first(rules):
        judgement = judge_command(script, CommandLists(None, _spellings(pattern)))
        if judgement.verdict is CommandVerdict.DENIED or judgement.unread:
            return rule
    return None


def _about_program(argv: tuple[str, ...], rules: Rules) -> Rule | None:
    """Also of what the program would start in turn, as `env` does."""
    from ringfence.risk.shell import CommandLists, CommandVerdict, judge_argv

    for rule, pattern in _strictest_first(rules):
        is_begun_so = rule.matches_words(argv)
        behind = judge_argv(argv, CommandLists(None, _spellings(pattern)))
        if is_begun_so or behind.verdict is CommandVerdict.DENIED or behind.unread:
            return rule
    return next((rule for rule in rules if rule.decision is Decision.ALLOW and rule.matches_words(argv)), None)


def _strictest_first(rules: Rules) -> list[tuple[Rule, tuple[frozenset[str], ...]]]:
    """Return the rules about commands that ask or deny; one that allows never makes another command allowed."""
    stern = (rule for rule in rules if rule.subject is Subject.COMMAND and rule.decision is not Decision.ALLOW)
    ordered = sorted(stern, key=lambda rule: -rule.decision.rank)
    return [(rule, rule.pattern) for rule in ordered if isinstance(rule.pattern, tuple)]


def _spellings(pattern: tuple[frozenset[str], ...]) -> tuple[str, ...]:
    """Return what a rule about commands matches; of too many, what begins like them, which is stricter."""
    while len(pattern) > 1 and math.prod(map(len, pattern)) > _MOST_SPELLINGS:
        pattern = pattern[:-1]
    return tuple(" ".join(words) for words in itertools.product(*map(sorted, pattern)))


def _subject_of(operation: Operation) -> tuple[Subject, str] | None:
    if operation.kind in _TO_HOSTS:
        from ringfence.operation.target import target

        url = cast("NetHttp | BrowserNav", operation).url
        try:
            return Subject.DOMAIN, target(url).host
        except InvalidRequest:
            return Subject.DOMAIN, url
    path = getattr(operation, "path", None)
    return None if path is None else (Subject.PATH, path)
