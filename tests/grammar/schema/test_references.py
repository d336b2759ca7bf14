"""References: targets, cycles, and schemas without finite documents."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from helpers.schema_language import allowed, allows, rejection

from tidemill.grammar.schema import prepared
from tidemill.grammar.schema.references import MAX_FOLLOWED

OBJECT = {"type": "object", "additionalProperties": False}
SELF = {"$ref": "#"}


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        (SELF, "s.$ref"),
        ({"allOf": [SELF]}, "s.allOf[0].$ref"),
        ({"anyOf": [{"type": "string"}, SELF]}, "s.anyOf[1].$ref"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "s.properties.a.$ref"),
        (
            {
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                "properties": {"x": {"$ref": "#/$defs/a"}},
            },
            "s.$defs.b.$ref",
        ),
        ({"items": {"$ref": "#/$defs/none"}}, "s.items.$ref"),
        ({"items": {"$ref": "other.json"}}, "s.items.$ref"),
        ({"properties": {"a": {"enum": [1]}, "b": {"$ref": "#/properties/a/enum"}}},
         "s.properties.b.$ref"),
    ],
)  # fmt: skip
def test_what_describes_nothing_is_rejected_by_place(schema: Any, at: str) -> None:
    assert rejection(schema)[0] == at


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ({**OBJECT, "properties": {"a": SELF}, "required": ["a"]}, "s.properties.a.$ref"),
        ({"type": "array", "items": SELF, "minItems": 1}, "s.items.$ref"),
        (
            {
                "$defs": {
                    "x": {**OBJECT, "properties": {"y": {"$ref": "#/$defs/y"}}, "required": ["y"]},
                    "y": {"type": "array", "prefixItems": [{"$ref": "#/$defs/x"}], "minItems": 1},
                },
                "$ref": "#/$defs/x",
            },
            "s.$defs.y.prefixItems[0].$ref",
        ),
        ({"type": "object", "anyOf": [{"properties": {"a": SELF}, "required": ["a"]}] * 2},
         "s.anyOf[0].properties.a.$ref"),
        ({**OBJECT, "required": ["a"]}, "s.required"),
        ({**OBJECT, "properties": {"a": {"not": {}}}, "required": ["a"]}, "s.properties.a"),
    ],
)  # fmt: skip
def test_no_finite_document(schema: Any, at: str) -> None:
    found, message = rejection(schema)
    assert found == at and "no finite document" in message


def test_recursion_with_a_base_case_is_taken() -> None:
    tree = {**OBJECT, "properties": {"kids": {"type": "array", "items": SELF}}}
    assert allows(tree, '{"kids": [{}, {"kids": []}]}')
    chain = {**OBJECT, "properties": {"next": {"anyOf": [SELF, {"type": "null"}]}}}
    chain["required"] = ["next"]
    assert allowed(chain, ['{"next": {"next": null}}', "{}"]) == ['{"next": {"next": null}}']
    value = {"anyOf": [{"type": "string"}, {"type": "array", "items": SELF}]}
    assert allows(value, '["a", [["b"]], []]')


def test_what_could_not_end_is_not_begun() -> None:
    """An endless part that may be left out is: writing it could only end by length."""
    endless = {**OBJECT, "properties": {"e": {"$ref": "#/$defs/e"}}, "required": ["e"]}
    schema = {
        **OBJECT,
        "$defs": {"e": endless},
        "properties": {
            "a": {"$ref": "#/$defs/e"},
            "b": {"type": "array", "items": {"$ref": "#/$defs/e"}},
            "c": {"anyOf": [{"$ref": "#/$defs/e"}, {"type": "integer"}]},
        },
    }
    assert allows(schema, '{"b": [], "c": 1}') and not allows(schema, '{"b": [1]}')
    made = json.loads(prepared(json.dumps(schema), "s"))["properties"]
    assert made["a"] is False and made["b"]["items"] is False and made["c"]["anyOf"][0] is False


def test_anchors_and_pointers() -> None:
    schema = {
        **OBJECT,
        "$defs": {"a/b%c": {"type": "integer"}, "n": {"$anchor": "here", "type": "null"}},
        "properties": {"x": {"$ref": "#/$defs/a~1b%25c"}, "y": {"$ref": "#here"}},
    }
    assert allows(schema, '{"x": 1, "y": null}') and not allows(schema, '{"x": null}')


@pytest.mark.parametrize("inner", [lambda ref: ref, lambda ref: {"properties": {"a": ref}}])
def test_long_chains_of_references_are_rejected_before_the_library_descends_them(
    inner: Any,
) -> None:
    def chain(count: int) -> Any:
        made = {f"d{i}": inner({"$ref": f"#/$defs/d{i + 1}"}) for i in range(count)}
        return {"$defs": {**made, f"d{count}": {"type": "null"}}, "$ref": "#/$defs/d0"}

    assert "nested within each other" in rejection(chain(MAX_FOLLOWED))[1]
    assert allows(chain(MAX_FOLLOWED // 2 - 5), "null")


def test_what_takes_too_many_steps_is_rejected() -> None:
    """Many schemas, each of which refers to many others in place."""
    shared = {"allOf": [{"multipleOf": 3 + i % 5} for i in range(400)]}
    uses = [{"allOf": [{"$ref": "#/$defs/m"}], "multipleOf": 2} for _ in range(3000)]
    begun = time.thread_time()
    assert "parts to compare" in rejection({"anyOf": uses, "$defs": {"m": shared}})[1]
    assert time.thread_time() - begun < 2
