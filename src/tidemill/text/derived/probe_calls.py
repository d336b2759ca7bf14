"""Probe calls, rendered to derive a template's format, and the tools they call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Call(NamedTuple):
    """A call of a probe conversation."""

    name: str
    arguments: Mapping[str, Any]


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "qq_text": {"type": "string", "description": "text"},
        "qq_more": {"type": "string", "description": "text"},
        "qq_count": {"type": "integer", "description": "number"},
        "qq_share": {"type": "number", "description": "number"},
        "qq_on": {"type": "boolean", "description": "switch"},
        "qq_list": {"type": "array", "items": {"type": "integer"}, "description": "list"},
        "qq_box": {"type": "object", "description": "object"},
    },
    "required": ["qq_text"],
}
NAMES = ("qq_first_tool", "qq_other")
SCHEMAS = dict.fromkeys(NAMES, SCHEMA)

_TEXTS = (
    "Köln",
    "a b",
    'say "x"',
    "it's",
    "two\nlines",
    "{1}, [2]; (3)",
    "12",
    "日本😀",
    "C:\\d",
    "",
)
_OTHERS: tuple[dict[str, Any], ...] = (
    {"qq_count": -3, "qq_on": True},
    {"qq_share": 0.5, "qq_on": False},
    {"qq_list": [1, 2, 30]},
    {"qq_list": [], "qq_box": {}},
    {"qq_box": {"k": "v w", "n": [1, True, {"m": "é"}]}},
)


def probes() -> Iterator[list[Call]]:
    """The calls of each probe turn."""
    first, other = NAMES
    yield [Call(first, {"qq_text": "Rome", "qq_count": 7})]
    yield [Call(first, {"qq_text": "x"}), Call(other, {"qq_text": "y", "qq_count": 0})]
    yield [Call(other, {})]
    yield [Call(other, {}), Call(first, {}), Call(other, {"qq_more": "z"})]
    for number, text in enumerate(_TEXTS):
        more = _OTHERS[number % len(_OTHERS)]
        yield [Call(NAMES[number % 2], {"qq_text": text, **more})]
        if number % 3 == 0:
            yield [Call(first, more), Call(first, {"qq_more": text, "qq_text": text})]
