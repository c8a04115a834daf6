"""A call becomes one operation, and what the run left becomes outputs or a failure."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from tests.unit.skills.example import MAIN, changed, skill

from ringfence.authority.finding import errors
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.operation.code import Language
from ringfence.outcome import Artifact, ExecutionResult, FileChanges, Status
from ringfence.skills.call import operation_of, outcome_of
from ringfence.skills.skill import read_skill, skill_told


def result(stdout: bytes = b"", output: bytes | None = None, **fields: Any) -> ExecutionResult:
    artifacts = (
        () if output is None else (Artifact("output.json", len(output), hashlib.sha256(output).hexdigest(), output),)
    )
    return ExecutionResult(
        **{"status": Status.SUCCEEDED, "exit_code": 0, "stdout_raw": stdout, "artifacts": artifacts, **fields}
    )


def test_a_file_of_the_skill_runs_with_the_inputs_in_both_places_and_its_files_for_reading() -> None:
    operation = operation_of(skill({"main.py": MAIN, "data/words.txt": b"x"}), {"n": 1})
    assert (operation.language, operation.stdin, operation.args) == (Language.PYTHON, b'{"n": 1}', ())
    assert operation.inputs == {"input.json": b'{"n": 1}', "skill/main.py": MAIN, "skill/data/words.txt": b"x"}
    assert operation.code.endswith(MAIN.decode())


def test_fixed_arguments_follow_the_file() -> None:
    operation = operation_of(skill(runtime__entrypoint=["python", "main.py", "--fast", "x"]), {"n": 1})
    assert operation.args == ("--fast", "x")


@pytest.mark.parametrize(
    ("program", "option", "language"),
    [("bash", "-lc", "bash"), ("sh", "-c", "bash"), ("python3", "-c", "python"), ("node", "-e", "javascript")],
)
def test_what_the_call_brings_is_what_runs_and_what_the_guard_will_see(
    program: str, option: str, language: str
) -> None:
    inputs = {"type": "object", "properties": {"script": {"type": "string"}}, "required": ["script"]}
    found = skill({}, runtime__entrypoint=[program, option], interface__inputs=inputs)
    operation = operation_of(found, {"script": "echo hi", "args": ["a"], "stdin": "s"})
    assert (operation.language, operation.code, operation.args, operation.stdin) == (language, "echo hi", ("a",), b"s")


@pytest.mark.parametrize(
    "code",
    [
        '"""Doc."""\n\nfrom __future__ import annotations\n\nimport helper\n',
        "from __future__ import annotations; import helper\n",
        '"""Doc."""; import helper\n',
        "import helper\n",
        "# -*- coding: utf-8 -*-\n'''é'''\nimport helper",
        "from __future__ import (\n    annotations,\n)\nimport helper",
        '"""a\r\nb"""\r\nimport helper\r\n',
    ],
)
def test_a_program_imports_from_its_own_directory_before_anything_else_happens(code: str) -> None:
    found = operation_of(skill({"main.py": code.encode()}), {"n": 1}).code
    compile(found, "main.py", "exec", dont_inherit=True)
    assert found.index("/workspace/inputs/skill") < found.index("import helper")


def test_a_program_with_a_mistake_is_left_to_say_so_itself() -> None:
    assert operation_of(skill({"main.py": b"def (:"}), {"n": 1}).code == "def (:"


@pytest.mark.parametrize("inputs", [{}, {"n": "1"}, {"n": 1.5}, {"n": None}])
def test_inputs_that_are_not_what_the_schema_says_never_become_an_operation(inputs: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        operation_of(skill(), inputs)
    assert refused.value.reason == "input_invalid"


def test_an_image_that_nothing_here_runs_is_refused() -> None:
    found = skill(runtime__image="node:24")
    assert found.unavailable == "image_unavailable"
    with pytest.raises(Unavailable) as refused:
        operation_of(found, {"n": 1})
    assert (refused.value.reason, refused.value.retryable) == ("image_unavailable", False)


@pytest.mark.parametrize(
    "changes",
    [
        {"runtime.entrypoint": ["perl", "main.py"]},
        {"runtime.entrypoint": ["python"]},
        {"runtime.entrypoint": ["python", "other.py"]},
        {"runtime.entrypoint": ["python", "../main.py"]},
        {"runtime.entrypoint": ["python", "-m", "main"]},
        {"runtime.entrypoint": ["bash", "-lc"]},
        {"runtime.entrypoint": ["bash", "-lc", "rm -rf /"]},
        {"runtime.entrypoint": ["/workspace/work/python", "main.py"]},
    ],
    ids=str,
)
def test_an_entrypoint_that_means_nothing_here_is_a_mistake_with_its_place(changes: dict[str, Any]) -> None:
    found, findings = read_skill(json.dumps(changed(changes)).encode(), {"main.py": MAIN}, directory="add.one")
    assert found is None
    assert [(finding.path, bool(finding.fix)) for finding in errors(findings)] == [("runtime.entrypoint", True)]


def test_mistakes_in_every_group_are_told_at_once() -> None:
    changes = {
        "permissions.net.mode": "all",
        "interface.outputs": {"type": "strng"},
        "runtime.entrypoint": ["python", "x"],
    }
    _, findings = read_skill(json.dumps(changed(changes)).encode(), {"main.py": MAIN}, directory="add.one")
    assert {finding.path for finding in findings} == {
        "permissions.net.mode", "interface.outputs.type", "runtime.entrypoint",
    }  # fmt: skip


def test_a_part_of_the_work_directory_to_read_is_doubtful_from_the_beginning() -> None:
    _, findings = read_skill(
        json.dumps(changed({"permissions.fs.read": ["work/a/**"]})).encode(), {"main.py": MAIN}, directory="add.one"
    )
    assert [(str(finding.severity), finding.rule) for finding in findings] == [("warning", "too_fine")]


def test_the_outputs_are_the_file_or_else_what_was_printed() -> None:
    assert outcome_of(skill(), result(b'{"n": 1}\n')).outputs == {"n": 1}
    assert outcome_of(skill(), result(b"chatter", b'{"n": 2}')).outputs == {"n": 2}


@pytest.mark.parametrize(
    "ended",
    [
        result(b""),
        result(b"hello"),
        result(b'{"n": "1"}'),
        result(b'{"n": 1, "n": 2}'),
        result(b'{"n": NaN}'),
        result(b'{"n": 1}', b"not json"),
        result(b'{"n": 1}', b"{}"),
        result(b'{"n": 1}', stdout_truncated=True),
        result(b'{"n": 1}', changes=FileChanges(uncollected=(("output.json", "artifact_bytes"),))),
        result(b"[" * 100_000),
        result(b"\xff"),
    ],
    ids=range(11),
)
def test_outputs_that_are_not_what_the_schema_says_are_a_failure_and_not_given_out(ended: ExecutionResult) -> None:
    outcome = outcome_of(skill(), ended)
    assert (outcome.success, outcome.outputs, outcome.reason) == (False, None, "output_invalid")
    assert (outcome.result.status, outcome.result.error_code) == (Status.FAILED, "TOOL.EXECUTION_FAILED")


def test_a_program_that_failed_has_no_outputs_whatever_it_printed() -> None:
    outcome = outcome_of(skill(), result(b'{"n": 1}', status=Status.FAILED, exit_code=3, reason="exit_code"))
    assert (outcome.success, outcome.outputs, outcome.reason) == (False, None, "exit_code")


def test_the_outputs_of_what_a_call_brought_are_the_facts_of_its_run() -> None:
    inputs = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    shell = skill(
        {}, runtime__entrypoint=["bash", "-lc"], interface__inputs=inputs, interface__outputs={"type": "object"}
    )
    outcome = outcome_of(shell, result(b"out", status=Status.FAILED, exit_code=3))
    assert (outcome.success, outcome.outputs["exit_code"], outcome.outputs["stdout"]) == (False, 3, "out")


def test_a_skill_told_by_a_service_is_the_same_skill() -> None:
    there = skill(version="1", safety_class="low", side_effect="read")
    here = skill_told(json.loads(json.dumps(there.to_dict())))
    assert here.to_dict() == there.to_dict()
    assert (here.id, here.tool, here.digest, here.read_only) == ("add.one", "skill.add.one", there.digest, True)


def test_the_digest_is_that_of_every_file() -> None:
    digests = {
        skill().digest,
        skill({"main.py": MAIN + b"#"}).digest,
        skill({"main.py": MAIN, "a": b""}).digest,
        skill(name="x").digest,
    }
    assert len(digests) == 4
