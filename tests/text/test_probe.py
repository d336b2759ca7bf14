"""Probe conversations are rendered like a request's, or not at all."""

from __future__ import annotations

from typing import Any

from tidemill.text.abilities import Abilities
from tidemill.text.probe import render_probe
from tidemill.text.template import ChatTemplate

OBJECTS = (
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }} "
    "{{ c.function.arguments | tojson }}>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}{{ mood }}"
)
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def rendered(source: str, *messages: dict[str, Any], **more: Any) -> str | None:
    template = ChatTemplate(source)
    return render_probe(template, Abilities.of(template), messages, **more)


def test_arguments_take_the_form_of_the_template() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert rendered(
        OBJECTS, USER, calling, tools=[TOOL], add_generation_prompt=False, mood="!"
    ) == ('f;[user] hi[assistant] <f {"a": 1}>!')
    assert rendered("{{ messages[0].content }}", USER, calling) is None


def test_what_a_template_rejects_is_none() -> None:
    assert rendered("{{ raise_exception('no') }}", USER) is None
