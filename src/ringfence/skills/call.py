"""One call of a skill: its inputs become an operation, and what the run left becomes its outputs.

A skill finds its inputs as JSON in `/workspace/inputs/input.json` and on standard input, its own files below
`/workspace/inputs/skill`, and what its manifest has the host fetch below `/workspace/inputs/fetched`. Its outputs are
what it writes to `/workspace/artifacts/output.json`, or else the JSON it prints. A skill that runs what the call brings
(`["bash", "-lc"]`) has the outputs `status`, `exit_code`, `stdout`, `stderr`, `stdout_truncated`, `stderr_truncated`.
"""

from __future__ import annotations

import ast
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Final

from ringfence.dataclass import replace
from ringfence.errors import CapabilityBlocked, ExecutionFailed, InvalidRequest
from ringfence.operation.brokered import NetHttp
from ringfence.operation.code import CodeRun, Language
from ringfence.outcome import BrokerOutcome, ExecutionResult, Status
from ringfence.skills import values
from ringfence.skills.entry import DIRECTORY, Entry, require_image
from ringfence.skills.skill import Skill, SkillOutcome
from ringfence.skills.validation import value_problems

OUTPUT: Final = "output.json"
FETCHED: Final = "fetched"
"""Where a skill finds what the host fetched for it, below `/workspace/inputs`."""
# The work directory is the agent's: a `helper.py` in it must not become a part of the skill.
_OWN_PATH = (
    f"import sys as _s; _s.path[:] = [{DIRECTORY!r}] + "
    "[_p for _p in _s.path if _p not in ('', '.', '/workspace/work')]; del _s"
)


def fetches_of(skill: Skill, inputs: object) -> dict[str, NetHttp]:
    """Return what the host is to fetch for a call of `skill`, by the input that names it.

    Raises:
        InvalidRequest: The inputs are not what the skill's schema says.
        Unavailable: Nothing here runs the skill's image, or checks its schemas.
    """
    names = skill.manifest.fetches
    if not names:
        return {}
    require_image(skill.manifest.runtime)
    given = values.read(values.to_text(inputs))
    _require_valid(skill, given)
    for name in names:
        if not isinstance(given[name], str):
            raise InvalidRequest(f"inputs.{name} must be a URL", reason="input_invalid")
    return {name: NetHttp("GET", given[name]) for name in names}


def as_inputs(fetched: Mapping[str, BrokerOutcome]) -> dict[str, bytes]:
    """Return what was fetched as files for the box: `fetched/<input>`, and where it came from beside it.

    Raises:
        CapabilityBlocked: The policy keeps contents out of results, and so out of the skill.
    """
    files: dict[str, bytes] = {}
    for name, outcome in fetched.items():
        if outcome.content is None:
            raise CapabilityBlocked("the policy keeps contents out of results, so a skill gets nothing to read")
        told = {key: value for key, value in outcome.out.items() if key not in ("preview", "digest")}
        told["sha256"] = b64decode(outcome.out["digest"]["b64"]).hex()
        files[f"{FETCHED}/{name}"] = outcome.content
        files[f"{FETCHED}/{name}.json"] = values.to_text(told)
    return files


def operation_of(skill: Skill, inputs: object, fetched: Mapping[str, bytes] | None = None) -> CodeRun:
    """Return what a call of `skill` runs; `fetched` are files that the host brought for it.

    Raises:
        InvalidRequest: The inputs are not what the skill's schema says.
        Unavailable: Nothing here runs the skill's image, or checks its schemas.
    """
    require_image(skill.manifest.runtime)
    text = values.to_text(inputs)
    given = values.read(text)
    _require_valid(skill, given)
    files = {"input.json": text} | {f"skill/{name}": content for name, content in skill.files.items()}
    files |= fetched or {}
    entry = skill.entry
    if entry.source is not None:
        return _brought(entry, entry.source, given, files)
    code = skill.files[str(entry.file)].decode()
    if entry.language is Language.PYTHON:
        code = _with_own_path(code)
    return CodeRun(language=entry.language, code=code, args=entry.args, stdin=text, inputs=files)


def outcome_of(skill: Skill, result: ExecutionResult) -> SkillOutcome:
    """Return what came of a call; outputs that are not what the skill's schema says are a failure, and not given out.

    Raises:
        Unavailable: Nothing here checks its schemas.
    """
    if skill.entry.source is None and not result.success:
        return SkillOutcome(skill.id, None, result)
    try:
        outputs = _facts(result) if skill.entry.source is not None else _left(result)
        wrong = value_problems(skill.manifest.output_schema, outputs)
        problem = f"{wrong[0].path or 'outputs'}: {wrong[0].message}" if wrong else None
    except (ValueError, InvalidRequest) as error:
        problem = str(error)
    if problem is None:
        return SkillOutcome(skill.id, outputs, result)
    failed = replace(
        result,
        status=Status.FAILED,
        error=f"the outputs of {skill.id} are not what its manifest says: {problem}",
        error_code=ExecutionFailed.code,
        reason="output_invalid",
    )
    return SkillOutcome(skill.id, None, failed)


def _require_valid(skill: Skill, given: Any) -> None:
    wrong = value_problems(skill.manifest.input_schema, given)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InvalidRequest(
            f"{f'inputs.{wrong[0].path}'.rstrip('.')}: {wrong[0].message}{more}",
            reason="input_invalid",
            fix=f"'ringfence skill show {skill.id}' prints what it takes",
            path=wrong[0].path,
        )


def _brought(entry: Entry, source: str, given: Mapping[str, Any], files: dict[str, bytes]) -> CodeRun:
    code, args, stdin = given[source], given.get("args", []), given.get("stdin", "")
    if not isinstance(code, str) or not isinstance(stdin, str):
        raise InvalidRequest(f"inputs.{source} and inputs.stdin must be text", reason="input_invalid")
    if not isinstance(args, list) or not all(isinstance(word, str) for word in args):
        raise InvalidRequest("inputs.args must be a list of texts", reason="input_invalid")
    return CodeRun(language=entry.language, code=code, args=tuple(args), stdin=stdin.encode(), inputs=files)


def _facts(result: ExecutionResult) -> dict[str, Any]:
    return {
        "status": str(result.status),
        "exit_code": result.exit_code,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "stdout_truncated": result.stdout_truncated,
        "stderr_truncated": result.stderr_truncated,
    }


def _left(result: ExecutionResult) -> Any:
    for artifact in result.artifacts:
        if artifact.path == OUTPUT:
            return _read(artifact.content, OUTPUT)
    if any(path == OUTPUT for path, _ in result.changes.uncollected):
        raise ValueError(f"{OUTPUT} was not taken over")
    if result.stdout_truncated:
        raise ValueError("standard output was cut")
    return _read(result.stdout_raw, "standard output")


def _read(content: bytes, what: str) -> Any:
    try:
        return values.read(content)
    except ValueError as error:
        raise ValueError(f"{what} is not JSON: {error}") from None


def _with_own_path(code: str) -> str:
    """Return a program that imports from its own directory, and from no other that the agent can write to."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code  # it says so itself, in its own words
    last: ast.stmt | None = None  # a docstring and `from __future__` stand first, or not at all
    for node in body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_text and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        last = node
    if last is None or last.end_lineno is None or last.end_col_offset is None:
        return f"{_OWN_PATH}\n{code}"
    lines = code.encode().replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    line, column = lines[last.end_lineno - 1], last.end_col_offset
    # on the same line, before whatever else stands there
    lines[last.end_lineno - 1] = line[:column] + f"; {_OWN_PATH}".encode() + line[column:]
    return b"\n".join(lines).decode()
