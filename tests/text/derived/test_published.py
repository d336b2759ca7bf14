"""Calls and thinking rendered by published chat templates are parsed back.

The templates are shared data, which a fresh clone lacks. Small templates of our own cover the same
features in `test_derive.py`, `parsers/test_rendered.py` and `test_call_grammar.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import SHARED_DATA
from llguidance import LLMatcher, LLTokenizer

from tidemill.grammar.schema import prepared
from tidemill.text.abilities import Abilities
from tidemill.text.call_grammar import Spelling, calls_grammar
from tidemill.text.derived.derive import derive
from tidemill.text.derived.probe_calls import NAMES, SCHEMA, SCHEMAS, Call
from tidemill.text.derived.turns import Turns, common_prefix, without_thought
from tidemill.text.derived.verify import TOOLS, verify, verify_thinking
from tidemill.text.parsers.engine import OutputParser
from tidemill.text.parsers.events import Event
from tidemill.text.parsers.format import Format
from tidemill.text.recognised import recognised
from tidemill.text.template import ChatTemplate
from tidemill.text.tools import tool_use

FILES = sorted((SHARED_DATA / "templates").glob("*.jinja"))
# What is not read, and why.
NO_CALLS = {
    "HuggingFaceTB-SmolLM3-3B": "writes no calls",
    "Kimi-K2-Instruct": "rejects histories with calls, in transformers too",
}
# Whose templates write no thinking of earlier turns.
WITHOUT_HISTORY = {"DeepSeek-V3.1"}

pytestmark = pytest.mark.skipif(not FILES, reason="shared data is absent: published chat templates")
each = pytest.mark.parametrize(
    "file", [f for f in FILES if f.stem not in NO_CALLS] or [Path("none")], ids=lambda f: f.stem
)
CALLS = [Call(NAMES[0], {"qq_text": "Köln <x>", "qq_on": True}), Call(NAMES[1], {"qq_count": 1})]


def opened(file: Path) -> tuple[ChatTemplate, Abilities, Turns]:
    template = ChatTemplate(file.read_text(), {"bos_token": "<s>", "eos_token": "</s>"})
    template = template.chosen(tools=True)
    abilities = Abilities.of(template)
    return template, abilities, Turns(template, abilities, SCHEMAS)


def written(turns: Turns, form: Format) -> str:
    """What a model writes for calls, by its template."""
    text = turns.turn(CALLS) or turns.turn(CALLS[:1])
    assert text is not None
    return without_thought(text[len(common_prefix(turns.prompt() or "", text)) :], form.think)


def joined(events: Sequence[Event]) -> dict[str, str]:
    """Texts by kind and call."""
    found: dict[str, str] = {}
    for event in events:
        key = f"{type(event).__name__} {getattr(event, 'index', '')}"
        text = getattr(event, "text", "") or getattr(event, "name", "")
        found[key] = found.get(key, "") + text
    return found


@each
def test_the_table_reads_what_is_rendered(file: Path) -> None:
    template, abilities, turns = opened(file)
    form = recognised(template, abilities).form
    assert form.name != "derived"
    verdict = verify(form, turns)
    assert verdict.sure and verdict.rendered >= 10
    if abilities.history and turns.turn(content="x", thought="Qq thought") is not None:
        shown = "Qq thought" in (turns.turn(content="x", thought="Qq thought") or "")
        assert not shown or verify_thinking(form, turns)


@each
def test_with_the_table_hidden_the_format_is_derived(file: Path) -> None:
    template, abilities, turns = opened(file)
    made = derive(template, abilities)
    assert made is not None and made[1].sure
    body = written(turns, made[0])
    whole = joined(read(made[0], [body]))
    for at in range(0, len(body), 5):
        assert joined(read(made[0], [body[:at], body[at:]])) == whole


@each
def test_however_it_is_cut(file: Path) -> None:
    template, abilities, turns = opened(file)
    form = recognised(template, abilities).form
    body = written(turns, form)
    whole = joined(read(form, [body]))
    assert "CallEnd 0" in whole
    assert joined(read(form, list(body))) == whole
    for at in range(len(body)):
        assert joined(read(form, [body[:at], body[at:]])) == whole


def read(form: Format, chunks: Sequence[str]) -> list[Event]:
    parser = OutputParser(form, TOOLS)
    events = [event for chunk in chunks for event in parser.push(chunk)]
    return [*events, *parser.finish()]


# Whose grammar writes another layout of the same calls: without ids, line breaks or a recipient.
OTHER_LAYOUT = {
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "openai-gpt-oss-120b",
}


@each
def test_the_grammar_writes_the_layout(file: Path) -> None:
    template, abilities, turns = opened(file)
    form = recognised(template, abilities).form
    use = tool_use(
        [{"type": "function", "function": {"name": n, "parameters": SCHEMA}} for n in NAMES]
    )
    tools = [replace(tool, schema=prepared(tool.schema, "x")) for tool in use.tools]
    source = calls_grammar(form, tools, Spelling({}), required=True, parallel=False)
    vocabulary = LLTokenizer("byte")
    matcher = LLMatcher(vocabulary, source, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    body = turns.turn([Call(NAMES[0], {"qq_text": "Rome", "qq_count": 7, "qq_on": True})])
    assert body is not None
    mark = form.section[0] or form.begin
    body = body[max(0, body.rfind(mark) if mark else body.find("{")) :]
    tokens = vocabulary.tokenize_str(body)
    count = matcher.validate_tokens(tokens)
    # What follows ends the turn.
    ends = (matcher.consume_token(token) and matcher.is_accepting() for token in tokens[:count])
    assert any(ends) != (file.stem in OTHER_LAYOUT), body
