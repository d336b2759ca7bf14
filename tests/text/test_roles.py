"""Orders of roles that a template rejects are adapted, and no others; nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.shared_data import PUBLISHED_TEMPLATES
from helpers.tiny_text import tokenizer_data

from tidemill.grammar.schema import prepared
from tidemill.text.abilities import Abilities
from tidemill.text.answering import ChatSide
from tidemill.text.prompt import render_prompt
from tidemill.text.prompt_options import PromptOptions
from tidemill.text.roles import adapted
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer
from tidemill.text.tools import tool_use

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
FIRST_ONLY = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system message must be first') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
DROPS_LATER = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
    "[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)
STRICT = (
    "{% set turns = messages %}{% if messages[0].role == 'system' %}"
    "{% set turns = messages[1:] %}[system]{{ messages[0].content }}{% endif %}"
    "{% for m in turns %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)


def said(letters: str) -> list[dict[str, Any]]:
    """Messages by the initials of their roles, numbered."""
    names = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}
    return [{"role": names[letter], "content": str(i)} for i, letter in enumerate(letters)]


@pytest.mark.parametrize(
    ("source", "early", "alternating"),
    [
        (PLAIN, False, False),
        (FIRST_ONLY, True, False),
        (DROPS_LATER, True, False),
        (STRICT, True, True),
        (None, False, False),
    ],
)
def test_abilities(source: str | None, early: bool, alternating: bool) -> None:
    abilities = Abilities.of(ChatTemplate(source))
    assert (abilities.early_instructions, abilities.alternating) == (early, alternating)


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        (PLAIN, "[system]0[user]1[user]2[assistant]3[system]4[user]5"),
        (FIRST_ONLY, "[system]0[user]1[user]2[assistant]3[user]4[user]5"),
        (DROPS_LATER, "[system]0[user]1[user]2[assistant]3[user]4[user]5"),
        (STRICT, "[system]0[user]1\n\n2[assistant]3[user]4\n\n5"),
    ],
)
def test_every_word_is_rendered(source: str, rendered: str) -> None:
    template = ChatTemplate(source)
    messages = adapted(said("suuasu"), Abilities.of(template))
    assert template.render(messages) == rendered


def test_names_and_parts() -> None:
    strict = Abilities(alternating=True, early_instructions=True)
    named = [{"role": "user", "content": "a", "name": n} for n in ("x", "x", "y")]
    assert [m["content"] for m in adapted(named, strict)] == ["a\n\na", "a"]
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}]}, *said("du")]
    (message,) = adapted(parts, strict)
    assert "".join(part["text"] for part in message["content"]) == "a\n\n0\n\n1"
    assert adapted(said("sdu"), strict) == said("sdu")  # leading instructions stay


def test_published_templates_render_what_agents_send() -> None:
    """Two messages of a user, a call and its result, and instructions behind the answer."""
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    conversation = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "You are in /home."},
        {"role": "user", "content": "Do it."},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Result."},
        {"role": "assistant", "content": "Done."},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Go on."},
    ]
    tokenizer = Tokenizer(tokenizer_data())
    rejected = []
    for path in PUBLISHED_TEMPLATES:
        template = ChatTemplate(path.read_text(), {"bos_token": "<s>", "eos_token": "</s>"})
        side = ChatSide.of(tokenizer, template, prepared)
        tools = side.tool_abilities.tools and side.tool_abilities.calls
        use = tool_use([{"type": "function", "function": function}] if tools else None)
        messages = conversation if tools else [*conversation[:3], *conversation[5:]]
        text = render_prompt(template, side, messages, PromptOptions(adapt_roles=True), use)
        if not all(m["content"] in text for m in messages if "content" in m):
            rejected.append(path.name)
    assert not rejected
