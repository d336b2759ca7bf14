"""Calls that a grammar rules, written by brook in every format and read back: each is a call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import jsonschema
import pytest
from helpers.call_layouts import CODE, DUMPED, SIGILS, whole
from helpers.constrained import Brook

from tidemill.contract.program import Grammar
from tidemill.grammar.schema import prepared
from tidemill.text.abilities import Abilities
from tidemill.text.call_grammar import Spelling, calls_grammar
from tidemill.text.derived.derive import derive
from tidemill.text.parsers.engine import OutputParser
from tidemill.text.parsers.events import CallArguments, CallStart, Content, Malformed
from tidemill.text.parsers.format import Format
from tidemill.text.parsers.formats import FORMATS
from tidemill.text.template import ChatTemplate
from tidemill.text.tools import tool_use

# What ends by itself soon, so that a warm model comes to its end.
SCHEMAS = {
    "send": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "minLength": 1, "maxLength": 12},
            "count": {"type": "integer", "minimum": -5, "maximum": 99},
            "loud": {"type": "boolean"},
            "tags": {"type": "array", "items": {"enum": ["a", "</x"]}, "maxItems": 2},
            "note": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
            "unit": {"$ref": "#/$defs/Unit"},
        },
        "required": ["text", "tags"],
        "additionalProperties": False,
        "$defs": {"Unit": {"type": "string", "enum": ["C", "12", "a b"]}},
    },
    "stop": {"type": "object", "properties": {}, "additionalProperties": False},
}
USE = tool_use(
    [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in SCHEMAS.items()]
)
TOOLS = [replace(tool, schema=prepared(tool.schema, tool.param)) for tool in USE.tools]


def derived(turn: str) -> Format:
    """The format of a template whose marks are in no row of the table."""
    template = ChatTemplate(whole(turn))
    found = derive(template, Abilities.of(template))
    assert found is not None
    return found[0]


FORMS = [form for form in FORMATS.values() if form.syntax is not None] + [
    replace(derived(turn), name=f"derived_{name}")
    for name, turn in (("tagged", SIGILS), ("json", DUMPED), ("python", CODE))
]


@pytest.fixture(scope="module")
def brook() -> Iterator[Brook]:
    engine = Brook()
    yield engine
    engine.close()


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
def test_what_a_model_writes_is_read_as_calls(brook: Brook, form) -> None:  # type: ignore[no-untyped-def]
    source = calls_grammar(form, TOOLS, Spelling({}), required=True, parallel=False)
    phase = Grammar("lark", source, "tool_choice")
    answers = brook.ask("Send it.", phase, temperature=0.7, n=4, max_tokens=800)
    ended = 0
    for answer in answers:
        assert answer.error is None, answer.error
        text = brook.text(answer)
        parser = OutputParser(form, USE.tools)
        events = [*parser.push(text), *parser.finish()]
        if answer.finish == "length":
            continue
        ended += 1
        assert not any(isinstance(e, Content | Malformed) for e in events), (text, events)
        (name,) = [e.name for e in events if isinstance(e, CallStart)]
        found = json.loads("".join(e.text for e in events if isinstance(e, CallArguments)))
        jsonschema.validate(found, SCHEMAS[name])
    assert ended >= 2, [brook.text(a) for a in answers]
