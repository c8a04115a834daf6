"""The table, the classes, the source and the pages under docs/errors say the same about every code and reason."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from tests.unit.errors.source import reasons_given

from ringfence import errors
from ringfence.capability.limits import Limits
from ringfence.errors import CapabilityBlocked, Denied, InvalidRequest, PathTraversalError, RingfenceError
from ringfence.errors.table import RESERVED_FAMILIES, TABLE, answer, page_of
from ringfence.executors.code import judge
from ringfence.interfaces.cli.errors import registry
from ringfence.interfaces.cli.main import main
from ringfence.ports import Ending

ROOT = Path(__file__).resolve().parents[3]
SOURCES = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "src").rglob("*.py"))}
BASE = (RingfenceError.code, RingfenceError.default_reason)
PAGES = ROOT / "docs" / "errors"
SPECIFIED = {  # 000 §9, letter by letter
    "SANDBOX.PERMISSION_DENY": 403,
    "POLICY.DENY_TOOL": 403,
    "SANDBOX.CAPABILITY_BLOCKED": 403,
    "PROVIDER.UNAVAILABLE": 503,
    "LLM.TIMEOUT": 504,
    "QUOTA.BUDGET_EXCEEDED": 429,
    "SCHEMA.VALIDATION_FAILED": 422,
    "TOOL.EXECUTION_FAILED": 500,
    "UNKNOWN.INTERNAL": 500,
}
PAIRS = [(code, reason) for code, entry in TABLE.items() for reason in entry.reasons]
pages_are_here = pytest.mark.skipif(not PAGES.exists(), reason="this copy of the tests travels without its documents")


# --- the table ---


def test_the_codes_are_those_of_the_specification_with_their_statuses() -> None:
    assert {code: entry.http_status for code, entry in TABLE.items()} == SPECIFIED


@pytest.mark.parametrize(("code", "reason"), PAIRS)
def test_every_reason_has_a_status_an_exit_code_and_a_meaning(code: str, reason: str) -> None:
    found = answer(code, reason)
    assert 400 <= found.http_status < 600
    assert found.exit_code in range(1, 9)
    assert TABLE[code].reasons[reason].meaning
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", reason)


def test_no_code_takes_a_reserved_family() -> None:
    assert {code.partition(".")[0] for code in TABLE} & set(RESERVED_FAMILIES) == set()


def test_what_nobody_registered_is_never_milder_than_our_own_failure() -> None:
    assert answer("MADE.UP", "whatever") == answer("UNKNOWN.INTERNAL", "internal")
    assert answer("SANDBOX.CAPABILITY_BLOCKED", "made_up") == answer("SANDBOX.CAPABILITY_BLOCKED", "blocked")


def test_a_traversal_is_400_in_the_shape_of_a_request_and_403_while_an_operation_runs() -> None:
    error = PathTraversalError("../x")
    assert (error.code, error.reason, error.answer.http_status) == ("SCHEMA.VALIDATION_FAILED", "path_traversal", 400)
    running = PathTraversalError("../x").at_runtime()
    assert (running.code, running.reason) == ("SANDBOX.CAPABILITY_BLOCKED", "path_traversal")
    assert (running.answer.http_status, running.answer.exit_code) == (403, 3)
    assert isinstance(running, PathTraversalError)
    assert PathTraversalError.code == InvalidRequest.code  # of the class: one running operation changes no other error


def test_what_counts_as_a_denial_is_said_by_the_code_and_not_by_the_class() -> None:
    denied = {code for code, reason in PAIRS if answer(code, reason).is_denial}
    assert denied == {"SANDBOX.PERMISSION_DENY", "POLICY.DENY_TOOL", "SANDBOX.CAPABILITY_BLOCKED"}
    assert all(answer(code, reason).is_denial for code, reason in PAIRS if code in denied)
    assert PathTraversalError("../x").at_runtime().answer.is_denial
    assert not PathTraversalError("../x").answer.is_denial


def test_no_grant_is_a_matter_of_who_asks_and_a_bad_one_of_what_is_asked() -> None:
    assert [answer(Denied.code, reason).http_status for reason in ("no_grant", "expired", "revoked")] == [401, 403, 403]


def test_a_missing_consent_has_an_exit_code_of_its_own() -> None:
    assert answer(Denied.code, "consent_required").exit_code == 4


@pytest.mark.parametrize(("code", "reason"), PAIRS)
def test_an_error_answers_what_the_table_says(code: str, reason: str) -> None:
    kind = next(kind for kind in _classes() if kind.code == code)
    error = kind("it broke", reason=reason)
    assert (error.answer, error.retryable) == (answer(code, reason), answer(code, reason).retryable)


def test_whoever_makes_no_error_does_not_pay_for_the_table() -> None:
    code = (
        "import sys, ringfence.errors, ringfence.interfaces.cli.render; print('ringfence.errors.table' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, env=environment)
    assert done.stdout == "False\n"


def test_every_code_has_a_class_to_raise() -> None:
    assert {kind.code for kind in _classes()} == set(TABLE)


def test_whoever_catches_a_denial_catches_all_three_codes_of_it() -> None:
    assert {kind.code for kind in _classes() if issubclass(kind, Denied)} == {
        "SANDBOX.PERMISSION_DENY",
        "POLICY.DENY_TOOL",
        CapabilityBlocked.code,
    }


def _classes() -> list[type[RingfenceError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RingfenceError)]


# --- the source ---


def test_every_reason_the_source_gives_an_error_is_in_the_table() -> None:
    given = [each for each in reasons_given(SOURCES, BASE) if each.reason is not None]
    assert len(given) > 50
    assert [each for each in given if each.reason not in TABLE[each.code].reasons] == []


def test_every_reason_in_the_source_can_be_read_off_it() -> None:
    assert [each.where for each in reasons_given(SOURCES, BASE) if each.reason is None] == []


def test_every_word_in_the_source_that_looks_like_a_code_is_one() -> None:
    families = {code.partition(".")[0] for code in TABLE} | set(RESERVED_FAMILIES) | {"SYSTEM"}
    looks_like_one = re.compile(rf"(?:{'|'.join(sorted(families))})\.[A-Z_]+\Z")
    found = {
        node.value
        for tree in SOURCES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and looks_like_one.match(node.value)
    }
    assert found - set(TABLE) == set()
    assert len(found) > 5


def test_every_reason_that_stands_beside_a_code_is_in_the_table() -> None:
    """Answers of rules and endings of runs carry both as they are; no error is made of them."""
    codes = {kind.__name__: kind.code for kind in _classes()}
    found: set[tuple[str, str]] = set()
    for tree in SOURCES.values():
        for node in ast.walk(tree):
            parts = node.elts if isinstance(node, ast.Tuple) else node.args if isinstance(node, ast.Call) else []
            for one, next_one in pairwise(parts):
                match one, next_one:
                    case ast.Constant(value=str(code)), ast.Constant(value=str(reason)) if code in TABLE:
                        found.add((code, reason))
                    case ast.Attribute(value=ast.Name(id=kind), attr="code"), ast.Constant(value=str(reason)):
                        found.add((codes.get(kind, ""), reason))
                    case _:
                        continue
    assert len(found) > 30
    assert sorted(pair for pair in found if pair[1] not in TABLE[pair[0]].reasons) == []


def test_every_way_a_run_is_ended_from_outside_is_in_the_table() -> None:
    for killed_by in ("wall_timeout", "cpu_timeout", "memory", "unknown"):
        _, _, code, reason = judge(Ending(None, 9, killed_by, b"", b"", 0, 0, 0.0, 0, None), Limits())
        assert code is not None
        assert reason in TABLE[code].reasons


def test_the_walk_over_the_source_sees_whatever_way_a_reason_is_given() -> None:
    text = """
class Narrow(InvalidRequest):
    def __init__(self): super().__init__('x', reason='in_super')
raise InvalidRequest('x', reason='plain')
def f(): return Denied('y', reason=g())
def h(name, *, why): raise InvalidRequest('z', reason=f'un_{name}' if name else why)
h('known', why='given')
class InvalidRequest(RingfenceError): code = 'SCHEMA.VALIDATION_FAILED'
class Denied(RingfenceError): code = 'SANDBOX.PERMISSION_DENY'
"""
    found = reasons_given({Path("x.py"): ast.parse(text)}, BASE)
    assert [(each.code, each.reason) for each in found] == [
        (InvalidRequest.code, "in_super"),
        (InvalidRequest.code, "plain"),
        (Denied.code, None),
        (InvalidRequest.code, "un_known"),
        (InvalidRequest.code, "given"),
    ]


# --- the pages ---


@pages_are_here
def test_every_code_has_its_page_and_every_page_its_code() -> None:
    assert {path.name for path in PAGES.iterdir()} == {Path(page_of(code)).name for code in TABLE} | {"index.md"}
    index = (PAGES / "index.md").read_text()
    assert re.findall(r"^\| \[`(.+?)`\]\((.+?)\)", index, re.MULTILINE) == [(code, f"{code}.md") for code in TABLE]


@pages_are_here
@pytest.mark.parametrize("code", TABLE)
def test_a_page_says_of_its_code_and_every_reason_what_the_table_says(code: str) -> None:
    text = (ROOT / page_of(code)).read_text()
    entry = TABLE[code]
    again = "yes" if entry.retryable else "no"
    assert text.startswith(f"# {code}\n\n{entry.title}. HTTP {entry.http_status}, exit code {entry.exit_code}, ")
    assert f"worth trying again as it is: {again}.\n" in text
    assert rows(text) == [
        (
            reason,
            TABLE[code].reasons[reason].meaning,
            str(answer(code, reason).http_status),
            str(answer(code, reason).exit_code),
            "yes" if answer(code, reason).retryable else "no",
        )
        for reason in entry.reasons
    ]


@pages_are_here
@pytest.mark.parametrize("code", TABLE)
def test_a_page_says_what_it_means_and_what_to_do(code: str) -> None:
    sections = re.split(r"^## ", (ROOT / page_of(code)).read_text(), flags=re.MULTILINE)
    assert [section.partition("\n")[0] for section in sections[1:]] == ["What it means", "What to do", "Reasons"]
    assert all(len(section.split()) > 15 for section in sections[1:])


def rows(text: str) -> list[tuple[str, ...]]:
    """Read the table of reasons of a page."""
    found = re.findall(r"^\| `(\w+)` \| (.+?) \| (\d+) \| (\d+) \| (yes|no) \|$", text, re.MULTILINE)
    assert len(found) == len(re.findall(r"^\| `", text, re.MULTILINE))
    return found


# --- the command ---


def test_the_command_lists_every_code_and_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["errors", "list"]) == 0
    listed = capsys.readouterr().out
    for code, reason in PAIRS:
        assert re.search(rf"^  {reason} +{answer(code, reason).http_status} ", listed, re.MULTILINE)
    assert all(f"\n{code}: " in listed for code in TABLE)


def test_the_command_lists_the_same_as_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["errors", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed == json.loads(json.dumps(registry()))
    assert [(code["code"], reason["reason"]) for code in listed["codes"] for reason in code["reasons"]] == PAIRS
    traversal = {
        (code["code"], reason["http_status"])
        for code in listed["codes"]
        for reason in code["reasons"]
        if reason["reason"] == "path_traversal"
    }
    assert traversal == {("SANDBOX.CAPABILITY_BLOCKED", 403), ("SCHEMA.VALIDATION_FAILED", 400)}


@pytest.mark.parametrize("words", [["errors"], ["errors", "show"], ["errors", "list", "extra"]])
def test_anything_but_the_list_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "SCHEMA.VALIDATION_FAILED usage" in capsys.readouterr().err
