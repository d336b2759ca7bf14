"""Capabilities of templates, detected by rendering."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemill.text import template as template_module
from tidemill.text.abilities import Abilities, ToolsVariable
from tidemill.text.template import ChatTemplate

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endif %}{% endfor %}"
)
CALLS = (
    TURNS + "{% for m in messages %}{% for c in m.tool_calls or [] %}CALL{% endfor %}{% endfor %}"
)


def abilities(source: str) -> Abilities:
    return Abilities.of(ChatTemplate(source))


@pytest.mark.parametrize(
    ("shows", "variable"),
    [
        ("{{ tools | tojson }}", ToolsVariable()),
        ("{{ tools }}", ToolsVariable()),
        ("{% if xml_tools %}{{ xml_tools | tojson }}{% endif %}", ToolsVariable("xml_tools")),
        (
            "{% for f in functions or [] %}{{ f.name }}: {{ f.parameters }}{% endfor %}",
            ToolsVariable("functions", bare=True),
        ),
        (
            "{% for t in tools or [] %}{{ t.function.name + t.function.description }}{% endfor %}",
            ToolsVariable(needed=frozenset({"description"})),
        ),
        (
            "{% for t in tools or [] %}{{ t.function.name }}"
            "{{ t.function.parameters.properties | length }}{% endfor %}",
            ToolsVariable(needed=frozenset({"parameters"})),
        ),
        (
            "{% for t in tools or [] %}{{ t.function.name }}"
            "{{ t.function.parameters.properties | tojson }}{% endfor %}",
            ToolsVariable(needed=frozenset({"parameters", "properties"})),
        ),
        ("{% for t in tools or [] %}{{ t.name }}{% endfor %}", ToolsVariable(bare=True)),
        ("{% if builtin_tools is defined %}{{ builtin_tools | join }}{% endif %}", None),
        ("{# xml_tools #}{{ 'functions' }}", None),
    ],
)
def test_the_variable_that_tools_are_given_in(shows: str, variable: ToolsVariable | None) -> None:
    found = abilities(shows + TURNS)
    assert (found.tools, found.tools_variable) == (
        variable is not None,
        variable or ToolsVariable(),
    )


def test_tools_are_given_as_the_template_takes_them() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert ToolsVariable("xml_tools").given(tools) == {"xml_tools": tools}
    assert ToolsVariable("functions", bare=True).given(tools) == {"functions": [{"name": "f"}]}
    assert ToolsVariable().given(()) == ToolsVariable().given(None) == {}


def test_tools_get_what_the_template_needs() -> None:
    every = ToolsVariable(bare=True, needed=frozenset({"description", "parameters", "properties"}))

    def filled(variable: ToolsVariable, **function: Any) -> Any:
        (given,) = variable.given([{"type": "function", "function": function}])["tools"]
        return given

    empty = {"type": "object", "properties": {}}
    assert filled(every, name="f") == {"name": "f", "description": "", "parameters": empty}
    assert filled(every, name="f", parameters={"type": "object"})["parameters"] == empty
    stated = {"parameters": {"properties": {}, "type": "object"}, "description": "d", "name": "f"}
    for variable in (every, ToolsVariable(bare=True)):
        assert json.dumps(filled(variable, **stated)) == json.dumps(stated)
    assert filled(ToolsVariable(bare=True), name="f") == {"name": "f"}


@pytest.mark.parametrize(
    ("writes", "form"),
    [
        ("{{ c.function.arguments | tojson }}", {"broken_arguments": True}),
        ("{{ c.function.arguments.items() | list }}", {}),
        # Tools printed as Python does say nothing of how arguments are written.
        ("{{ c.function.arguments | tojson }}{{ tools }}", {"broken_arguments": True}),
        (
            "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}"
            "{{ c.function.arguments | tojson }}{% endif %}{{ tools }}",
            {"broken_arguments": True},
        ),
        ("{{ '' + c.function.arguments }}", {"text_arguments": True, "broken_arguments": True}),
        ("{{ c.function.arguments }}", {"text_arguments": True, "broken_arguments": True}),
        (
            "{% if m.content is none %}{{ c.function.arguments | tojson }}{% endif %}",
            {"null_content": True, "broken_arguments": True},
        ),
        (
            "{% if c.id | length != 9 %}{{ raise_exception('id') }}{% endif %}"
            "{{ c.function.arguments | tojson }}",
            {"short_ids": True, "broken_arguments": True},
        ),
    ],
)
def test_the_form_of_calls(writes: str, form: dict[str, Any]) -> None:
    found = abilities(CALLS.replace("CALL", writes))
    assert found.calls
    for name in ("text_arguments", "broken_arguments", "null_content", "short_ids"):
        assert getattr(found, name) == form.get(name, False), name


def test_roles_names_and_parts() -> None:
    named = abilities(TURNS + "{% for m in messages %}{{ m.name if m.role == 'user' }}{% endfor %}")
    assert named.names == {"user"}
    assert abilities(TURNS + "{# m.name #}").names == frozenset()
    assert abilities(TURNS + "{{ 'developer' }}").developer
    assert not abilities(
        "{% for m in messages if m.role != 'developer' %}{{ m.content }}{% endfor %}"
    ).developer
    assert abilities(PARTS).parts == {"system", "developer", "user", "assistant", "tool"}
    assert not abilities(PARTS).only_parts
    first = PARTS.replace(
        "{% for p in m.content %}{{ p.text }};{% endfor %}", "{{ m.content[0].text }}"
    )
    assert abilities(first).parts == frozenset()
    printed = abilities(TURNS + "{# .text #}")
    assert printed.parts == frozenset() and not printed.only_parts
    only = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    assert abilities(only).only_parts


def test_thinking_is_given_under_every_name_that_is_read() -> None:
    both = abilities(TURNS + "{{ messages[0].reasoning }}{{ messages[0]['thinking'] }}")
    assert both.history == ("thinking", "reasoning")
    one = abilities(TURNS + "{{ messages[0].reasoning_content }}")
    assert one.history == ("reasoning_content",)


def test_a_template_that_does_not_end_can_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "MAX_PROBE_SECONDS", 0.05)
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    assert abilities("{{ tools }}" + TURNS + endless) == Abilities()
    grows = "{{ 'a' * 10 ** 9 if messages | selectattr('tool_calls') | list }}"
    assert abilities("{{ tools }}" + TURNS + grows) == Abilities(tools=True)
