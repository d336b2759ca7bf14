"""Every field that states a constraint, and the exact member that an error names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.text.constraints import Constraint, constraint_of

SCHEMA = {"type": "object", "properties": {"b": {"const": None}, "a": {"type": "integer"}}}
TEXT = json.dumps(SCHEMA)
TAGS = {
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f"],
}
FORMAT = {
    "type": "triggered_tags",
    "triggers": ["<f"],
    "tags": [
        {"begin": "<f>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</f>"}
    ],
}

GOOD: list[tuple[str, Any, str, str]] = [
    # field, value, kind, source
    (
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
        "json_schema",
        TEXT,
    ),
    (
        "response_format",
        {"type": "json_schema", "json_schema": {"schema": SCHEMA, "description": None}},
        "json_schema",
        TEXT,
    ),
    ("response_format", {"type": "json_object"}, "json_object", ""),
    ("response_format", {"type": "json_object", "schema": None}, "json_object", ""),
    ("response_format", {"type": "json_object", "schema": SCHEMA}, "json_schema", TEXT),
    ("response_format", {"type": "json_schema", "schema": SCHEMA}, "json_schema", TEXT),
    (
        "response_format",
        {"type": "json_schema", "name": "x", "strict": True, "schema": SCHEMA},
        "json_schema",
        TEXT,
    ),
    ("guided_json", SCHEMA, "json_schema", TEXT),
    ("guided_json", TEXT, "json_schema", TEXT),
    ("json_schema", SCHEMA, "json_schema", TEXT),
    ("json_schema", True, "json_schema", "true"),
    ("structured_outputs", {"json": SCHEMA}, "json_schema", TEXT),
    ("structured_outputs", {"json": TEXT, "regex": None}, "json_schema", TEXT),
    ("structured_outputs", {"json_object": True}, "json_object", ""),
    ("guided_regex", "[a-c]+", "regex", "[a-c]+"),
    ("structured_outputs", {"regex": "a|b"}, "regex", "a|b"),
    ("guided_choice", ["yes", "no"], "choice", '["yes", "no"]'),
    ("structured_outputs", {"choice": ["é"]}, "choice", '["é"]'),
    ("guided_grammar", 'root ::= "a"', "gbnf", 'root ::= "a"'),
    ("guided_grammar", 'start: "a"', "lark", 'start: "a"'),
    ("guided_grammar", 'start: "::="', "lark", 'start: "::="'),
    ("structured_outputs", {"grammar": 'root ::= "a"'}, "gbnf", 'root ::= "a"'),
    ("grammar", 'root ::= "a"', "gbnf", 'root ::= "a"'),
]


@pytest.mark.parametrize(("field", "value", "kind", "source"), GOOD)
def test_spellings(field: str, value: Any, kind: str, source: str) -> None:
    found = constraint_of({field: value})
    assert found is not None and found.grammar is not None
    assert (found.grammar.kind, found.grammar.source) == (kind, source)
    assert found.grammar.param.startswith(field) and found.field.startswith(field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "structural_tag", **TAGS}),
        ("response_format", {"type": "structural_tag", "format": FORMAT}),
        ("structured_outputs", {"structural_tag": TAGS}),
        ("structured_outputs", {"structural_tag": json.dumps({"type": "structural_tag", **TAGS})}),
    ],
)
def test_structural_tags(field: str, value: Any) -> None:
    found = constraint_of({field: value})
    assert isinstance(found, Constraint) and found.grammar is None
    [region] = found.regions
    assert (region.begin, region.schema, region.end) == ("<f>", TEXT, "</f>")
    assert found.triggers == ("<f",)


def test_no_constraint() -> None:
    assert constraint_of({}) is None
    assert constraint_of({"guided_json": None, "response_format": {"type": "text"}}) is None


BAD: list[tuple[str, Any, str]] = [
    ("response_format", "json", "response_format"),
    ("response_format", {}, "response_format.type"),
    ("response_format", {"type": "xml"}, "response_format.type"),
    ("response_format", {"type": "json_object", "x": 1}, "response_format.x"),
    ("response_format", {"type": "json_object", "strict": True}, "response_format.strict"),
    ("response_format", {"type": "text", "schema": SCHEMA}, "response_format.schema"),
    (
        "response_format",
        {"type": "json_schema", "schema": SCHEMA, "json_schema": {"schema": SCHEMA}},
        "response_format.schema",
    ),
    ("response_format", {"type": "text", "json_schema": {"schema": {}}},
     "response_format.json_schema"),
    ("response_format", {"type": "json_schema"}, "response_format.json_schema"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}},
     "response_format.json_schema.schema"),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": []}},
     "response_format.json_schema.schema"),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}},
     "response_format.json_schema.strict"),
    ("response_format", {"type": "structural_tag"}, "response_format"),
    ("response_format", {"type": "structural_tag", **TAGS, "format": FORMAT}, "response_format"),
    ("response_format", {"type": "structural_tag", **TAGS, "triggers": []},
     "response_format.triggers"),
    ("response_format", {"type": "structural_tag", **TAGS, "triggers": ["x"]},
     "response_format.structures[0].begin"),
    ("response_format", {"type": "structural_tag", **TAGS, "structures": []},
     "response_format.structures"),
    ("response_format", {"type": "structural_tag", "format": {**FORMAT, "type": "x"}},
     "response_format.format.type"),
    ("guided_json", 5, "guided_json"),
    ("guided_json", "{", "guided_json"),
    ("guided_json", "[1]", "guided_json"),
    ("guided_json", "[" * 100_000, "guided_json"),
    ("guided_json", {"maximum": float("inf")}, "guided_json"),
    ("json_schema", [1], "json_schema"),
    ("guided_regex", "", "guided_regex"),
    ("guided_regex", 5, "guided_regex"),
    ("guided_choice", [], "guided_choice"),
    ("guided_choice", "yes", "guided_choice"),
    ("guided_choice", ["a", 1], "guided_choice[1]"),
    ("guided_choice", ["a"] * 5000, "guided_choice"),
    ("guided_grammar", " ", "guided_grammar"),
    ("grammar", {}, "grammar"),
    ("structured_outputs", "x", "structured_outputs"),
    ("structured_outputs", {}, "structured_outputs"),
    ("structured_outputs", {"json_object": False}, "structured_outputs"),
    ("structured_outputs", {"json_object": 1}, "structured_outputs.json_object"),
    ("structured_outputs", {"json": SCHEMA, "regex": "a"}, "structured_outputs"),
    ("structured_outputs", {"whitespace_pattern": " "}, "structured_outputs.whitespace_pattern"),
    ("structured_outputs", {"structural_tag": "{"}, "structured_outputs.structural_tag"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "param"), BAD)
def test_bad_values_name_the_member(field: str, value: Any, param: str) -> None:
    with pytest.raises(TidemillError) as caught:
        constraint_of({field: value})
    assert caught.value.kind is ErrorKind.BAD_REQUEST
    assert caught.value.param == param
    assert param in caught.value.message and len(caught.value.message) < 500


def test_two_constraints_name_both() -> None:
    with pytest.raises(TidemillError) as caught:
        constraint_of({"guided_regex": "a", "grammar": 'root ::= "a"'})
    assert "guided_regex" in caught.value.message and "grammar" in caught.value.message
    both = {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}
    with pytest.raises(TidemillError) as caught:
        constraint_of(both)
    assert "response_format" in caught.value.message
    assert caught.value.param == "structured_outputs.regex"
