"""Formats are derived from what chat templates render, whatever their marks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.call_layouts import (
    CODE,
    DUMPED,
    INLINE_GLM,
    PONDERS,
    SIGILS,
    TEMPLATES,
    ZAPS,
    F,
    whole,
)
from helpers.tiny_text import tokenizer_data

from tidemill.grammar.schema import prepared
from tidemill.text.abilities import Abilities
from tidemill.text.answering import ChatSide
from tidemill.text.derived.derive import derive
from tidemill.text.derived.probe_calls import SCHEMAS
from tidemill.text.derived.turns import Turns
from tidemill.text.derived.verify import verify, verify_thinking
from tidemill.text.parsers.format import Format, Gaps, JsonCall, PythonCalls, TaggedCall, ThinkMarks
from tidemill.text.parsers.formats import FORMATS, detect
from tidemill.text.recognised import Recognised, recognised
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer


def derived(source: str) -> Format | None:
    template = ChatTemplate(source)
    found = derive(template, Abilities.of(template))
    return None if found is None else found[0]


def found(source: str, **names: str) -> Recognised:
    template = ChatTemplate(source)
    return recognised(template, Abilities.of(template), **names)


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_layout_of_the_table_is_derived(name: str) -> None:
    turn, thinks, _ = TEMPLATES[name]
    template = ChatTemplate(whole(turn))
    abilities = Abilities.of(template)
    made = derive(template, abilities)
    assert made is not None
    form, verdict = made
    assert verdict.sure and verdict.rendered >= 10
    assert type(form.syntax) is type(FORMATS[name].syntax)
    turns = Turns(template, abilities, SCHEMAS)
    assert verify(FORMATS[name], turns).sure
    assert not thinks or verify_thinking(form, turns)


# The mark of one family, the layout of another.
MISLEADING = TEMPLATES["minicpm5"][0].replace("<function ", "<tool_call ").replace(
    "</function>", "</tool_call>"
) + "{#- <tool_call> #}"  # fmt: skip


@pytest.mark.parametrize(
    ("turn", "begin", "syntax"),
    [
        (ZAPS, "<zap>", JsonCall),
        (DUMPED, "<calls>", JsonCall),
        (SIGILS, "«call", TaggedCall),
        (CODE, "~~~call", PythonCalls),
        (MISLEADING, '<tool_call name="', TaggedCall),
    ],
)
def test_unknown_marks_are_found_and_said(turn: str, begin: str, syntax: type) -> None:
    recognised_ = found(whole(turn))
    form = recognised_.form
    assert (form.name, form.begin) == ("derived", begin) and isinstance(form.syntax, syntax)
    assert repr(begin) in recognised_.calls and "18 of 18 probe calls" in recognised_.calls


def test_thinking_between_unknown_marks() -> None:
    assert detect(PONDERS).think is None
    assert found(whole(PONDERS)).form.think == ThinkMarks("<ponder>", "</ponder>", "\n\n")
    plain = "{%- if m.reasoning_content %}<muse>{{ m.reasoning_content }}</muse>{% endif %}"
    form = found(whole(plain + "{{ m.content }}")).form
    assert form.syntax is None and form.think == ThinkMarks("<muse>", "</muse>", "")
    assert found(whole(PONDERS), reasoning_format="none").form.think is None


def test_white_space_behind_thinking_is_the_templates() -> None:
    near = TEMPLATES["hermes"][0].replace("</think>\n\n", "</think>\n")
    form = found(whole(near)).form
    assert form.name == "hermes" and form.think == ThinkMarks("<think>", "</think>", "\n")


def test_white_space_between_marks_is_the_templates() -> None:
    lines, line = (found(whole(turn)).form for turn in (TEMPLATES["glm45"][0], INLINE_GLM))
    assert lines == replace(FORMATS["glm45"], think=lines.think)
    assert isinstance(line.syntax, TaggedCall) and line.syntax.gaps == Gaps("", "", "", "")
    assert line.name == "glm45" and line.syntax.name == ("", "")


@pytest.mark.parametrize(
    "turn",
    [
        ZAPS.replace("f.arguments | tojson", "f.arguments | tojson | upper"),
        ZAPS.replace("{{ f.arguments | tojson }}", "{{ f.arguments | length }}"),
        ZAPS.replace("f.name", "f.name | replace('_', '')"),
        SIGILS.replace("v if v is string else v | tojson", "v | string | replace(' ', '')"),
        "{{ m.content }}" + F + "I call {{ f.name }}.{% endfor %}",
    ],
)
def test_what_is_not_read_back_is_no_format(turn: str) -> None:
    assert derived(whole(turn)) is None
    recognised_ = found(whole(turn))
    assert recognised_.form.syntax is None and "not parsed" in recognised_.calls


def test_the_table_goes_first_and_names_go_before_it() -> None:
    assert found(whole(TEMPLATES["hermes"][0])).calls == "as hermes"
    assert found(whole(ZAPS), tool_format="mistral").form.name == "mistral"


def test_a_known_mark_with_an_unreadable_layout_is_said() -> None:
    broken = TEMPLATES["hermes"][0].replace("{{ f.name }}", "{{ f.name | replace('_', '-') }}")
    recognised_ = found(whole(broken))
    assert recognised_.form.name == "hermes" and "not parsed back" in recognised_.calls


def test_it_is_said_at_start() -> None:
    side = ChatSide.of(Tokenizer(tokenizer_data()), ChatTemplate(whole(ZAPS)), prepared)
    assert "calls as the template renders them, from '<zap>' (18 of 18" in side.described()
    assert side.calls and side.thinks
