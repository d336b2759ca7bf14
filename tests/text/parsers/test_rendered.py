"""Messages rendered by a chat template are parsed back, with the format detected in its source.

The templates are small ones of our own, each with the layout of its family's published template.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.call_layouts import TEMPLATES

from tidemill.text.parsers.engine import OutputParser
from tidemill.text.parsers.events import CallArguments, CallStart, Content, Malformed, Reasoning
from tidemill.text.parsers.formats import FORMATS, detect
from tidemill.text.template import ChatTemplate
from tidemill.text.tools import tool_use

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "on": {"type": "boolean"},
        "box": {"type": "object"},
        "note": {"type": ["string", "null"]},
    },
}
USE = tool_use([
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
    for name in ("get", "set_x")
])  # fmt: skip
ARGUMENTS: list[dict[str, Any]] = [
    {"city": "Köln 😀", "days": 3, "on": True, "note": None},
    {"city": "12", "box": {"a": ['x"', "</y>", 1.5, None]}, "note": "two\nlines"},
    {},
]


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "id": "c", "function": {"name": name, "arguments": arguments}}


MESSAGES: list[dict[str, Any]] = [
    {"content": "It is 12 °C, in {brackets} [too]."},
    {"content": "Two words.", "reasoning_content": "First this.\n\nThen that."},
    *({"content": "", "tool_calls": [call("get", a)]} for a in ARGUMENTS),
    {"content": "", "tool_calls": [call("get", ARGUMENTS[0]), call("set_x", ARGUMENTS[1])]},
    {"content": "I look.", "tool_calls": [call("set_x", ARGUMENTS[0])]},
    {"content": "", "reasoning_content": "Hm {x}.", "tool_calls": [call("get", ARGUMENTS[1])]},
]


def read(name: str, source: str, text: str) -> dict[str, Any]:
    """The message that the parser makes of a rendered turn."""
    parser = OutputParser(detect(source), USE.tools)
    events = [*parser.push(text), *parser.finish()]
    assert not any(isinstance(e, Malformed) for e in events), (name, text, events)
    calls: dict[int, list[str]] = {}
    for event in events:
        if isinstance(event, CallStart):
            calls[event.index] = [event.name, ""]
        elif isinstance(event, CallArguments):
            calls[event.index][1] += event.text
    return {
        "content": "".join(e.text for e in events if isinstance(e, Content)),
        "reasoning_content": "".join(e.text for e in events if isinstance(e, Reasoning)).strip(),
        "tool_calls": [call(n, json.loads(a)) for n, a in calls.values()],
    }


@pytest.mark.parametrize("message", MESSAGES, ids=range(len(MESSAGES)))
@pytest.mark.parametrize("name", TEMPLATES)
def test_what_a_template_renders_is_read_back(name: str, message: dict[str, Any]) -> None:
    source, thinks, beside = TEMPLATES[name]
    assert detect(source).name == name
    expected = {"content": "", "reasoning_content": "", "tool_calls": [], **message}
    if not thinks:
        expected["reasoning_content"] = ""
    if expected["tool_calls"] and not beside:
        expected["content"] = ""
    if name == "harmony":  # one call at a time
        expected["tool_calls"] = expected["tool_calls"][:1]
    turn = "{%- set m = messages[0] %}" + source
    rendered = ChatTemplate(turn).render(
        [{"role": "assistant", **expected}], add_generation_prompt=False
    )
    assert read(name, source, rendered) == expected, rendered


def test_every_format_has_a_template() -> None:
    assert set(TEMPLATES) == {f.name for f in FORMATS.values() if f.syntax is not None}
