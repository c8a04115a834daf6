"""The OpenAPI document: what the framework knows of the routes, and the problems that any of them can answer with."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI

from ringfence.interfaces.http.aio.key import is_aio
from ringfence.interfaces.http.once import LONGEST_KEY, SHOWN_ONCE, takes_key
from ringfence.interfaces.http.problem import Problem, documented

ANYWHERE: Final = (400, 401, 403, 408, 413, 415, 421, 422, 429, 431, 500, 503)
"""What the gate, the limits or the law can answer for any path."""

_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": "^[ -~]+$"},
    "description": "Carried out once: the same key with the same request gives the same answer, for 24 hours",
}


def document(app: FastAPI) -> None:
    """Have the application describe its errors as they are."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        made = plain()
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        schemas |= {"Problem": Problem.model_json_schema(), **getattr(app.state, "own_schemas", {})}
        for name in ("HTTPValidationError", "ValidationError"):  # the framework's own form, which nobody ever sees
            schemas.pop(name, None)
        own = getattr(app.state, "own_refusals", None)
        for name, path in made.get("paths", {}).items():
            refusals = own(ANYWHERE) if own is not None and is_aio(name) else documented(*ANYWHERE)
            for method, operation in path.items():
                if takes_key({"type": "http", "method": method.upper(), "path": name}) and not name.startswith(
                    SHOWN_ONCE
                ):
                    operation.setdefault("parameters", []).append(_KEY)
                    operation.setdefault("responses", {}).setdefault("409", documented(409)[409])
                answers = operation.setdefault("responses", {})
                for status, problem in refusals.items():
                    if str(status) == "422" or str(status) not in answers:
                        answers[str(status)] = problem
        return made

    app.openapi = described  # type: ignore[method-assign]  # how the framework has it replaced
