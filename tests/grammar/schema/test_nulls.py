"""Keywords whose value is null, which clients in Go and other languages write for unset fields."""

from __future__ import annotations

import json

import pytest

from tidemill.grammar.schema import prepared

PLAIN = {"type": "object", "properties": {"a": {"type": "string"}}}


def _prepared(schema: object) -> object:
    return json.loads(prepared(json.dumps(schema), "s"))


@pytest.mark.parametrize(
    "keyword",
    ["required", "additionalProperties", "$defs", "anyOf", "minProperties", "if", "description"],
)
def test_a_null_keyword_says_nothing(keyword: str) -> None:
    assert _prepared({**PLAIN, keyword: None}) == _prepared(PLAIN)


@pytest.mark.parametrize("keyword", ["enum", "pattern", "format", "maxLength", "$ref"])
def test_inside_too(keyword: str) -> None:
    inner = {**PLAIN, "properties": {"a": {"type": "string", keyword: None}}}
    assert _prepared(inner) == _prepared(PLAIN)


def test_null_is_a_value_of_const() -> None:
    schema = {**PLAIN, "properties": {"a": {"const": None}}}
    assert _prepared(schema) != _prepared(PLAIN)
