"""Texts that a template drops are detected, even if the same words occur elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.base.errors import TidemillError
from tidemill.text import bounds, completeness
from tidemill.text.completeness import KnownShapes, check_complete
from tidemill.text.template import ChatTemplate

ALL = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
NO_SYSTEM = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
FIRST_CALL = ALL + (
    "{% for t in tools or [] %}{{ t.name }}{% endfor %}{% for m in messages if m.tool_calls %}"
    "{{ m.tool_calls[0].function.name }}{% endfor %}"
)


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def renderings(source: str, messages: list[dict[str, Any]], **more: Any) -> int:
    """How often a conversation is rendered until nothing is known to be lost."""
    template, count = ChatTemplate(source), 0

    def render(messages: Any, documents: Any) -> str:
        nonlocal count
        count += 1
        return template.render(messages, documents=documents, **more.get("variables", {}))

    documents = more.get("documents", ())
    check_complete(messages, render(messages, documents), render, source=source, **more)
    return count


CALL = {"function": {"name": "turn", "arguments": {"way": "left"}}}
OTHER = {"function": {"name": "turn", "arguments": {"way": "right"}}}

DROPPED: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any], str]] = {
    "plainly": (NO_SYSTEM, [said("system", "Be brief."), said("user", "Hi")], {}, "messages[0]"),
    "as another says it": (
        NO_SYSTEM,
        [said("system", "Be brief."), said("user", "Be brief.")],
        {},
        "messages[0]",
    ),
    "within what another says": (
        NO_SYSTEM,
        [said("system", "brief"), said("user", "Be brief, please.")],
        {},
        "messages[0]",
    ),
    "and the template says it": (
        "You are a mill." + NO_SYSTEM,
        [said("system", "You are a mill."), said("user", "Hi")],
        {},
        "messages[0]",
    ),
    "too short to tell": (NO_SYSTEM, [said("system", "er"), said("user", "Hi")], {}, "messages[0]"),
    "a second call": (
        FIRST_CALL,
        [said("user", "Go"), said("assistant", "", tool_calls=[CALL, OTHER])],
        {},
        "messages[1].tool_calls[1]",
    ),
    "a call whose tool is shown": (
        FIRST_CALL.replace("if m.tool_calls", "if false"),
        [said("user", "Go"), said("assistant", "", tool_calls=[CALL])],
        {"variables": {"tools": [{"name": "turn"}]}},
        "messages[1].tool_calls[0]",
    ),
    "a name": (ALL, [said("user", "Hi there", name="user")], {}, "messages[0].name"),
    "a part": (
        ALL.replace("m.content", "m.content[0].text"),
        [said("user", [{"type": "text", "text": t} for t in ("Hello", "World")])],
        {},
        "messages[0]",
    ),
    "a document": (
        ALL,
        [said("user", "Two a day.")],
        {"documents": [{"text": "Two a day."}]},
        "documents[0]",
    ),
}


@pytest.mark.parametrize("case", DROPPED)
@pytest.mark.parametrize("most", [0, completeness._MAX_SEARCH], ids=["marked", "searched"])
def test_what_is_dropped(case: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completeness, "_MAX_SEARCH", most)
    source, messages, more, param = DROPPED[case]
    known = KnownShapes()
    for _ in range(2):
        with pytest.raises(TidemillError, match="drops") as caught:
            renderings(source, messages, known=known, **more)
        assert caught.value.param == param and param in caught.value.message
    assert not known.digests


def test_a_shape_is_rendered_twice_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownShapes()

    def cost(*messages: dict[str, Any], source: str = ALL, **more: Any) -> int:
        return renderings(source, list(messages), known=known, **more)

    assert cost(said("system", "hi"), said("user", "hi")) == 2
    assert cost(said("system", "ho"), said("user", "ho ho")) == 1
    for other in (
        (said("user", "hi"), said("user", "hi")),
        (said("system", "hi"), said("user", "hi"), said("user", "hi")),
        (said("system", ""), said("user", "hi")),
        (said("system", "hi", name="hi"), said("user", "hi")),
        (said("system", "hi"), said("user", [{"type": "text", "text": "hi"}])),
    ):
        assert cost(*other, source=ALL + "{{ messages[0].name }}") == 2
    thinking = {"variables": {"thinking": False}}
    assert cost(said("system", "hi"), said("user", "hi"), **thinking) == 2
    assert cost(said("system", "hi"), said("user", "hi"), **thinking) == 1
    # What is not in the prompt at all is looked for whatever is known of the shape.
    with pytest.raises(TidemillError, match="drops"):
        cost(said("system", "ho"), said("user", "hi"), source=NO_SYSTEM)
    monkeypatch.setattr(completeness, "_MAX_SHAPES", len(known.digests))
    cost(*[said("user", "hi")] * 9)
    assert len(known.digests) == 1


def test_what_is_kept_costs_a_rendering_only_where_it_could_come_from_elsewhere() -> None:
    assert renderings(ALL, [said("system", "Be brief."), said("user", "How high?")]) == 1
    assert renderings(ALL, [said("system", "brief"), said("user", "Be brief.")]) == 2
    assert renderings(ALL, [said("user", " \n"), said("assistant", "")]) == 1
    quoted = ALL.replace("m.content", "m.content | tojson")
    assert renderings(quoted, [said("tool", 'Say "é"\n twice')]) == 1


def test_what_a_template_rewrites_is_not_dropped() -> None:
    switch = ALL.replace("m.content", "m.content.replace('/no_think', '') | trim")
    assert renderings(switch, [said("system", "Be brief. /no_think"), said("user", "Hi!!")]) == 2


def test_marks_that_a_template_refuses() -> None:
    picky = "{% if messages[0].content | length > 2 %}{{ raise_exception('long') }}{% endif %}"
    assert renderings(picky + ALL, [said("user", "Hi")]) == 2
    with pytest.raises(TidemillError, match="drops"):
        renderings(picky, [said("user", "Hi")])


def test_marks_do_not_stand_in_the_conversation() -> None:
    assert renderings(ALL, [said("user", "mark0x mark0x0a mark1x"), said("user", "mark")]) == 2
    with pytest.raises(TidemillError):
        renderings(NO_SYSTEM, [said("system", "x"), said("user", "mark0x0a x mark0x0z")])


def test_a_second_rendering_that_takes_too_long_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    source = "{% if 'mark' in messages[0].content %}" + endless + "{% endif %}" + ALL
    monkeypatch.setattr(bounds.Budget.__init__, "__defaults__", (0.05,))
    with pytest.raises(TidemillError, match="exceeded its limits"):
        renderings(source, [said("user", "Hi")])
