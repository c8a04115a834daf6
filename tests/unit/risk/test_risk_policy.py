from __future__ import annotations

import subprocess
import sys

import pytest

from ringfence.authority.levels import RiskLevel
from ringfence.authority.profile import SecurityMode
from ringfence.errors import InvalidRequest
from ringfence.operation import Language
from ringfence.outcome import SandboxType
from ringfence.risk import policy
from ringfence.risk.assessment import Refusal
from ringfence.risk.grammar import _load
from ringfence.risk.policy import UnifiedRiskPolicy
from ringfence.risk.shell import CommandLists, CommandVerdict, judge_command

DOCUMENTED = """
from ringfence.risk.policy import UnifiedRiskPolicy, SecurityMode
from ringfence.outcome import SandboxType

risk = UnifiedRiskPolicy.assess("import os", "python")
print(risk.level, risk.detected_patterns)

sandbox_type = UnifiedRiskPolicy.get_required_sandbox(
    risk,
    mode=SecurityMode.STRICT
)
"""


def test_the_documented_example_runs_with_only_its_imports_changed() -> None:
    names: dict[str, object] = {}
    exec(DOCUMENTED, names)
    assert names["sandbox_type"] is SandboxType.NATIVE


def test_the_documented_example_prints_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    exec(DOCUMENTED, {})
    assert capsys.readouterr().out == "medium ('import os',)\n"


def test_printing_a_number_is_safe() -> None:
    assert UnifiedRiskPolicy.assess("print(1)", "python").level is RiskLevel.SAFE


@pytest.mark.parametrize("language", Language)
def test_every_language_that_can_be_run_can_be_assessed(language: Language) -> None:
    assessment = UnifiedRiskPolicy.assess("", language)
    assert (assessment.level, assessment.language, assessment.refusal) == (RiskLevel.SAFE, language.value, None)


def test_a_language_nobody_knows_is_not_safe() -> None:
    assessment = UnifiedRiskPolicy.assess("print(1)", "cobol")
    assert (assessment.level, assessment.refusal) == (RiskLevel.HIGH, Refusal.UNKNOWN_LANGUAGE)


BOXES = {
    (RiskLevel.SAFE, SecurityMode.PERMISSIVE): SandboxType.SUBPROCESS,
    (RiskLevel.SAFE, SecurityMode.STRICT): SandboxType.NATIVE,
    **{
        (level, mode): SandboxType.NATIVE
        for level in (RiskLevel.LOW, RiskLevel.MEDIUM, RiskLevel.HIGH, RiskLevel.CRITICAL)
        for mode in SecurityMode
    },
}


@pytest.mark.parametrize(("level", "mode"), BOXES)
def test_only_safe_code_in_permissive_mode_is_a_plain_subprocess(level: RiskLevel, mode: SecurityMode) -> None:
    assert UnifiedRiskPolicy.get_required_sandbox(level, mode) is BOXES[level, mode]


def test_a_policy_that_names_docker_gets_it_where_a_container_is_required() -> None:
    docker = SandboxType.DOCKER
    assert UnifiedRiskPolicy.get_required_sandbox(RiskLevel.HIGH, container=docker) is docker
    assert UnifiedRiskPolicy.get_required_sandbox(RiskLevel.LOW, container=docker) is docker
    assert UnifiedRiskPolicy.get_required_sandbox(RiskLevel.SAFE, container=docker) is SandboxType.NATIVE


def test_a_subprocess_cannot_be_named_as_the_container() -> None:
    with pytest.raises(InvalidRequest, match="no container"):
        UnifiedRiskPolicy.get_required_sandbox(RiskLevel.HIGH, container=SandboxType.SUBPROCESS)


@pytest.mark.parametrize("language", ["bash", "javascript", "typescript"])
@pytest.mark.parametrize("missing", ["tree_sitter", "the grammar"])
def test_without_its_grammar_a_program_is_refused_and_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, language: str, missing: str
) -> None:
    gone = f"tree_sitter_{language}" if missing == "the grammar" else missing
    forget_everything()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, gone, None)
        assessment = UnifiedRiskPolicy.assess("", language)
    assert (assessment.level, assessment.refusal) == (RiskLevel.HIGH, Refusal.GRAMMAR_MISSING)
    assert "ringfence[law]" in assessment.reasons[0]
    # and it is not remembered: the extra may be there the next time
    assert UnifiedRiskPolicy.assess("", language).level is RiskLevel.SAFE


def test_without_the_grammar_no_command_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_everything()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tree_sitter_bash", None)
        judgement = judge_command("ls", CommandLists(("ls",)))
    assert judgement.verdict is CommandVerdict.UNKNOWN
    assert "ringfence[law]" in judgement.reasons[0]


def test_a_parser_that_cannot_be_stopped_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        """What tree-sitter 0.26 offers: a parser without a deadline."""

    forget_everything()
    with monkeypatch.context() as patch:
        patch.setattr("tree_sitter.Parser", Endless)
        assessment = UnifiedRiskPolicy.assess("ls", "bash")
    assert (assessment.level, assessment.refusal) == (RiskLevel.HIGH, Refusal.GRAMMAR_MISSING)
    assert "cannot be stopped" in assessment.reasons[0]


def forget_everything() -> None:
    _load.cache_clear()
    policy._remembered.cache_clear()


def test_assessing_python_imports_nothing_from_outside_the_standard_library() -> None:
    program = (
        "import sys\nfrom ringfence.risk.policy import UnifiedRiskPolicy\n"
        "UnifiedRiskPolicy.assess('import os', 'python')\n"
        "print(sorted(name for name in sys.modules if name.startswith('tree_sitter')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_assessment_is_plain_json() -> None:
    assert UnifiedRiskPolicy.assess("import os", "python").to_dict() == {
        "level": "medium",
        "language": "python",
        "detected_patterns": ["import os"],
        "reasons": ["line 1: import os: reaches files, processes and the environment"],
        "refusal": None,
    }


@pytest.mark.parametrize(
    ("language", "code", "kinds"),
    [
        ("python", "print(1)", ()),
        ("python", "import hunter2", ("a module nobody here knows",)),
        ("python", "import socket", ("reaches the network",)),
        ("python", "hunter2 hunter2", ("unparsable",)),
        (
            "bash",
            "hunter2() { :; }; hunter2",
            ("a name the script gives a new meaning", "hides what runs from a reader"),
        ),
        ("bash", "hunter2 --token", ("starts a program nobody here knows",)),
        ("bash", "python3 -c 'hunter2 hunter2'", None),
        ("javascript", "import 'hunter2'", None),
        ("javascript", "hunter2 hunter2", None),
    ],
)
def test_evidence_is_told_what_was_seen_in_no_word_of_the_program(
    language: str, code: str, kinds: tuple[str, ...] | None
) -> None:
    told = UnifiedRiskPolicy.assess(code, language).kinds
    assert kinds is None or told == kinds
    assert "hunter2" not in " ".join(told)
