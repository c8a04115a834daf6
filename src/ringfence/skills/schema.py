"""Which JSON Schemas a skill may have: those whose cost is known when the skill is read.

A schema that names another document could make the service fetch it; one that doubles itself through `$ref` costs
2ⁿ; `unevaluatedProperties` walks everything again. All of that is refused here, once, with its place, so that checking
a value later costs at most `size` times the values in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.stepwise import Pattern

MAX_SIZE: Final = 2_000
MAX_DEPTH: Final = 32
MAX_LISTED: Final = 1_000
DRAFTS: Final = ("https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#")

_PLAIN = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "format"),
        *("type", "enum", "const", "required", "dependentRequired", "uniqueItems", "pattern"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"),
        *("minItems", "maxItems", "minContains", "maxContains", "minProperties", "maxProperties"),
    }
)
_ONE = frozenset(
    {"additionalProperties", "propertyNames", "items", "additionalItems", "contains", "not", "if", "then", "else"}
)
_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"properties", "dependentSchemas"})
_STORES = ("$defs", "definitions")
_WHY = {
    "patternProperties": "list the properties, or check their names with propertyNames",
    "unevaluatedProperties": "use additionalProperties",
    "unevaluatedItems": "use items",
    "$id": "leave it out: a schema here is known by its skill",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a schema or a value, and where."""

    path: str
    message: str
    fix: str = ""


class _Refused(Exception):
    def __init__(self, path: str, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.problem = Problem(path, message, fix)


def size_of(schema: Mapping[str, Any]) -> int:
    """Return how many schemas `schema` is, with every `$ref` written out.

    Raises:
        InvalidRequest: It cannot be used; `problems` says why in full.
    """
    found = _Reader(schema)
    try:
        return found.size(schema, "", 0, ())
    except _Refused as refused:
        problem = refused.problem
        raise InvalidRequest(
            f"{problem.path}: {problem.message}", reason="invalid_schema", fix=problem.fix or None
        ) from None


def problems(schema: Mapping[str, Any]) -> list[Problem]:
    """Return what keeps a schema from being used: the first such thing, or nothing."""
    try:
        _Reader(schema).size(schema, "", 0, ())
    except _Refused as refused:
        return [refused.problem]
    return []


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._seen = 0

    def size(self, schema: Any, path: str, depth: int, through: tuple[str, ...]) -> int:
        """Count the schemas below one place, written out; `through` are the references that led here."""
        if isinstance(schema, bool):
            return 1
        if not isinstance(schema, Mapping):
            raise _Refused(path, "is not a schema", "write an object, true or false")
        self._seen += 1
        if self._seen > MAX_SIZE:
            raise _Refused(path, f"is more than {MAX_SIZE} schemas, every $ref written out", "make it simpler")
        if depth > MAX_DEPTH:
            raise _Refused(path, f"is more than {MAX_DEPTH} schemas deep", "make it flatter")
        return 1 + sum(
            self.size(inner, where, depth + 1, refs) for inner, where, refs in self._inside(schema, path, through)
        )

    def _inside(
        self, schema: Mapping[str, Any], path: str, through: tuple[str, ...]
    ) -> Iterator[tuple[Any, str, tuple[str, ...]]]:
        for keyword, value in schema.items():
            where = f"{path}.{keyword}".lstrip(".")
            if keyword == "$ref":
                yield self._referred(value, where, through), where, (*through, value)
            elif keyword in _ONE and not (keyword == "items" and isinstance(value, list)):
                yield value, where, through
            elif keyword in _SEVERAL or keyword == "items":
                for at, inner in enumerate(_listed(value, where)):
                    yield inner, f"{where}[{at}]", through
            elif keyword in _NAMED or (keyword in _STORES and not path):
                for name, inner in _mapped(value, where).items():
                    yield inner, f"{where}.{name}", through
            else:
                self._check_plain(keyword, value, where, at_top=not path)

    def _check_plain(self, keyword: str, value: Any, where: str, *, at_top: bool) -> None:
        if keyword == "$schema" and at_top:
            if value not in DRAFTS:
                raise _Refused(where, f"{str(value)[:100]!r} is not a dialect here", f"write {DRAFTS[0]}")
        elif keyword == "pattern":
            _check_pattern(value, where)
        elif keyword not in _PLAIN:
            raise _Refused(where, "is not a keyword here", _WHY.get(keyword, "leave it out"))
        elif isinstance(value, list) and len(value) > MAX_LISTED:
            raise _Refused(where, f"lists more than {MAX_LISTED} values", "list fewer")

    def _referred(self, reference: Any, where: str, through: tuple[str, ...]) -> Any:
        store, _, name = reference.removeprefix("#/").partition("/") if isinstance(reference, str) else ("", "", "")
        if reference in through:
            raise _Refused(where, "refers to itself", "write a schema that ends")
        if (
            not isinstance(reference, str)
            or not reference.startswith("#/")
            or store not in _STORES
            or any(char in name for char in "/~%")
        ):
            # a name of another document could be fetched: from a host, or from this machine's files
            raise _Refused(where, "does not refer to a definition of this schema", "write #/$defs/NAME")
        definitions = self._root.get(store)
        if not isinstance(definitions, Mapping) or name not in definitions:
            raise _Refused(where, "refers to nothing", f"define it under {store}")
        return definitions[name]


def _check_pattern(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise _Refused(where, "must be text", "write a regular expression")
    try:
        Pattern(value)
    except InvalidRequest as error:
        raise _Refused(where, str(error), error.fix or "write a simpler one") from None


def _listed(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _Refused(where, "must be a list of schemas", "write [{…}]")
    return value


def _mapped(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _Refused(where, "must be an object", "write {…}")
    return value
