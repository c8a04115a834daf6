"""Operations as people write them to ask what the guard would say of them; running code is one of them too."""

from __future__ import annotations

from typing import Any

from ringfence.errors import InvalidRequest
from ringfence.operation.code import CodeRun, check, parse_language
from ringfence.operation.form import Operation, from_json
from ringfence.operation.secret import read_ask

_REQUIRED = frozenset({"op", "language", "code"})
_LISTS = ("args", "ports", "domains", "secrets")
_FIELDS = _REQUIRED | {*_LISTS, "env"}


def read_judged(form: object) -> Operation:
    """Read a brokered operation, or `{"op": "code_run", "language": …, "code": …}` with what the code asks for.

    Raises:
        InvalidRequest: It is none, or could not be carried out as written.
    """
    if not isinstance(form, dict) or form.get("op") != CodeRun.kind:
        return from_json(form)
    if not _REQUIRED <= form.keys() <= _FIELDS:
        raise _wrong(f"code_run has {', '.join(sorted(_REQUIRED - {'op'}))}, and perhaps {', '.join((*_LISTS, 'env'))}")
    for name in _LISTS:
        if not isinstance(form.get(name, []), list):
            raise _wrong(f"{name} must be a list")
    if not isinstance(form["code"], str) or not isinstance(form.get("env", {}), dict):
        raise _wrong("code must be text, and env an object")
    lists: dict[str, Any] = {name: tuple(form[name]) for name in _LISTS if name in form}
    if "secrets" in lists:
        lists["secrets"] = tuple(map(read_ask, lists["secrets"]))
    operation = CodeRun(parse_language(form["language"]), form["code"], env=form.get("env", {}), **lists)
    check(operation)
    return operation


def _wrong(problem: str) -> InvalidRequest:
    return InvalidRequest(
        problem,
        reason="invalid_operation",
        fix="""write it as {"op": "code_run", "language": "bash", "code": "ls"}""",
    )
