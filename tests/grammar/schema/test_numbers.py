"""Integers and bounds at the limits of doubles: exact, moved inward, or rejected by name."""

from __future__ import annotations

import json
import math
import random
from decimal import Decimal
from typing import Any

import pytest
from helpers.schema_language import allowed, allows, compiler, rejection

from tidemill.base.errors import TidemillError
from tidemill.contract.program import Grammar
from tidemill.grammar.schema import prepared

POWERS = [2**31, 2**32, 2**53, 2**62, 2**63, 2**64, 10**18, 10**19, 10**30]
EDGES = sorted({sign * (p + d) for sign in (1, -1) for p in POWERS for d in (-1025, -1, 0, 1, 7)})
NUMBERS: list[Any] = [*EDGES, 0, 1e30, -1e20, 1.5e300, -1.7976931348623157e308, 5e-324, 0.1, -2.5]


@pytest.mark.parametrize("value", [*NUMBERS, [2**53 + 1], {"a": 2**63}], ids=str)
def test_a_constant_is_exact_or_rejected(value: Any) -> None:
    schema = {"const": value}
    try:
        compiler().matcher(Grammar("json_schema", json.dumps(schema), "s"))
    except TidemillError as error:
        assert error.param == "s.const" and value != 0.1
        assert rejection({"items": {"enum": [1, value]}})[0] == "s.items.enum"
        return
    text = json.dumps(value) if not isinstance(value, float) else f"{_decimal(value)}"
    assert allows(schema, text), text
    if isinstance(value, int):
        assert not allowed(schema, (str(value + d) for d in (-1, 1)))


def _decimal(value: float) -> str:
    """As digits without an exponent, in which constants are written."""
    text = format(Decimal(repr(value)), "f")
    return text.removesuffix(".0")


@pytest.mark.parametrize("keyword", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
@pytest.mark.parametrize("kind", ["integer", "number", None])
def test_no_document_crosses_a_bound(keyword: str, kind: str | None) -> None:
    """For every edge: what is allowed obeys it as validators compute it."""
    for bound in NUMBERS:
        schema = {keyword: bound} | ({"type": kind} if kind else {})
        try:
            compiler().matcher(Grammar("json_schema", json.dumps(schema), "s"))
        except TidemillError as error:
            assert error.param == f"s.{keyword}", (schema, error)
            assert abs(bound) >= 10**18 - 2000, (schema, error)
            continue
        for value in (v for v in NUMBERS if isinstance(v, int)):
            obeys = {
                "minimum": value >= bound,
                "maximum": value <= bound,
                "exclusiveMinimum": value > bound,
                "exclusiveMaximum": value < bound,
            }[keyword]
            found = allows(schema, str(value))
            assert obeys or not found, (schema, value)
            if abs(value) <= 2**53 and abs(bound) <= 2**53 and isinstance(bound, int):
                assert found is obeys, (schema, value)


@pytest.mark.parametrize("low", [-(10**30), -1e30, -(2**63), -(2**63) + 1, -(2**53) - 1, -5, 2**53])
@pytest.mark.parametrize("high", [-1e20, -(2**63), -1, 2**53 + 1, 2**63 - 1, 2**64 - 1, 1e30])
def test_ranges_of_integers(low: Any, high: Any) -> None:
    schema = {"type": "integer", "minimum": low, "maximum": high}
    try:
        compiler().matcher(Grammar("json_schema", json.dumps(schema), "s"))
    except TidemillError as error:
        assert low > high or error.param in ("s.minimum", "s.maximum")
        return
    tried = [*EDGES, int(low), int(high), int(low) - 1, int(high) + 1]
    assert all(low <= int(text) <= high for text in allowed(schema, map(str, tried)))
    # Nothing is lost but next to an end that is no double, and beyond 64 bits.
    inner = [v for v in EDGES if low + 1024 <= v <= high - 1024 and abs(v) < 2**63 - 1024]
    assert allowed(schema, map(str, inner)) == list(map(str, inner))


def test_int64_is_taken_and_ids_are_not_rounded() -> None:
    schema = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    ids = ["1234567890123456789", "-1234567890123456789", "9223372036854775807"]
    assert allowed(schema, [*ids, "9223372036854775808", "-9223372036854775809"]) == ids
    assert rejection({"enum": [1234567890123456789]})[0] == "s.enum"
    narrow = {"type": "integer", "minimum": 1234567890123456780, "maximum": 1234567890123456799}
    assert rejection(narrow)[0] == "s.minimum"


def test_decimals_are_exact_or_rejected() -> None:
    """The library's reader takes one in ten doubles of 17 digits for its neighbour."""
    rng = random.Random(3)
    written = 0
    for _ in range(200):
        value = rng.choice([rng.random(), rng.uniform(0, 100), round(rng.random() * 1000, 3)])
        if prepared_or_none({"const": value}) is None:
            assert len(repr(value)) > 16 and rejection({"const": value})[0] == "s.const"
            continue
        assert allows({"const": value}, _decimal(value))
        assert not allows({"exclusiveMaximum": value}, _decimal(value))
        assert not allows({"exclusiveMinimum": value}, _decimal(value))
        written += 1
    assert written > 100


def prepared_or_none(schema: Any) -> str | None:
    try:
        return prepared(json.dumps(schema), "s")
    except TidemillError:
        return None


def test_what_rounds_to_an_excluded_bound_is_not_written() -> None:
    for schema, text in (
        ({"type": "number", "exclusiveMaximum": 12}, "11.99999999999999999999"),
        ({"type": "number", "exclusiveMinimum": 0.1}, "0.10000000000000000001"),
        ({"type": "number", "minimum": 4, "exclusiveMaximum": True, "maximum": 7}, "6." + "9" * 30),
    ):
        assert not allows(schema, text), text
    texts = ["11.9999", "11.9", "11.9999999999999", "11", "11.5", "-3.5"]
    assert allowed({"type": "number", "exclusiveMaximum": 12}, [*texts, "12", "12.5"]) == texts
    assert allowed({"type": "number", "exclusiveMinimum": 0}, ["0", "0.001", "-1"]) == ["0.001"]


@pytest.mark.parametrize("high", [{"maximum": 0.5}, {"maximum": 1}, {"exclusiveMaximum": 1}, {}])
def test_zero_is_excluded(high: dict[str, Any]) -> None:
    """The library forgets so where the other end is below 1."""
    texts = ["0", "0.0", "-0", "-0.0", "0.5", "0.25", "0.000001", "-0.5"]
    above = {"type": "number", "exclusiveMinimum": 0, **high}
    assert allowed(above, texts) == ["0.5", "0.25", "0.000001"]
    low = {key.replace("Max", "Min").replace("max", "min"): -value for key, value in high.items()}
    assert allowed({"type": "number", "exclusiveMaximum": 0, **low}, texts) == ["-0.5"]


def test_digits_that_begin_as_the_bounds_do() -> None:
    schema = {"type": "number", "minimum": -0.125, "maximum": 2.25}
    texts = ["-0.125", "-0.12", "-0.1", "0", "0.5", "2", "2.2", "2.24", "2.25"]
    assert allowed(schema, [*texts, "-0.126", "-0.2", "2.26", "2.3", "3"]) == texts
    schema = {"type": ["number", "null"], "minimum": 0.25, "exclusiveMaximum": 0.55}
    texts = ["null", "0.25", "0.3", "0.5", "0.54"]
    assert allowed(schema, [*texts, "0.2", "0.55", "0.1", "0"]) == texts


def test_formats_of_integers_are_bounds() -> None:
    edges = ["-2147483649", "-2147483648", "0", "2147483647", "2147483648"]
    assert allowed({"type": "integer", "format": "int32"}, edges) == edges[1:4]
    assert allowed({"type": "integer", "format": "uint8"}, ["-1", "0", "255", "256"]) == [
        "0",
        "255",
    ]
    assert allows({"type": ["integer", "null"], "format": "int64"}, "null")
    assert allows({"type": "number", "format": "double"}, "1.5")


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ({"type": "number", "minimum": -1.7976931348623157e308}, "s.minimum"),
        ({"type": "number", "maximum": 2**63}, "s.maximum"),
        ({"type": "number", "exclusiveMinimum": 10**18}, "s.exclusiveMinimum"),
        ({"type": "integer", "minimum": "1"}, "s.minimum"),
        ({"properties": {"a": {"maximum": "5"}}}, "s.properties.a.maximum"),
        ({"multipleOf": 2**32}, "s.multipleOf"),
    ],
)
def test_rejected_by_name(schema: Any, at: str) -> None:
    assert rejection(schema)[0] == at


def test_common_multiples_beyond_32_bits() -> None:
    """The library would take 262147 for a multiple of both."""
    large = {"type": "integer", "multipleOf": 65537, "allOf": [{"multipleOf": 65539}]}
    assert rejection({"items": large})[0] == "s.items.multipleOf"
    apart = {"$defs": {"a": {"multipleOf": 0.0009765625}}, "allOf": [{"$ref": "#/$defs/a"}]}
    assert rejection({**apart, "multipleOf": 3})[0] == "s.multipleOf"
    small = {"type": "integer", "multipleOf": 4, "allOf": [{"multipleOf": 6}]}
    assert allowed(small, ["0", "4", "6", "12", "-24"]) == ["0", "12", "-24"]
    assert allows({"items": [{"multipleOf": 65537}, {"multipleOf": 65539}]}, "[65537, 65539]")


def test_not_finite() -> None:
    for text in (
        '{"const": 1e400}',
        '{"minimum": 1e400}',
        '{"enum": [NaN]}',
        '{"maximum": -1e999}',
    ):
        with pytest.raises(TidemillError) as caught:
            compiler().matcher(Grammar("json_schema", text, "s"))
        assert caught.value.param and caught.value.param.startswith("s")
    assert math.isinf(json.loads("1e400"))
