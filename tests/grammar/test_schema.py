"""The keyword table: keywords that llguidance ignores are rejected, valid documents accepted."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher

from tidemill.base.errors import TidemillError
from tidemill.contract.program import Grammar
from tidemill.grammar.compiler import Compiler
from tidemill.grammar.schema import formats, keywords, prepared
from tidemill.grammar.vocabulary import Vocabulary
from tidemill.loading import bundled_models, open_model


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    files = open_model(bundled_models()["brook"])
    return Compiler(Vocabulary(files.tokenizer, 3072, files.eos_token_ids))


def dumps(value: Any, **style: Any) -> str:
    """JSON in its shortest spelling of characters: none is escaped that need not be."""
    return json.dumps(value, ensure_ascii=False, **style)


def accepts(compiler: Compiler, matcher: LLMatcher, text: str) -> bool:
    ids = compiler.vocabulary(text.encode())
    mine = matcher.deep_copy()
    return mine.try_consume_tokens(ids) == len(ids) and mine.is_accepting()


# schema, instances that are valid in the schema's key order, instances that are not
CASES: list[tuple[Any, list[Any], list[Any]]] = [
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "äöü"], ["a", "abcd", 1]),
    ({"type": "integer", "minimum": -3, "exclusiveMaximum": 12}, [-3, 0, 11], [-4, 12, 1.5]),
    ({"type": "integer", "multipleOf": 7}, [0, 7, 49], [1, 50]),
    ({"type": "number", "minimum": 0.5, "maximum": 2}, [0.5, 1, 1.25, 2], [0.4, 2.1]),
    ({"enum": [1, "a", None, True, [1, 2]]}, [1, "a", None, True], [2, "b", False]),
    ({"const": {"a": [1]}}, [{"a": [1]}], [{"a": [2]}, {}]),
    ({"type": ["string", "null"]}, ["x", None], [1, []]),
    (
        {"type": "string", "format": "date", "pattern": "^[012]", "allOf": [{"maxLength": 10}]},
        ["2024-02-29", "2000-02-29", "0400-02-29", "0001-12-31", "1900-02-28"],
        ["2023-02-29", "1900-02-29", "0000-01-01", "2024-04-31", "3000-01-01"],
    ),
    (
        {"format": "date-time"},
        ["2024-02-29T23:59:00Z", "1998-12-31t15:59:60.123-08:00", 1],
        ["2023-02-29T10:00:00Z", "0000-01-01T10:00:00Z"],
    ),
    (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
        [[True], [False, True]],
        [[], [1], [True, True, True]],
    ),
    (
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
        [["a", 1]],
        [["a", "b"], ["a", 1, 2]],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "required": ["b"],
            "additionalProperties": False,
        },
        [{"b": "x"}, {"a": 1, "b": "x"}],
        [{}, {"a": 1}, {"b": "x", "c": 1}],
    ),
    (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        [{}, {"x": 1}],
        [{"x": "y"}],
    ),
    (
        {
            "type": "object",
            "patternProperties": {"^a": {"type": "integer"}},
            "additionalProperties": False,
        },
        [{"ab": 1}],
        [{"b": 1}, {"ab": "x"}],
    ),
    ({"type": "string", "pattern": "^[a-c]+$"}, ["abc"], ["abd", ""]),
    ({"type": "string", "pattern": "b"}, ["abc", "b"], ["ac"]),
    ({"type": "string", "format": "date"}, ["2026-11-21"], ["2026-13-01", "today"]),
    ({"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["x"]),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None]),
    (
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": kind}, "v": {"type": of}},
                    "required": ["kind", "v"],
                }
                for kind, of in (("a", "integer"), ("b", "string"))
            ]
        },
        [{"kind": "a", "v": 1}, {"kind": "b", "v": "x"}],
        [{"kind": "a", "v": "x"}, {"kind": "c", "v": 1}],
    ),
    (
        {"allOf": [{"type": "string", "pattern": "^a"}, {"maxLength": 3}]},
        ["a", "abc"],
        ["b", "abcd"],
    ),
    (
        {
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                    "required": ["next"],
                    "additionalProperties": False,
                }
            },
            "$ref": "#/$defs/node",
        },
        [{"next": None}, {"next": {"next": None}}],
        [{}, {"next": 1}],
    ),
    (True, [1, "a", None, [1], {"a": 1}], []),
    ({"title": "T", "description": "d", "default": 1, "type": "integer"}, [1], ["a"]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), CASES, ids=[str(c[0])[:40] for c in CASES])
def test_what_is_allowed_is_what_is_valid(
    compiler: Compiler, schema: Any, good: list[Any], bad: list[Any]
) -> None:
    matcher = compiler.matcher(Grammar("json_schema", json.dumps(schema)))
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    for value in good:
        assert validator.is_valid(value)
        for text in (dumps(value), dumps(value, separators=(",", ":"))):
            assert accepts(compiler, matcher, text), text
        assert accepts(compiler, matcher, dumps(value, indent=2))
    for value in bad:
        assert not accepts(compiler, matcher, dumps(value)), value


def test_every_keyword_is_decided() -> None:
    """Each keyword of each draft's vocabulary is enforced, an annotation, or rejected by name."""
    decided = keywords.ENFORCED | keywords.ANNOTATIONS | set(keywords.REJECTED)
    for validator in (
        jsonschema.Draft4Validator,
        jsonschema.Draft7Validator,
        jsonschema.Draft202012Validator,
    ):
        assert set(validator.VALIDATORS) <= decided, set(validator.VALIDATORS) - decided


def test_formats_are_those_that_are_enforced(compiler: Compiler) -> None:
    usual = {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
    assert usual <= formats.ENFORCED
    for name in formats.ENFORCED:
        source = json.dumps({"type": "string", "format": name})
        matcher = compiler.matcher(Grammar("json_schema", source))
        assert not accepts(compiler, matcher, '"not one of them!"'), name


@pytest.mark.parametrize("depth", [61, 200, 5000])
def test_deep_and_wide_schemas_are_refused_quickly(compiler: Compiler, depth: int) -> None:
    source = '{"items":' * depth + "{}" + "}" * depth
    with pytest.raises(TidemillError, match=r"deeper|valid JSON"):
        compiler.matcher(Grammar("json_schema", source, "schema"))
    with pytest.raises(TidemillError, match="values are more"):
        compiler.matcher(Grammar("json_schema", json.dumps({"enum": list(range(20000))})))
    with pytest.raises(TidemillError, match="bytes"):
        compiler.matcher(Grammar("regex", "a" * 300_000))


def test_a_language_is_compiled_once(compiler: Compiler) -> None:
    before = compiler.stats.compiled
    for _ in range(3):
        compiler.matcher(Grammar("regex", "once+"))
    assert compiler.stats.compiled == before + 1


@pytest.mark.parametrize(
    ("schema", "at", "says"),
    [
        ({"properties": {f"p{i}": {} for i in range(451)}}, "s.properties", "not required"),
        (
            {"items": {"properties": {f"p{i}": {} for i in range(2001)},
                       "required": [f"p{i}" for i in range(2001)]}},
            "s.items.properties",
            "2001 properties",
        ),
        ({"required": "name"}, "s.required", "list of names"),
        ({"required": [1]}, "s.required", "list of names"),
    ],
)  # fmt: skip
def test_bounds_of_one_object(schema: Any, at: str, says: str) -> None:
    with pytest.raises(TidemillError) as caught:
        prepared(dumps(schema), "s")
    assert caught.value.param == at and says in caught.value.message


def test_as_many_properties_as_are_taken_can_be_followed(compiler: Compiler) -> None:
    names = [f"p{i}" for i in range(keywords.MAX_OPTIONAL)]
    source = dumps({"properties": {n: {"type": "null"} for n in names}, "type": "object"})
    matcher = compiler.matcher(Grammar("json_schema", source, "s"))
    for document in ({}, dict.fromkeys(names), dict.fromkeys(names[::7]), {names[-1]: None}):
        assert accepts(compiler, matcher, dumps(document))
