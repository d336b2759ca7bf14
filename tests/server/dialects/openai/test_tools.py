"""Tool calls over HTTP, streamed and not, with a model that writes what the test says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from helpers.assembled import agree, plain, whole
from helpers.live_server import fake_context, serving
from helpers.marked_model import ASK, PARAMETERS, PARIS, TIME, TOOLS, Model, marked_model, tool
from helpers.scripted_engine import ScriptedEngine

from tidemill.contract.program import Forced, FreeText, Grammar
from tidemill.text.template import ChatTemplate


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with marked_model() as made:
        yield made


def ask(model: Model, text: str, **body: Any) -> dict[str, Any]:
    return model.ask(text, **{"tools": TOOLS, **body})


def refusal(model: Model, **body: Any) -> dict[str, Any]:
    return model.refusal(**{"tools": TOOLS, **body})


def functions(choice: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    calls = choice["message"].get("tool_calls", [])
    assert len({c["id"] for c in calls}) == len(calls)
    assert all(c["id"].startswith("call_") and c["type"] == "function" for c in calls)
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]


def test_one_call(model: Model) -> None:
    choice = ask(model, PARIS)
    assert functions(choice) == [("get_weather", {"city": "Paris"})]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert '"name": "get_weather", "description": "Weather"' in model.prompt()
    assert model.engine.requests[-1].program.free


def test_several_calls_after_words(model: Model) -> None:
    choice = ask(model, f"Let me see.\n{PARIS}\n{TIME}")
    assert functions(choice) == [
        ("get_weather", {"city": "Paris"}),
        ("get_time", {"city": "Zürich"}),
    ]
    assert choice["message"]["content"].strip() == "Let me see."


def test_words_alone(model: Model) -> None:
    choice = ask(model, "No tool fits < that.")
    assert choice["message"]["content"] == "No tool fits < that."
    assert choice["finish_reason"] == "stop" and "tool_calls" not in choice["message"]
    assert ask(model, "")["message"]["content"] is None


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": }}\n</tool_call>',
        '<tool_call>\n{"name": "launch", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "get_weather", "arguments": [1]}\n</tool_call>',
        "<tool_call>\nget_weather\n</tool_call>",
        '<tool_call>\n{"name": "get_weather", "argu',
    ],
)
def test_what_is_no_call_is_text_with_the_reason(model: Model, text: str) -> None:
    counter = "tidemill_malformed_tool_calls_total"

    def counted() -> float:
        lines = model.http.get("/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(counter)).split()[1])

    before = counted()
    choice = ask(model, text)
    assert choice["message"]["content"].strip() == text.strip()
    assert choice["message"]["tool_call_errors"] and "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    assert counted() == before + 2, "streamed and not"


def test_a_call_that_is_cut(model: Model) -> None:
    choice = ask(model, PARIS, max_tokens=40)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].strip() == PARIS[:40].strip()
    assert choice["message"]["tool_call_errors"]


def test_none_does_not_show_tools(model: Model) -> None:
    choice = ask(model, PARIS, tool_choice="none")
    assert choice["message"]["content"] == PARIS and choice["finish_reason"] == "stop"
    assert "get_weather" not in model.prompt()


@pytest.mark.parametrize(
    "more",
    [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        {"parallel_tool_calls": False},
        {"tools": [tool("get_weather", strict=True)]},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
            {"type": "function", "function": {"name": "get_weather"}}]}}},
    ],
)  # fmt: skip
def test_where_a_grammar_rules_the_calls(model: Model, more: dict[str, Any]) -> None:
    choice = ask(model, PARIS, **more)
    assert functions(choice) == [("get_weather", {"city": "Paris"})]
    assert choice["finish_reason"] == "tool_calls"
    [phase] = model.engine.requests[-1].program.phases
    assert isinstance(phase, Grammar) and phase.kind == "lark"
    for cut, value in (("stop_token_ids", [5]), ("ignore_eos", True), ("min_tokens", 3)):
        error = refusal(model, **{**more, cut: value})
        assert error["param"] == cut and (
            "tool" in error["message"] or "strict" in error["message"]
        )


def test_enforced_arguments_stream(model: Model) -> None:
    model.text = PARIS
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "stream": True}
    with model.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        text = "".join(answer.iter_text())
    assert text.count('"arguments"') > 5, "argument deltas, not one piece"


def test_a_document_or_calls(model: Model) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": PARAMETERS}}
    assert functions(ask(model, PARIS, response_format=form))
    choice = ask(model, '{"city": "Paris"}', response_format=form)
    assert choice["message"]["content"] == '{"city": "Paris"}'
    assert choice["finish_reason"] == "stop"
    error = refusal(model, grammar='root ::= "a"')
    assert "tools" in error["message"] and "grammar" in error["message"]


def test_stop_strings_end_the_answer_and_no_call(model: Model) -> None:
    choice = ask(model, f"I call.\n{PARIS}\nDone STOP more", stop="STOP")
    assert functions(choice) and choice["finish_reason"] == "tool_calls"
    assert "STOP" not in choice["message"]["content"]
    choice = ask(model, PARIS, stop="city")
    assert functions(choice) == [("get_weather", {"city": "Paris"})]
    choice = ask(model, PARIS, stop="city", tool_choice="required")
    assert functions(choice) == [("get_weather", {"city": "Paris"})]
    assert "stop_reason" not in choice


def test_text_around_a_call_is_kept_apart(model: Model) -> None:
    choice = ask(model, f"Before.{PARIS}After.{TIME}")
    assert choice["message"]["content"] == "Before.\nAfter." and len(functions(choice)) == 2
    assert ask(model, f"Before.\n{PARIS}\nAfter.")["message"]["content"].split() == [
        "Before.",
        "After.",
    ]
    assert ask(model, f"{PARIS}After.")["message"]["content"] == "After."


def test_schemas_that_cannot_be_enforced(model: Model) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "string", "not": {"minLength": 2}}}}
    error = refusal(model, tools=[tool("f", parameters=bad, strict=True)])
    assert error["param"] == "tools[0].function.parameters.properties.a.not"
    assert ask(model, "x", tools=[tool("f", parameters=bad)])["message"]["content"] == "x"


def test_several_choices_with_logprobs(model: Model) -> None:
    model.text = f"So.\n{PARIS}"
    body = {"messages": ASK, "tools": TOOLS, "n": 3, "logprobs": True, "top_logprobs": 1}
    found = agree(model.http, body)
    for choice in found["choices"]:
        assert functions(choice)
        spelled = b"".join(bytes(e["bytes"]) for e in choice["logprobs"]["content"])
        assert spelled.startswith(model.text.encode()), "every generated token has its entry"


def test_the_way_back_with_the_results(model: Model) -> None:
    call = whole(model.http, {"messages": ASK, "tools": TOOLS})
    model.text = f"{PARIS}\n{TIME}"
    message = whole(model.http, {"messages": ASK, "tools": TOOLS})["choices"][0]["message"]
    first, second = (c["id"] for c in message["tool_calls"])
    results = [
        {"role": "tool", "tool_call_id": second, "content": "noon"},
        {"role": "tool", "tool_call_id": first, "content": "rain"},
    ]
    assert call["choices"]
    ask(model, "It rains.", messages=[*ASK, message, *results])
    prompt = model.prompt()
    assert prompt.index(PARIS) < prompt.index(TIME) < prompt.index("rain") < prompt.index("noon")


def test_the_older_form_says_what_to_send(model: Model) -> None:
    for name, value in (("functions", [{"name": "f"}]), ("function_call", "auto")):
        error = refusal(model, **{name: value})
        assert error["param"] == name and "send tool" in error["message"]


def test_templates_and_formats_that_know_no_tools() -> None:
    plain_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    unknown = plain_template + "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    for template, remedy in ((plain_template, "--chat-template"), (unknown, "--tool-format")):
        context = fake_context(ScriptedEngine(), template=ChatTemplate(template))
        with serving(context) as url:
            body = {"messages": ASK, "tools": TOOLS}
            answer = httpx.post(f"{url}/v1/chat/completions", json=body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "tools"
        assert remedy in answer.json()["error"]["message"]


def test_official_client(model: Model) -> None:
    model.text = f"Wait.\n{PARIS}\n{TIME}"
    client = openai.OpenAI(base_url=f"{model.http.base_url}/v1", api_key="none", max_retries=0)
    ask: dict[str, Any] = {"model": "tiny", "messages": ASK, "tools": TOOLS}
    answer = client.chat.completions.create(**ask)
    with client.chat.completions.stream(**ask) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion()
    first, second = (c.choices[0].message.model_dump() for c in (answer, streamed))
    second["tool_calls"] = [
        {**c, "function": {k: c["function"][k] for k in ("name", "arguments")}}
        for c in second["tool_calls"]
    ]
    assert plain(first)["tool_calls"] == plain(second)["tool_calls"]
    assert first["content"] == second["content"]


def test_tokenize_counts_the_tools(model: Model) -> None:
    model.text = "x"
    usage = whole(model.http, {"messages": ASK, "tools": TOOLS})["usage"]
    answer = model.http.post("/tokenize", json={"messages": ASK, "tools": TOOLS}).json()
    assert answer["count"] == usage["prompt_tokens"]


def test_thinking_then_a_required_call(model: Model) -> None:
    choice = ask(
        model,
        f"<think>\nI need it.\n</think>\n\n{PARIS}",
        enable_thinking=True,
        tool_choice="required",
    )
    assert functions(choice) and choice["message"]["reasoning_content"].strip() == "I need it."
    phases = model.engine.requests[-1].program.phases
    assert [type(phase) for phase in phases] == [Forced, FreeText, Forced, Grammar]
