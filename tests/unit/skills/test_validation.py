"""Values are judged as JSON Schema says, and whatever they are, judging them is soon over."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest
from ringfence.skills import values
from ringfence.skills.validation import schema_problems, value_problems

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(-2, 2, allow_nan=False)
    | st.sampled_from(["", "a", "ab"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=8,
)
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False},
    {"type": "array", "uniqueItems": True},
    {"items": {"type": ["integer", "null"], "minimum": 0}, "contains": {"const": 1}, "minItems": 1},
    {"anyOf": [{"type": "string", "pattern": "^a+$"}, {"type": "number", "multipleOf": 0.5}]},
    {"oneOf": [{"type": "array", "prefixItems": [{"type": "integer"}]}, {"maxLength": 1}]},
    {"if": {"type": "object"}, "then": {"propertyNames": {"pattern": "^a$"}}, "else": {"not": {"const": 0}}},
    {
        "$defs": {"x": {"enum": [1, "a", None]}},
        "properties": {"a": {"$ref": "#/$defs/x"}},
        "dependentRequired": {"a": ["b"]},
    },
    {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}], "additionalItems": False},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
@given(value=_VALUES)
def test_a_value_is_judged_as_the_library_alone_judges_it(schema: dict[str, Any], value: Any) -> None:
    assert (value_problems(schema, value) == []) is jsonschema.validators.validator_for(
        schema, default=jsonschema.Draft202012Validator
    )(schema).is_valid(value)


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_what_is_a_schema_has_no_problems(schema: dict[str, Any]) -> None:
    assert schema_problems(schema) == []


@pytest.mark.parametrize(
    ("schema", "path"),
    [({"type": "strng"}, "type"), ({"minLength": "x"}, "minLength"), ({"required": "a"}, "required")],
)
def test_what_is_no_schema_is_told_with_its_place(schema: dict[str, Any], path: str) -> None:
    assert [problem.path for problem in schema_problems(schema)] == [path]


def test_a_mistake_is_told_with_its_place() -> None:
    schema = {"properties": {"a": {"items": {"type": "string"}}}}
    (problem,) = value_problems(schema, {"a": ["x", 5]})
    assert (problem.path, problem.message) == ("a[1]", "5 is not of type 'string'")


def test_many_values_against_many_schemas_are_refused_before_they_are_compared() -> None:
    schema = {"items": {"anyOf": [{"const": number} for number in range(900)]}}
    with pytest.raises(InvalidRequest) as refused:
        value_problems(schema, list(range(10_000)))
    assert refused.value.reason == "too_large"


def test_unique_items_are_told_apart_without_comparing_every_pair() -> None:
    schema = {"uniqueItems": True}
    mixed = [{"n": number} if number % 2 else str(number) for number in range(50_000)]
    assert value_problems(schema, mixed) == []
    assert value_problems(schema, [*mixed, {"n": 1.0}]) != []
    assert value_problems(schema, [1, True, "1"]) == []


def test_a_value_that_nests_for_ever_is_a_mistake() -> None:
    value: Any = 0
    for _ in range(5_000):
        value = [value]
    assert value_problems({}, value) != []


@pytest.mark.parametrize(
    "inputs",
    [
        *(None, [], "text", {1: 2}, {"a": float("nan")}, {"a": {1, 2}}, {"a": b"x"}),
        *({"a": "x" * values.MAX_BYTES}, {"a": "\ud800"}),
    ],
)
def test_inputs_that_are_no_json_object_are_refused(inputs: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        values.to_text(inputs)
    assert refused.value.reason == "input_invalid"


def test_inputs_that_contain_themselves_are_refused() -> None:
    inputs: dict[str, Any] = {}
    inputs["again"] = inputs
    with pytest.raises(InvalidRequest):
        values.to_text(inputs)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b'{"a":1,"a":2}', b"NaN", b"[" * 100_000, b"1" * 5_000, b"1 2"])
def test_what_is_not_one_json_value_is_none(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        values.read(text)


@given(_VALUES)
def test_a_value_comes_back_as_it_went(value: Any) -> None:
    assert values.read(values.to_text({"v": value})) == {"v": value}
