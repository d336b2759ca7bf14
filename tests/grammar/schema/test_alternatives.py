"""oneOf: enforced if its alternatives are disjoint, otherwise rejected by name."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from helpers.schema_language import allows, check_agreement, rejection
from pydantic import BaseModel, Field

STRICT = {"type": "object", "additionalProperties": False}


def tagged(kind: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"kind": {"const": kind}, **more},
        "required": ["kind", *more],
    }


CAT, DOG = tagged("cat", lives={"type": "integer"}), tagged("dog", name={"type": "string"})
PETS = [
    {"kind": "cat", "lives": 9},
    {"kind": "dog", "name": "x"},
    {"kind": "cat", "name": "x"},
    {"kind": "cow"},
    {},
]
REFS = {"$defs": {"Cat": CAT, "Dog": DOG}}
ONE_OF = {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}

EXCLUSIVE: list[tuple[Any, list[Any]]] = [
    ({**REFS, **ONE_OF}, PETS),
    ({**REFS, **ONE_OF, "discriminator": {"propertyName": "kind", "mapping": {}}}, PETS),
    ({**REFS, "type": "array", "items": ONE_OF}, [[pet] for pet in PETS]),
    ({"oneOf": [{"allOf": [CAT]}, {"anyOf": [DOG, {"type": "null"}]}]}, [*PETS, None]),
    ({"oneOf": [{"type": "integer", "maximum": 0}, {"type": "number", "minimum": 1}]},
     [0, 1, 1.5, -3, 0.5]),
    ({"oneOf": [{"type": "string"}, {"type": ["null", "boolean"]}]}, ["a", None, True, 1]),
    ({"oneOf": [{"enum": [1, "a"]}, {"enum": [2, "b"]}, {"type": "null"}]}, [1, "b", None, 3]),
    ({"oneOf": [{"enum": ["a", "b"]}, {"type": "number"}, False]}, ["a", 3, True]),
    # closed objects, of which each requires what the other does not have
    (
        {
            "oneOf": [
                {**STRICT, "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {**STRICT, "properties": {"b": {"type": "integer"}}},
            ]
        },
        [{"a": 1}, {"b": 1}, {}, {"a": 1, "b": 1}],
    ),
    # the parent says what is required
    (
        {
            "type": "object",
            "properties": {"k": {"type": "string"}},
            "required": ["k"],
            "oneOf": [
                {"properties": {"k": {"const": "a"}}},
                {"properties": {"k": {"enum": ["b", "c"]}}},
            ],
        },
        [{"k": "a"}, {"k": "c"}, {"k": "d"}],
    ),
    ({"oneOf": [{"type": "array", "maxItems": 1}, {"type": "array", "minItems": 2}]},
     [[], [1], [1, 2], 3]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "instances"), EXCLUSIVE, ids=[str(c[0])[:50] for c in EXCLUSIVE]
)
def test_exclusive_alternatives_are_enforced(schema: Any, instances: list[Any]) -> None:
    check_agreement(schema, instances)


@pytest.mark.parametrize(
    "alternatives",
    [
        [{"type": "integer"}, {"type": "number"}],
        [{"type": "string"}, {"type": "string", "format": "date"}],
        [CAT, CAT],
        [{"enum": [1, 2]}, {"enum": [2.0, 3]}],
        [{"properties": {"k": {"const": 1}}, "required": ["k"]},
         {"properties": {"k": {"const": 2}}, "required": ["k"]}],  # what is no object is both
        [{**CAT, "required": []}, {**DOG, "required": []}],
        [{"$ref": "#/$defs/Cat"}, {"type": "object"}],
        [{"type": "array", "items": {"type": kind}} for kind in ("integer", "null")],
    ],
)  # fmt: skip
def test_what_may_hold_at_once_is_rejected_by_place(alternatives: list[Any]) -> None:
    schema = {**REFS, "properties": {"x": {"oneOf": alternatives}}}
    at, message = rejection(schema)
    assert at == "s.properties.x.oneOf" and "alternatives 0 and 1" in message


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    friend: Annotated[Cat | Dog | None, Field(discriminator="kind")] = None


class Owner(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


def test_discriminated_unions_of_pydantic() -> None:
    """Recursive ones too; a tag with a default is not required by its schema but by its reader."""
    schema = Owner.model_json_schema()
    assert "discriminator" in json.dumps(schema) and "oneOf" in json.dumps(schema)
    for document in (
        {"pet": {"kind": "cat", "lives": 3}},
        {"pet": {"kind": "dog", "friend": {"kind": "dog", "friend": {"kind": "cat"}}}},
    ):
        assert allows(schema, json.dumps(document))
        Owner.model_validate(document)
    assert not allows(schema, '{"pet": {"lives": 3}}')
    assert not allows(schema, '{"pet": {"kind": "cow"}}')


def test_many_alternatives() -> None:
    many = {"oneOf": [tagged(f"k{i}") for i in range(300)]}
    assert allows(many, '{"kind": "k299"}') and not allows(many, '{"kind": "k300"}')
    assert rejection({"oneOf": [{"enum": [i]} for i in range(100)]})[0] == "s.oneOf"
