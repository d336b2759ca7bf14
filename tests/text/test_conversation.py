"""Messages for a template: tool calls, their results, earlier thinking, and rejections."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.base.errors import TidemillError
from tidemill.text.abilities import Abilities
from tidemill.text.completeness import check_complete
from tidemill.text.conversation import check_messages
from tidemill.text.template import ChatTemplate

# Repeats calls as JSON of an object, knows tool names and thinking of earlier turns.
OBJECTS = """
{%- for m in messages -%}
[{{ m.role }}]{{ m.reasoning_content }}{{ m.content }}
{%- for c in m.tool_calls or [] -%}<{{ c.function.name }} {{ c.function.arguments | tojson }}>
{%- endfor -%}
{%- endfor -%}
{%- for t in tools or [] -%}{{ t | tojson }}{%- endfor -%}
{%- if enable_thinking -%}(think){%- endif -%}
"""
# Joins the arguments to other text, as DeepSeek's do.
TEXTS = """
{%- for m in messages -%}
[{{ m.role }}]{{ m.content }}
{%- for c in m.tool_calls or [] -%}{{ '<' + c.function.name + ' ' + c.function.arguments + '>' }}
{%- endfor -%}
{%- endfor -%}
"""
# Renders names, and rejects system messages.
NAMES = """
{%- for m in messages -%}
{%- if m.role == 'system' %}{{ raise_exception('no system') }}{% endif -%}
[{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}]{{ m.content }}
{%- endfor -%}
"""
# Reads arguments one by one.
ITEMS = """
{%- for m in messages -%}
[{{ m.role }}]{{ m.content }}
{%- for c in m.tool_calls or [] -%}<{{ c.function.name }}
{%- for k, v in c.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}>
{%- endfor -%}
{%- endfor -%}
"""
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
USER = {"role": "user", "content": "hi"}


def call(name: str = "f", arguments: Any = '{"a": 1}', **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def calling(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def read(source: str, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    template = ChatTemplate(source)
    plain = check_messages(messages, Abilities.of(template), source)
    check_complete(plain, template.render(plain), lambda messages, _: template.render(messages))
    return plain


def test_abilities() -> None:
    assert Abilities.of(ChatTemplate(OBJECTS)) == Abilities(
        tools=True,
        calls=True,
        broken_arguments=True,
        switch="enable_thinking",
        history=("reasoning_content",),
    )
    texts = Abilities.of(ChatTemplate(TEXTS))
    assert texts.calls and texts.text_arguments and not texts.tools
    assert Abilities.of(ChatTemplate(NAMES)).names == {"user", "assistant"}
    assert Abilities.of(ChatTemplate(PLAIN)) == Abilities()
    assert Abilities.of(ChatTemplate(None)) == Abilities()


def test_arguments_take_the_form_the_template_wants() -> None:
    for arguments in ('{"a": 1}', {"a": 1}):
        [_, message] = read(OBJECTS, USER, calling(call(arguments=arguments)))
        assert message["content"] == ""
        assert message["tool_calls"][0]["function"]["arguments"] == {"a": 1}
        [_, message] = read(TEXTS, USER, calling(call(arguments=arguments)))
        assert message["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert read(OBJECTS, calling(call(arguments="")))[0]["tool_calls"][0]["function"] == {
        "name": "f",
        "arguments": {},
    }


def test_results_follow_their_calls() -> None:
    messages = [
        USER,
        calling(call("f", id="x"), call("g", id="y")),
        {"role": "tool", "tool_call_id": "y", "content": "second"},
        {"role": "tool", "tool_call_id": "x", "content": "first", "name": "f"},
        USER,
    ]
    plain = read(OBJECTS, *messages)
    assert [m["content"] for m in plain[2:4]] == ["first", "second"]
    assert [m["name"] for m in plain[2:4]] == ["f", "g"]
    bare = [USER, calling(call()), {"role": "tool", "content": "r"}]
    assert read(OBJECTS, *bare)[2] == {"role": "tool", "content": "r"}


def test_ids_for_templates_that_want_nine_characters() -> None:
    picky = OBJECTS.replace(
        "<{{ c.function.name }}",
        "{% if c.id|length != 9 %}{{ raise_exception('bad id') }}{% endif %}<{{ c.function.name }}",
    )
    assert Abilities.of(ChatTemplate(picky)).short_ids
    assert not Abilities.of(ChatTemplate(OBJECTS)).short_ids
    result = {"role": "tool", "tool_call_id": "call_0123456789abcdef", "content": "r"}
    plain = read(picky, USER, calling(call(id="call_0123456789abcdef")), result)
    assert plain[1]["tool_calls"][0]["id"] == plain[2]["tool_call_id"]
    assert len(plain[2]["tool_call_id"]) == 9
    kept = read(picky, USER, calling(call(id="abc123XYZ")))
    assert kept[1]["tool_calls"][0]["id"] == "abc123XYZ"


def test_thinking_of_earlier_turns() -> None:
    said = {"role": "assistant", "content": "a", "reasoning_content": "t", "reasoning": "t"}
    assert read(OBJECTS, USER, said)[1] == {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "t",
    }
    assert read(PLAIN, USER, said)[1] == {"role": "assistant", "content": "a"}
    cut_short = {"role": "assistant", "content": None, "reasoning": "t"}
    assert read(OBJECTS, USER, cut_short)[1]["reasoning_content"] == "t"
    with_error = {"role": "assistant", "content": "a", "tool_call_errors": ["why"]}
    assert read(OBJECTS, USER, with_error)[1] == {"role": "assistant", "content": "a"}


def test_an_answer_that_says_nothing_goes_back() -> None:
    for said in ({}, {"content": None}, {"content": None, "tool_calls": []}):
        message = {"role": "assistant", **said}
        assert read(OBJECTS, USER, message, USER)[1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("written", ['{"a": ', "[1]", "no JSON", "null"])
def test_arguments_that_are_no_object_are_given_as_text(written: str) -> None:
    for source, wanted in (
        (OBJECTS, written),
        (TEXTS, written),
        (ITEMS, {"arguments": written}),
    ):
        [_, message] = read(source, USER, calling(call(arguments=written)))
        assert message["tool_calls"][0]["function"]["arguments"] == wanted


def test_names_reach_the_model() -> None:
    named = [{**USER, "name": "ann"}, {"role": "assistant", "content": "yes", "name": "bot"}]
    assert read(NAMES, *named) == named
    assert read(PLAIN, *named) == [
        {"role": "user", "content": "ann: hi"},
        {"role": "assistant", "content": "yes"},
    ]
    # A word that stands in every prompt is no name that was written.
    assert read(PLAIN, {**USER, "name": "user"})[0]["content"] == "user: hi"
    assert read(NAMES, {**USER, "name": "user"})[0]["name"] == "user"


def test_what_clients_keep_beside_a_message_is_not_shown() -> None:
    kept = {"id": "m1", "metadata": {"a": 1}, "annotations": [], "index": 0, "logprobs": None}
    assert read(PLAIN, {**USER, **kept})[0] == USER
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    assert read(PLAIN, {"role": "user", "content": [part]})[0] == USER
    named = {"type": "input_text", "text": "hi"}
    assert read(PLAIN, {"role": "user", "content": [named]})[0] == USER
    assert read(PLAIN + "{{ messages[0].metadata.a }}", {**USER, **kept})[0]["metadata"] == {"a": 1}
    parsed = call(id="x", cache_control={"type": "ephemeral"})
    parsed["function"]["parsed_arguments"] = {"a": 1}
    assert read(OBJECTS, USER, calling(parsed))[1]["tool_calls"] == [
        call(arguments={"a": 1}, id="x")
    ]


BAD: list[tuple[str, list[dict[str, Any]], str]] = [
    (OBJECTS, [{"role": "tool", "tool_call_id": "x"}], "messages[0].tool_call_id"),
    (OBJECTS, [USER, calling({})], "messages[1].tool_calls[0].function"),
    (OBJECTS, [USER, {**USER, "tool_calls": [call()]}], "messages[1].tool_calls"),
    (OBJECTS, [{**USER, "reasoning_content": "t"}], "messages[0].reasoning_content"),
    (OBJECTS, [USER, calling(call(type="custom"))], "messages[1].tool_calls[0].type"),
    (OBJECTS, [USER, calling(call(arguments=5))], "messages[1].tool_calls[0].function.arguments"),
    (PLAIN, [USER, calling(call())], "messages[1].tool_calls"),
    (
        OBJECTS,
        [USER, calling(call(id="x")), {"role": "tool", "content": "r", "tool_call_id": "z"}],
        "messages[2].tool_call_id",
    ),
    (
        OBJECTS,
        [USER, {"role": "tool", "content": "r", "tool_call_id": "z"}],
        "messages[1].tool_call_id",
    ),
    (PLAIN, [{**USER, "surprise": 1}], "messages[0].surprise"),
    (PLAIN, [{**USER, "name": 5}], "messages[0].name"),
    (
        OBJECTS,
        [
            USER,
            calling(call(id="x")),
            {"role": "tool", "content": "r", "tool_call_id": "x", "name": "g"},
        ],
        "messages[2].name",
    ),
    (
        OBJECTS,
        [USER, {"role": "assistant", "content": "a", "reasoning": "t", "reasoning_content": "u"}],
        "messages[1].reasoning",
    ),
    (
        OBJECTS,
        [USER, {"role": "assistant", "content": "a", "reasoning": 5}],
        "messages[1].reasoning",
    ),
    (
        OBJECTS,
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "messages[0].content",
    ),
]


@pytest.mark.parametrize(("source", "messages", "param"), BAD)
def test_bad_messages_name_the_member(
    source: str, messages: list[dict[str, Any]], param: str
) -> None:
    with pytest.raises(TidemillError) as caught:
        read(source, *messages)
    assert caught.value.param == param
    assert param in caught.value.message


def test_a_template_that_drops_calls() -> None:
    only_last = OBJECTS.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]")
    with pytest.raises(TidemillError) as caught:
        read(only_last, USER, calling(call("f"), call("other")))
    assert caught.value.param == "messages[1].tool_calls[1]"


def test_calls_as_clients_keep_them() -> None:
    abilities = Abilities.of(ChatTemplate(OBJECTS))
    kept = {
        "id": "",
        "type": "",
        "thought_signature": "x",
        "function": {"name": "f", "arguments": None, "strict": True, "description": "d"},
    }
    nothing = {"role": "tool", "tool_call_id": "", "content": None}
    messages = check_messages([USER, calling(kept), nothing], abilities, OBJECTS)
    assert messages[1]["tool_calls"] == [
        {"type": "function", "function": {"name": "f", "arguments": {}}}
    ]
    assert messages[2] == {"role": "tool", "content": ""}


def test_parts_as_clients_keep_them() -> None:
    abilities = Abilities.of(ChatTemplate(OBJECTS))
    parts = [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "reasoning", "text": "!"},
        {"type": "refusal", "refusal": "no"},
        "thanks",
    ]
    user = {"role": "user", "content": ["a", {"type": "text", "text": "b"}]}
    found = check_messages([user, {"role": "assistant", "content": parts}], abilities, OBJECTS)
    assert found[0]["content"] == "ab" and found[1]["content"] == "nothanks"
    assert found[1]["reasoning_content"] == "hm!"
    only = check_messages([USER, {"role": "assistant", "content": parts[:2]}], abilities, OBJECTS)
    assert only[1]["content"] == "" and only[1]["reasoning_content"] == "hm!"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "thinking", "thinking": "hm"}]},
        {"role": "assistant", "content": [{"type": "refusal"}]},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm"}],
            "reasoning_content": "other",
        },
    ],
)
def test_parts_of_the_assistant_alone(message: dict[str, Any]) -> None:
    with pytest.raises(TidemillError):
        check_messages([message, USER], Abilities.of(ChatTemplate(OBJECTS)), OBJECTS)
