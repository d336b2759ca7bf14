"""POST /v1/responses: what a model writes becomes items, and streams and whole answers agree."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.marked_model import PARIS, TIME, TOOLS, Model
from helpers.responses_api import both, create, refused, stream, text_of

FLAT = [{"type": "function", **tool["function"], "strict": False} for tool in TOOLS]
THOUGHT = "<think>\nSeventeen.\n</think>\n\n"


def _kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def test_a_text(model: Model) -> None:
    model.text = "Hello you."
    response = both(model.http, input="Hi", temperature=0.5, metadata={"a": "b"}, user="u")
    assert text_of(response) == "Hello you."
    assert response["status"] == "completed" and response["completed_at"] >= response["created_at"]
    assert response["temperature"] == 0.5 and response["metadata"] == {"a": "b"}
    assert response["usage"]["output_tokens"] == len("Hello you.") + 1
    assert response["id"].startswith("resp_")


def test_an_empty_text_is_a_message(model: Model) -> None:
    model.text = ""
    response = both(model.http, input="Hi")
    assert _kinds(response) == ["message"] and text_of(response) == ""


def test_thinking_is_an_item_of_its_own(model: Model) -> None:
    model.text = f"{THOUGHT}It is 17."
    response = both(model.http, input="Hi", reasoning={"effort": "low"})
    assert _kinds(response) == ["reasoning", "message"]
    thinking = response["output"][0]
    assert thinking["content"] == [{"type": "reasoning_text", "text": "Seventeen."}]
    assert thinking["summary"] == [] and thinking["encrypted_content"] is None
    assert text_of(response) == "It is 17."
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_a_summary_is_the_thinking_itself(model: Model) -> None:
    model.text = f"{THOUGHT}It is 17."
    events = stream(model.http, input="Hi", reasoning={"effort": "low", "summary": "auto"})
    thinking = events[-1]["response"]["output"][0]
    assert thinking["summary"] == [{"type": "summary_text", "text": "Seventeen."}]
    deltas = [e for e in events if e["type"] == "response.reasoning_summary_text.delta"]
    assert "".join(e["delta"] for e in deltas) == "Seventeen."
    error = refused(model.http, input="Hi", reasoning={"summary": "concise"})
    assert error["param"] == "reasoning" and "detailed" in error["message"]


def test_sealed_thinking_comes_back(model: Model) -> None:
    model.text = f"{THOUGHT}It is 17."
    include = ["reasoning.encrypted_content"]
    response = create(model.http, input="Hi", include=include, store=False)
    thinking, message = response["output"]
    asked = {"role": "user", "content": "Hi"}
    # As clients send it that keep what is sealed alone.
    bare = {k: thinking[k] for k in ("type", "id", "summary", "encrypted_content")}
    then = {"role": "user", "content": "And?"}
    create(model.http, input=[asked, bare, message, then])
    sealed = model.prompt()
    create(model.http, input=[asked, thinking, message, then])
    assert model.prompt() == sealed and "It is 17." in sealed
    bare["encrypted_content"] = "gAAAAA=="
    error = refused(model.http, input=[asked, bare, message])
    assert error["param"] == "input[1].encrypted_content"
    bare["encrypted_content"] = thinking["encrypted_content"][:-8] + "AAAAAAA="
    assert refused(model.http, input=[asked, bare])["param"] == "input[1].encrypted_content"


def test_calls(model: Model) -> None:
    model.text = f"Let me see.\n{PARIS}\n{TIME}"
    response = both(model.http, input="Weather?", tools=FLAT)
    assert _kinds(response) == ["message", "function_call", "function_call"]
    message, paris, time = response["output"]
    assert message["content"][0]["text"].strip() == "Let me see."
    assert (paris["name"], json.loads(paris["arguments"])) == ("get_weather", {"city": "Paris"})
    assert (time["name"], json.loads(time["arguments"])) == ("get_time", {"city": "Zürich"})
    assert paris["call_id"] != time["call_id"] and paris["id"] != time["id"]
    assert response["status"] == "completed"


def test_text_behind_a_call_is_a_message_of_its_own(model: Model) -> None:
    model.text = f"{PARIS}\nThat is all."
    response = both(model.http, input="Weather?", tools=FLAT)
    assert _kinds(response) == ["function_call", "message"]
    assert text_of(response) == "That is all."


def test_what_is_no_call_is_text_with_the_reason(model: Model) -> None:
    model.text = '<tool_call>\n{"name": "launch", "arguments": {}}\n</tool_call>'
    response = both(model.http, input="Launch", tools=FLAT)
    (message,) = response["output"]
    assert "launch" in message["tool_call_errors"][0] and "launch" in text_of(response)


def test_a_limit_leaves_an_incomplete_item(model: Model) -> None:
    model.text = "Hello you."
    response = both(model.http, input="Hi", max_output_tokens=4)
    assert text_of(response) == "Hell" and response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert response["max_output_tokens"] == 4
    model.text = THOUGHT
    response = both(model.http, input="Hi", max_output_tokens=12)
    assert _kinds(response) == ["reasoning"] and response["status"] == "incomplete"


def test_logprobs_are_those_of_the_text(model: Model) -> None:
    model.text = f"{THOUGHT}It is 17."
    for how in ({"top_logprobs": 2}, {"include": ["message.output_text.logprobs"]}):
        response = both(model.http, input="Hi", **how)
        (part,) = response["output"][1]["content"]
        spelled = "".join(entry["token"] for entry in part["logprobs"])
        assert spelled.endswith("It is 17.") and "Seventeen" not in spelled
        assert len(part["logprobs"][0]["top_logprobs"]) == how.get("top_logprobs", 0)
    assert both(model.http, input="Hi")["output"][1]["content"][0]["logprobs"] == []


def test_structured_text_is_enforced(model: Model) -> None:
    model.text = '{"a": 1}'
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    response = both(model.http, input="Hi", text={"format": form})
    assert text_of(response) == '{"a": 1}' and response["text"]["format"] == form
    assert not model.engine.requests[-1].program.free
    wrong = {**form, "schema": "x"}
    error = refused(model.http, input="Hi", text={"format": wrong})
    assert error["param"] == "text.format.schema" and "response_format" not in error["message"]
    error = refused(model.http, input="Hi", text={"format": {"type": "poem"}})
    assert error["param"] == "text.format.type"


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "get_time"},
        {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "get_time"}],
        },
        "required",
    ],
)
def test_a_choice_of_tools_is_enforced(model: Model, choice: Any) -> None:
    model.text = TIME
    response = both(model.http, input="Time?", tools=FLAT, tool_choice=choice)
    assert response["output"][0]["name"] == "get_time" and response["tool_choice"] == choice
    assert not model.engine.requests[-1].program.free
    unknown = {"type": "function", "name": "fly"}
    error = refused(model.http, input="Hi", tools=FLAT, tool_choice=unknown)
    assert error["param"] == "tool_choice.name"


def test_a_failure_within_a_stream_is_an_event(model: Model) -> None:
    model.text = "Hello you."
    model.engine.fail_after = 3
    try:
        answer = model.http.post("/v1/responses", json={"input": "Hi", "stream": True})
        whole = model.http.post("/v1/responses", json={"input": "Hi"})
    finally:
        model.engine.fail_after = None
    last = json.loads(answer.text.strip().splitlines()[-1].removeprefix("data: "))
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert whole.status_code == 500 and "error" in whole.json()


def test_values_are_refused_by_name(model: Model) -> None:
    for body, param in (
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({}, "input"),
        ({"input": 3}, "input"),
        ({"input": "a", "n": 2}, "n"),
        ({"input": "a", "prompt": {"id": "p"}}, "prompt"),
        ({"input": "a", "messages": []}, "messages"),
        ({"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "a", "max_output_tokens": 10**6}, "max_output_tokens"),
        ({"input": "a", "include": ["everything"]}, "include"),
        ({"input": "a", "top_logprobs": 21}, "top_logprobs"),
        ({"input": "a", "top_logprobs": -1}, "top_logprobs"),
        ({"input": "a", "metadata": {"a": 1}}, "metadata"),
        ({"input": "a", "metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"input": "a", "conversation": 1}, "conversation"),
        ({"input": "a", "reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"input": "a", "reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"input": "a", "text": {"verbosity": "high"}}, "text.verbosity"),
        ({"input": "a", "text": {"form": 1}}, "text.form"),
        ({"input": "a", "context_management": [{"type": "compaction"}]}, "context_management"),
        ({"input": "a", "tools": [{"type": "teleport"}]}, "tools[0].type"),
        ({"input": "a", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "a", "tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"input": "a", "tools": [FLAT[0], FLAT[0]]}, "tools[1].name"),
        ({"input": "a", "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"input": "a", "stream_options": {"include_obfuscation": True}}, None),
        ({"input": "a", "background": True, "store": False}, None),
        ({"input": "a", "previous_response_id": "resp_1", "conversation": "conv_1"}, None),
        ({"input": "a" * 10**5}, "input"),
        ({"input": "a", "fly": 1}, "fly"),
    ):
        error = refused(model.http, **body)
        if param is not None:
            assert error["param"] == param, (body, error)
        assert param is None or param in error["message"] or "prompt" in error["message"], error


def test_instructions_suffice(model: Model) -> None:
    model.text = "Hello."
    for given in ([], "", None):
        assert text_of(both(model.http, input=given, instructions="Say hello.")) == "Hello."
    assert "Say hello." in model.prompt()


def test_neutral_values_change_nothing(model: Model) -> None:
    model.text = "Hello."
    for body in (
        {"truncation": "disabled", "store": True, "background": False, "include": []},
        {"max_tool_calls": 3, "service_tier": "auto", "parallel_tool_calls": True, "tools": []},
        {"stream_options": {"include_obfuscation": False}, "prompt_cache_key": "k"},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}, "top_logprobs": 0},
        {"reasoning": {}, "client_metadata": {"a": "b"}, "prompt_cache_retention": "24h"},
        {"background_options": {"completion_window": "soonest"}, "context_management": []},
    ):
        assert text_of(both(model.http, input="Hi", **body)) == "Hello.", body
