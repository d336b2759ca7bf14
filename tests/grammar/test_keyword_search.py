"""The fatal keyword of a schema, found by compiling parts of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemill.contract.program import Grammar
from tidemill.grammar.keyword_search import MAX_TRIES, fatal_keyword, fatal_location

FATAL = {"type": "integer", "minimum": -5, "maximum": -4}


def has(value: Any, wanted: dict[str, Any]) -> bool:
    if isinstance(value, dict):
        return wanted.items() <= value.items() or any(has(v, wanted) for v in value.values())
    return isinstance(value, list) and any(has(v, wanted) for v in value)


def search(schema: Any, wanted: dict[str, Any]) -> tuple[str, int]:
    tries = 0

    def is_fatal(source: str) -> bool:
        nonlocal tries
        tries += 1
        return has(json.loads(source), wanted)

    return fatal_keyword(json.dumps(schema), is_fatal), tries


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"const": 7}, ".const"),
        ({"properties": {"a": {}, "b": {"items": {"const": 7}}}}, ".properties.b.items.const"),
        ({"anyOf": [{"type": "string"}, {"const": 7, "type": "integer"}]}, ".anyOf[1].const"),
        ({"prefixItems": [{"allOf": [{"const": 7}]}]}, ".prefixItems[0].allOf[0].const"),
        ({"properties": {f"p{i}": {"const": i} for i in range(2000)}}, ".properties.p7.const"),
    ],
    ids=range(5),
)
def test_a_keyword_is_found_in_few_tries(schema: Any, place: str) -> None:
    found, tries = search(schema, {"const": 7})
    assert found == place and tries <= MAX_TRIES


def test_of_keywords_that_do_it_together_the_first_is_named() -> None:
    found, _ = search(
        {"properties": {"n": {"title": "t", **FATAL}}}, {"minimum": -5, "maximum": -4}
    )
    assert found == ".properties.n.minimum"


def test_what_no_part_does_alone_has_the_place_of_the_whole() -> None:
    assert fatal_keyword('{"properties": {"a": {}}}', lambda source: False) == ""
    deep: Any = {"const": 7}
    for _ in range(80):
        deep = {"items": deep}
    found, tries = search(deep, {"const": 7})
    assert found.startswith(".items.items") and tries <= MAX_TRIES


def test_schemas_in_a_grammar_are_told_apart() -> None:
    source = 'start: "a" | %json {"const": 1} | %json {"items": {"const": 7}} "b"'

    def is_fatal(grammar: Grammar) -> bool:
        assert grammar.kind == "lark"
        return "7" in grammar.source

    assert fatal_location(Grammar("lark", source), is_fatal) == (
        "",
        " (schema 2 in it, .items.const)",
    )
    assert fatal_location(Grammar("regex", "7"), is_fatal) == ("", "")
