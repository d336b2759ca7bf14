"""Bodies as structs: what is taken, and which member a refusal names."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from tidemill.server.dialects.members import (
    Body,
    InvalidField,
    checked,
    documented,
    fill,
    unsupported,
    wrong_value,
)


def _even(value: Any) -> None:
    if value % 2:
        raise wrong_value("must be even")


def _never(value: Any) -> None:
    raise unsupported("nobody does this")


class Part(Body):
    kind: Literal["a", "b"] | None = None
    count: Annotated[int, checked(_even)] | None = None
    low: float | None = None
    high: float | None = None

    def finalize(self) -> None:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise wrong_value("low is above high")


class Whole(Body, kw_only=True):
    text: str
    anything: Annotated[Any, documented({"type": "string"})]
    parts: Annotated[list[Part], msgspec.Meta(min_length=1)] | None = None
    mixed: list[str | Part] | None = None
    odd: Annotated[Any, checked(_never)] = None


SOUND: dict[str, Any] = {"text": "x", "anything": {"any": [1, None]}}


def test_null_members_that_nobody_knows_are_absent_wherever_they_stand() -> None:
    document = {
        **SOUND,
        "new": None,
        "parts": [{"kind": "a", "newer": None}],
        "mixed": ["x", {"newest": None, "count": 4}],
        "odd": None,
    }
    body = fill(Whole, document)
    assert body.parts == [Part(kind="a")] and body.mixed == ["x", Part(count=4)]
    assert body.anything == {"any": [1, None]}, "what a member of any kind holds is not touched"


@pytest.mark.parametrize(
    ("more", "code", "path", "reason"),
    [
        ({"text": 5}, "invalid_type", "text", "expected `str`"),
        ({"text": None}, "invalid_type", "text", "null"),
        ({"anything": None}, "missing_required_parameter", "anything", "required"),
        ({"later": 1, "late": 2}, "unknown_parameter", "later", "not a field"),
        ({"x" * 500: 1}, "unknown_parameter", "x" * 64, ""),
        ({"parts": [{}, {"size": 0}]}, "unknown_parameter", "parts[1].size", ""),
        ({"parts": []}, "invalid_type", "parts", "length >= 1"),
        ({"parts": [{"kind": "c"}]}, "invalid_type", "parts[0].kind", "one of 'a', 'b'"),
        ({"mixed": ["x", {"kind": 1}]}, "invalid_type", "mixed[1].kind", "one of 'a', 'b'"),
        ({"parts": [{"count": True}]}, "invalid_type", "parts[0].count", "bool"),
        ({"parts": [{"count": 2.5}]}, "invalid_type", "parts[0].count", "float"),
        ({"txt": "y"}, "unknown_parameter", "txt", "did you mean text?"),
        ({"parts": [{}, {"count": 3}]}, "invalid_value", "parts[1].count", "even"),
        ({"mixed": [{"count": 3}]}, "invalid_value", "mixed[0].count", "even"),
        ({"parts": [{"low": float("inf")}]}, "invalid_value", "parts[0].low", "too large"),
        ({"parts": [{"low": 2, "high": 1}]}, "invalid_value", "parts[0]", "low is above high"),
        ({"odd": False}, "unsupported", "odd", "nobody"),
    ],
)
def test_a_refusal_names_the_member(
    more: dict[str, Any], code: str, path: str, reason: str
) -> None:
    with pytest.raises(InvalidField) as caught:
        fill(Whole, {**SOUND, **more})
    assert (caught.value.code, caught.value.path) == (code, path)
    assert reason in caught.value.reason


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidField) as caught:
        fill(Whole, {"text": "x"})
    assert (caught.value.code, caught.value.path) == ("missing_required_parameter", "anything")


def test_the_document_comes_from_the_same_declarations() -> None:
    found = msgspec.json.schema(Whole)["$defs"]["Whole"]
    assert found["required"] == ["text", "anything"] and found["additionalProperties"] is False
    assert found["properties"]["anything"] == {"type": "string"}
