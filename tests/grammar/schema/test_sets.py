"""uniqueItems and propertyNames, and keywords that are trivially true."""

from __future__ import annotations

import enum
import itertools
from typing import Any, Literal

import pytest
from helpers.schema_language import allows, check_agreement, rejection
from pydantic import TypeAdapter


class Color(enum.StrEnum):
    RED = "r"
    GREEN = "g"
    BLUE = "b"


def arrays(values: list[Any], longest: int) -> list[list[Any]]:
    return [list(a) for n in range(longest + 1) for a in itertools.product(values, repeat=n)]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"enum": ["r", "g", "b"]}, "uniqueItems": True},
        TypeAdapter(set[Color]).json_schema(),
        TypeAdapter(frozenset[Literal["r", "g"]]).json_schema(),
        {"type": ["array", "null"], "items": {"enum": ["r", "g", "b"]}, "uniqueItems": True,
         "minItems": 1, "maxItems": 2},
        {"type": "array", "items": {"const": "r"}, "uniqueItems": True},
        {"type": "array", "uniqueItems": True, "maxItems": 1},
        {"type": "array", "uniqueItems": True, "items": {"type": ["string"], "enum": ["r", 1]}},
    ],
    ids=str,
)  # fmt: skip
def test_sets_of_few_values(schema: Any) -> None:
    check_agreement(schema, [*arrays(["r", "g", "b"], 4)[:60], ["r", 1], None])


def test_equal_values_of_an_enum_are_one() -> None:
    schema = {"type": "array", "items": {"enum": [1, 1.0, True]}, "uniqueItems": True}
    check_agreement(schema, [[1, True], [True, 1], [True, True], [1], []])
    assert not allows(schema, "[1, 1.0]") and not allows(schema, "[1, 1]")


def test_larger_sets_come_in_the_order_of_the_enum() -> None:
    schema = {"type": "array", "items": {"enum": list("abcdefgh")}, "uniqueItems": True}
    assert allows(schema, '["a", "c", "h"]') and allows(schema, "[]")
    assert not allows(schema, '["c", "a"]') and not allows(schema, '["a", "a"]')
    assert allows({**schema, "maxItems": 2}, '["c", "a"]')


@pytest.mark.parametrize(
    "items",
    [{"type": "string"}, {"type": "integer", "minimum": 1}, {"enum": list("abcdefghi")}, {}],
)
def test_sets_that_are_not_written_out(items: Any) -> None:
    schema = {"properties": {"a": {"type": "array", "items": items, "uniqueItems": True}}}
    assert rejection(schema)[0] == "s.properties.a.uniqueItems"
    assert rejection({"uniqueItems": True})[0] == "s.uniqueItems"
    two = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3}
    assert rejection(two)[0] == "s.minItems"


MAPS: list[tuple[Any, list[Any]]] = [
    ({"type": "object", "propertyNames": {"type": "string"}}, [{}, {"a": 1}]),
    ({"type": "object", "propertyNames": {}, "minProperties": 1}, [{}, {"a": 1}]),
    (TypeAdapter(dict[Color, int]).json_schema(), [{}, {"r": 1, "b": 2}, {"x": 1}, {"r": "x"}]),
    (
        {
            "type": "object",
            "propertyNames": {"pattern": "^a"},
            "additionalProperties": {"type": "null"},
        },
        [{}, {"a": None, "ab": None}, {"b": None}, {"a": 1}],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {}},
            "propertyNames": {"enum": ["a", "c"]},
        },
        [{}, {"a": 1}, {"a": 1, "c": "x"}, {"b": 1}, {"a": "x"}, {"d": 1}],
    ),
    ({"type": "object", "properties": {"a": {"not": {}}}}, [{}, {"b": 1}, {"a": 1}]),
    ({"type": "object", "additionalProperties": {"not": {}}}, [{}, {"b": 1}]),
    ({"not": {"type": ["string", "object"]}}, [1, None, True, [], "a", {}]),
    ({"type": ["string", "null"], "not": {"type": "null"}}, ["a", None, 1]),
    ({"enum": ["a", "b", 1], "not": {"enum": ["b", 1.0]}}, ["a", "b", 1]),
    ({"enum": ["a", "b"], "not": {"const": "a"}}, ["a", "b"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "instances"), MAPS, ids=[str(c[0])[:60] for c in MAPS])
def test_names_and_negations(schema: Any, instances: list[Any]) -> None:
    check_agreement(schema, instances)


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ({"type": "object", "propertyNames": {"minLength": 2}}, "s.propertyNames"),
        ({"properties": {"ab": {}}, "propertyNames": {"pattern": "^a"}}, "s.propertyNames"),
        ({"not": {"properties": {"a": {}}}}, "s.not"),
        ({"not": {"type": "integer"}}, "s.not"),
        ({"type": "string", "not": {"const": "a"}}, "s.not"),
        ({"type": "object", "minProperties": 2}, "s.minProperties"),
        ({"anyOf": []}, "s.anyOf"),
        ({"type": "strin"}, "s.type"),
        ({"uniqueItems": 1}, "s.uniqueItems"),
        (
            {"items": {"type": ["null", "array"]}, "type": "array", "uniqueItems": True},
            "s.uniqueItems",
        ),
    ],
)
def test_rejected_by_name(schema: Any, at: str) -> None:
    assert rejection(schema)[0] == at


def test_annotations_of_generators() -> None:
    schema = {
        "x-order": 3,
        "x-guidance": {"lenient": True},
        "type": "object",
        "properties": {
            "path": {"type": "string", "format": "path", "x-y": {}, "examples": ["/a"]},
            "n": {"type": "string", "nullable": True},
            "d": {"type": "number", "format": "double", "nullable": False},
        },
        "discriminator": {"propertyName": "path"},
        "externalDocs": {"url": "x"},
        "additionalProperties": False,
    }
    assert allows(schema, '{"path": "/a", "n": null, "d": 1.5}')
    assert not allows(schema, '{"path": null}') and not allows(schema, '{"zz": 1}')
    assert rejection({"$ref": "#/$defs/a", "$defs": {"a": {}}, "nullable": True})[0] == "s.nullable"


def test_a_named_property_has_no_second_spelling() -> None:
    r"""``"\u0061"`` is the name ``a`` for a reader, whose value would count instead."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert allows(schema, '{"a": 1, "b": "x", "c\\n": "\\"y"}')
    assert not allows(schema, '{"a": 1, "\\u0061": "x"}')
    assert not allows({"patternProperties": {"^a": {"type": "null"}}}, '{"\\u0061": 1}')
    assert allows({"type": "object"}, '{"\\u0001": "\\u0002"}')
    closed = {**schema, "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    assert allows(closed, '{"a": "\\u001b"}')
