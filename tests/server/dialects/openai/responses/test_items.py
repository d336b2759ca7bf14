"""Items of every kind of text become the messages that the model wrote or would have been shown."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.marked_model import PARIS, TIME, TOOLS, Model
from helpers.responses_api import both, create, refused, text_of

from tidemill.server.dialects.openai.responses.items import read_items, turns_of
from tidemill.server.dialects.openai.responses.sealed import seal

FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
USER = {"role": "user", "content": "Hi"}


def messages_of(*items: dict[str, Any], instructions: str | None = None) -> list[dict[str, Any]]:
    return turns_of(read_items("input", items), instructions).messages


def _call(name: str, identity: str, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": identity, "name": name, "arguments": arguments}


def _result(identity: str, output: Any = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": identity, "output": output}


def _called(name: str, identity: str, arguments: str = "{}") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": identity, "type": "function", "function": function}


def test_the_assistants_items_are_one_turn() -> None:
    thinking = {"type": "reasoning", "summary": [], "content": [_text("reasoning_text", "Hm.")]}
    said = {"type": "message", "role": "assistant", "content": [_text("output_text", "See:")]}
    assert messages_of(
        USER, thinking, said, _call("a", "1"), _call("b", "2"), _result("1"), _result("2"), USER
    ) == [
        USER,
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": "See:",
            "tool_calls": [_called("a", "1"), _called("b", "2")],
        },
        {"role": "tool", "tool_call_id": "1", "content": "done"},
        {"role": "tool", "tool_call_id": "2", "content": "done"},
        USER,
    ]


def _text(kind: str, text: str) -> dict[str, str]:
    return {"type": kind, "text": text}


def test_outputs_may_be_lists() -> None:
    output = [_text("input_text", "a"), _text("input_text", "b")]
    assert messages_of(USER, _call("f", "1"), _result("1", output))[-1]["content"] == "ab"
    custom = {"type": "custom_tool_call", "call_id": "2", "name": "sh", "input": 'ls "x"'}
    result = {"type": "custom_tool_call_output", "call_id": "2", "output": output}
    call, answer = messages_of(custom, result)
    assert call["tool_calls"] == [_called("sh", "2", '{"input": "ls \\"x\\""}')]
    assert answer["content"] == "ab"


def test_instructions_and_leading_messages_are_one_message() -> None:
    developer = {"role": "developer", "content": "Be brief."}
    system = {"role": "system", "content": "Be kind."}
    assert messages_of(developer, system, USER, instructions="Help.") == [
        {"role": "system", "content": "Help.\n\nBe brief.\n\nBe kind."},
        USER,
    ]
    assert messages_of(developer, USER)[0]["role"] == "developer"
    assert messages_of(USER, developer)[1] == developer


def test_texts_on_both_sides_of_a_call_are_one_content() -> None:
    said = [{"role": "assistant", "content": text} for text in ("One.", "Two.")]
    message = messages_of(said[0], _call("f", "1"), said[1])[0]
    assert message["content"] == "One.\nTwo." and len(message["tool_calls"]) == 1


def test_messages_between_agents_name_both() -> None:
    item = {
        "type": "agent_message",
        "author": "/root",
        "recipient": "/root/tests",
        "content": [_text("input_text", "Run them.")],
    }
    (message,) = messages_of(item)
    assert message == {"role": "user", "content": "[message from /root to /root/tests]\nRun them."}


def test_thinking_is_taken_from_content_then_seal_then_summary() -> None:
    summary = [_text("summary_text", "short")]
    sealed = {"type": "reasoning", "summary": summary, "encrypted_content": seal("long")}
    said = {"role": "assistant", "content": "x"}
    assert messages_of(sealed, said)[0]["reasoning_content"] == "long"
    foreign = {**sealed, "encrypted_content": "gAAAA"}
    assert messages_of(foreign, said)[0]["reasoning_content"] == "short"
    whole = {**sealed, "content": [_text("reasoning_text", "whole")]}
    assert messages_of(whole, said)[0]["reasoning_content"] == "whole"


def test_the_next_prompt_begins_with_the_last_one_and_its_answer(model: Model) -> None:
    """What the engine has cached of a turn is found by the next one."""
    model.text = f"<think>\nHm.\n</think>\n\nLet me see.\n{PARIS}\n{TIME}"
    how = {"tools": FLAT, "reasoning": {"effort": "low"}}
    first = create(model.http, input="Weather?", **how)
    asked = model.prompt().removesuffix("<think>\n")
    results = [_result(item["call_id"], "17") for item in first["output"] if "call_id" in item]
    create(model.http, input=results, previous_response_id=first["id"], **how)
    continued = model.prompt()
    assert continued.startswith(asked)
    # The marks of the assistant's turn are the template's business; what it said is all there.
    for part in ("Hm.", "Let me see.", '"city": "Paris"', '"city": "Zürich"'):
        assert part in continued[len(asked) :]
    history = [{"role": "user", "content": "Weather?"}, *first["output"], *results]
    create(model.http, input=history, **how)
    assert model.prompt() == continued


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "computer_call", "id": "x"}, "input[1].type"),
        ({"type": "web_search_call", "id": "x"}, "input[1].type"),
        ({"type": "image_generation_call", "id": "x"}, "input[1].type"),
        ({"type": "mcp_call", "id": "x"}, "input[1].type"),
        ({"type": "compaction", "encrypted_content": "x"}, "input[1].encrypted_content"),
        ({"content": "x"}, "input[1].type"),
        ({"role": "user"}, "input[1].content"),
        ({"role": "tool", "content": "x"}, "input[1].role"),
        ({"role": "user", "content": 3}, "input[1].content"),
        ({"role": "user", "content": ["x"]}, "input[1].content[0]"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[1].content[0].type"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[1].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[1].content[0].text"),
        ({"role": "user", "content": "x", "mood": "y"}, "input[1].mood"),
        ({"type": "function_call", "call_id": "1"}, "input[1].name"),
        ({"type": "function_call_output", "call_id": "1"}, "input[1].output"),
        (_result("1"), "input[1].call_id"),
        ({"type": "item_reference", "id": "msg_none"}, "input[1].id"),
        ({"id": "msg_none"}, "input[1].id"),
    ],
)
def test_items_are_refused_by_name(model: Model, item: dict[str, Any], param: str) -> None:
    status = 404 if param == "input[1].id" else 400
    history: list[dict[str, Any]] = [{"role": "assistant", "content": "x"}]
    if item == _result("1"):
        history = [_call("get_time", "2")]
    error = refused(model.http, status, input=[*history, item], tools=FLAT)
    assert error["param"] == param, error


def test_nulls_and_echoed_members_say_nothing(model: Model) -> None:
    model.text = "Hello."
    said = create(model.http, input="Hi")["output"][0]
    nulls = {"phase": None, "end_turn": None, "status": "completed", "created_by": "x"}
    items = [{**USER, **nulls, "id": None}, {**said, **nulls}, USER]
    assert text_of(both(model.http, input=items)) == "Hello."


def test_references_are_the_items_themselves(model: Model) -> None:
    model.text = "Hello."
    first = create(model.http, input="Hi")
    said = first["output"][0]
    create(model.http, input=[USER, said, USER])
    whole = model.prompt()
    create(model.http, input=[USER, {"type": "item_reference", "id": said["id"]}, USER])
    assert model.prompt() == whole
    create(model.http, input=[USER, {"id": said["id"]}, USER])
    assert model.prompt() == whole


def test_errors_of_the_template_name_the_item(model: Model) -> None:
    broken = {"type": "function_call_output", "call_id": "nobody", "output": "x"}
    items = [USER, _call("get_time", "1"), broken]
    error = refused(model.http, input=items, tools=FLAT, instructions="Help.")
    assert error["param"] == "input[2].call_id"
    assert "messages[" not in error["message"]
