"""Holds a value against a skill's schema with the `jsonschema` library, within the cost that `schema` has counted.

The library is asked for nothing that could run away: references are resolved in memory alone, patterns are matched by
our own machine, and `uniqueItems` compares spellings instead of every pair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ringfence.errors import InvalidRequest, Unavailable
from ringfence.skills import values
from ringfence.skills.schema import DRAFTS, Problem, size_of
from ringfence.stepwise import Pattern

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

MAX_CHECKS: Final = 200_000
MOST_TOLD: Final = 20


def schema_problems(schema: Mapping[str, Any]) -> list[Problem]:
    """Return where `schema`, whose cost is known, is no JSON Schema.

    Raises:
        Unavailable: The library is not installed.
    """
    checker = _dialect(str(schema.get("$schema", DRAFTS[0])))
    meta = checker(checker.META_SCHEMA)
    return [
        Problem(_path(error), _told(error.message), "see json-schema.org")
        for error in islice(meta.iter_errors(dict(schema)), MOST_TOLD)
    ]


def value_problems(schema: Mapping[str, Any], value: Any) -> list[Problem]:
    """Return where `value` is not what `schema` describes; of very many, the first.

    Raises:
        InvalidRequest: Checking it would take too long.
        Unavailable: The library is not installed.
    """
    try:
        amount = values.size_of(value) * size_of(schema)
    except ValueError as error:
        return [Problem("", str(error))]
    if amount > MAX_CHECKS:
        raise InvalidRequest(
            f"holding it against its schema takes {amount} checks, and {MAX_CHECKS} are the most",
            reason="too_large",
            fix="send less, or make the schema simpler",
        )
    checker = _dialect(str(schema.get("$schema", DRAFTS[0])))(dict(schema), registry=_registry())
    return [Problem(_path(error), _told(error.message)) for error in islice(checker.iter_errors(value), MOST_TOLD)]


@cache
def _dialect(name: str) -> Any:
    try:
        from jsonschema import Draft7Validator, Draft202012Validator
        from jsonschema.validators import extend
    except ModuleNotFoundError:
        raise Unavailable(
            "skills check what goes in and out with jsonschema, which is not installed",
            reason="extra_missing",
            fix="pip install 'ringfence[skills]'",
        ) from None
    known = dict(zip(DRAFTS, (Draft202012Validator, Draft7Validator), strict=True))
    build: Any = extend
    return build(known[name], {"pattern": _matches, "uniqueItems": _are_unique})


@cache
def _registry() -> Any:
    from referencing import Registry

    return Registry()  # has nothing to fetch with: what is not in the schema is not found


@lru_cache(maxsize=1024)
def _pattern(expression: str) -> Pattern:
    return Pattern(expression)


def _matches(_checker: Validator, expression: str, value: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not isinstance(value, str):
        return
    try:
        found = _pattern(expression).found_in(value)
    except InvalidRequest as error:
        yield ValidationError(str(error))
        return
    if not found:
        yield ValidationError(f"does not match {expression!r}")


def _are_unique(_checker: Validator, wanted: bool, value: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if wanted and isinstance(value, list):
        spellings = {json.dumps(_one_spelling(item), sort_keys=True) for item in value}
        if len(spellings) != len(value):
            yield ValidationError("has the same value twice")


def _one_spelling(value: Any) -> Any:
    """Return a value with 1.0 written as 1, as JSON Schema compares them; true stays true."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_one_spelling(item) for item in value]
    if isinstance(value, dict):
        return {name: _one_spelling(item) for name, item in value.items()}
    return value


def _path(error: Any) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path).lstrip(".")


def _told(message: str) -> str:
    """Return what the library says, without more of the value than helps."""
    return message if len(message) <= 200 else f"{message[:120]} … {message[-60:]}"
