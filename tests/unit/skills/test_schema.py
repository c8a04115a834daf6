"""A schema's cost is known before anything is held against it, or it is no schema here."""

from __future__ import annotations

from typing import Any

import pytest

from ringfence.errors import InvalidRequest
from ringfence.skills.schema import MAX_SIZE, problems, size_of

DEFS = {"leaf": {"type": "string"}}


@pytest.mark.parametrize(
    ("schema", "size"),
    [
        ({}, 1),
        ({"type": "object", "properties": {"a": {"type": "string"}, "b": True}}, 3),
        ({"$defs": DEFS, "properties": {"a": {"$ref": "#/$defs/leaf"}, "b": {"$ref": "#/$defs/leaf"}}}, 6),
        ({"anyOf": [{"items": {"minimum": 1}}, {"not": {"const": 1}}]}, 5),
        ({"definitions": DEFS, "items": [{"$ref": "#/definitions/leaf"}, {}]}, 5),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, 1),
    ],
)
def test_the_size_is_the_number_of_schemas_with_every_reference_written_out(schema: dict[str, Any], size: int) -> None:
    assert size_of(schema) == size
    assert problems(schema) == []


def bomb(levels: int) -> dict[str, Any]:
    """Return the schema that doubles itself at every level."""
    defs: dict[str, Any] = {
        f"l{at}": {"allOf": [{"$ref": f"#/$defs/l{at + 1}"}, {"$ref": f"#/$defs/l{at + 1}"}]} for at in range(levels)
    }
    return {"$defs": {**defs, f"l{levels}": {"type": "string"}}, "$ref": "#/$defs/l0"}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"$ref": "http://example.com/x.json"}, "$ref"),
        ({"$ref": "file:///etc/passwd"}, "$ref"),
        ({"$ref": "other.json#/a"}, "$ref"),
        ({"$ref": "#"}, "$ref"),
        ({"$ref": "#/properties/a", "properties": {"a": {}}}, "$ref"),
        ({"$ref": "#/$defs/none"}, "$ref"),
        ({"$ref": "#/$defs/a%2e", "$defs": {"a.": {}}}, "$ref"),
        ({"$ref": 5}, "$ref"),
        ({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}, "$defs.a.items.$ref.items.$ref"),
        ({"$id": "http://example.com/"}, "$id"),
        ({"properties": {"a": {"$id": "file:///"}}}, "properties.a.$id"),
        ({"$dynamicRef": "#x"}, "$dynamicRef"),
        ({"$recursiveRef": "#"}, "$recursiveRef"),
        ({"$anchor": "x"}, "$anchor"),
        ({"$schema": "http://example.com/schema"}, "$schema"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"patternProperties": {"(a+)+": {}}}, "patternProperties"),
        ({"properties": {"a": {"pattern": "(?=a)"}}}, "properties.a.pattern"),
        ({"pattern": 5}, "pattern"),
        ({"items": 5}, "items"),
        ({"allOf": {}}, "allOf"),
        ({"properties": []}, "properties"),
        ({"enum": [0] * 1001}, "enum"),
        ({"requierd": ["a"]}, "requierd"),
    ],
)
def test_what_is_refused_is_refused_with_its_place_and_a_fix(schema: dict[str, Any], path: str) -> None:
    (problem,) = problems(schema)
    assert (problem.path, bool(problem.fix)) == (path, True)
    with pytest.raises(InvalidRequest) as refused:
        size_of(schema)
    assert refused.value.reason == "invalid_schema"


def test_a_schema_that_doubles_itself_is_not_counted_to_its_end() -> None:
    assert size_of(bomb(4)) < MAX_SIZE
    (problem,) = problems(bomb(12))
    assert "more than 2000 schemas" in problem.message


def test_a_schema_that_nests_for_ever_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(500):
        schema = {"items": schema}
    (problem,) = problems(schema)
    assert "deep" in problem.message
