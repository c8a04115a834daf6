"""SECURITY.md, the list of guarantees and the tests agree, in both directions."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.security.guarantees import GUARANTEES

pytestmark = pytest.mark.guarantee(12)

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "SECURITY.md"


def cited(decorators: list[ast.expr]) -> set[int]:
    """Return the numbers in `pytest.mark.guarantee(…)` among some expressions."""
    return {
        argument.value
        for decorator in decorators
        for node in ast.walk(decorator)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "guarantee"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, int)
    }


def citations() -> dict[str, set[int]]:
    """Return, for each security test, the guarantees it cites, by itself or for its whole file."""
    found = {}
    for path in sorted(HERE.glob("test_*.py")):
        tree = ast.parse(path.read_text())
        whole_file = cited([node.value for node in tree.body if isinstance(node, ast.Assign)])
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found[f"{path.name}::{node.name}"] = cited(node.decorator_list) | whole_file
    return found


def test_every_security_test_cites_a_guarantee() -> None:
    assert [name for name, numbers in citations().items() if not numbers] == []


def test_every_guarantee_is_cited_by_a_test() -> None:
    assert set.union(*citations().values()) == set(GUARANTEES)


@pytest.mark.skipif(not DOCUMENT.exists(), reason="this copy of the tests travels without its documents")
def test_the_document_states_the_guarantees_word_for_word() -> None:
    stated = re.findall(r"^\*\*G(\d+)\*\* (.+)$", DOCUMENT.read_text(), flags=re.MULTILINE)
    assert {int(number): sentence for number, sentence in stated} == GUARANTEES
