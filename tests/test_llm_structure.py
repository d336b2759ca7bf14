"""The offline API's tools, constraints and thinking, on the bundled model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tidemill import LLM, SamplingParams, TidemillError
from tidemill.contract.program import Forced, FreeText, Grammar, OutputProgram

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
PARIS = [{"role": "user", "content": "What is the weather in Paris?"}]
SUM = [{"role": "user", "content": "What is 17 + 25?"}]
GREEDY = SamplingParams(temperature=0, max_tokens=200)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(threads=1, kv_memory=32 * 2**20) as loaded:
        yield loaded


def test_tools_to_the_end(llm: LLM) -> None:
    first = llm.chat(PARIS, GREEDY, tools=TOOLS)[0].outputs[0]
    [call] = first.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    assert first.finish_reason == "tool_calls" and first.text == ""
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 12}'}
    second = llm.chat([*PARIS, first.message(), result], GREEDY, tools=TOOLS)[0].outputs[0]
    assert "12" in second.text and second.finish_reason == "stop"


def test_streams_say_the_same(llm: LLM) -> None:
    whole = llm.chat(PARIS, GREEDY, tools=TOOLS, enable_thinking=True)[0].outputs[0]
    assert whole.reasoning and whole.reasoning_tokens > 3
    parts = list(llm.stream_parts(PARIS, GREEDY, tools=TOOLS, enable_thinking=True))
    assert "".join(p.reasoning for p in parts) == whole.reasoning
    assert "".join(c.arguments for p in parts for c in p.calls) == whole.tool_calls[0].arguments
    assert "".join(llm.stream(SUM, GREEDY)) == llm.chat(SUM, GREEDY)[0].text


@pytest.mark.parametrize(
    ("field", "value", "pattern"),
    [
        ("guided_regex", "[a-c]{3}x", "[a-c]{3}x"),
        ("guided_choice", ["yes", "no"], "yes|no"),
        ("grammar", 'root ::= "a" [0-9]', "a[0-9]"),
        ("json_schema", {"type": "integer", "minimum": 3, "maximum": 5}, "[345]"),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {"const": 1}}}, "1"),
    ],
)
def test_constraints(llm: LLM, field: str, value: Any, pattern: str) -> None:
    params = SamplingParams(temperature=1, n=3, seed=2, max_tokens=100)
    for result in (
        *llm.chat([PARIS, SUM], params, **{field: value}),
        *llm.generate("The tide", params, **{field: value}),
        *llm.chat(SUM, params, thinking_token_budget=12, **{field: value}),
    ):
        for answer in result.outputs:
            assert re.fullmatch(pattern, answer.text), answer.text
            assert answer.finish_reason == "stop"


def test_a_stop_string_that_cuts_a_document_is_named(llm: LLM) -> None:
    params = SamplingParams(temperature=0, stop=("b",), max_tokens=100)
    [answer] = llm.chat(SUM, params, guided_regex="aaabbb")[0].outputs
    assert (answer.text, answer.finish_reason, answer.stop_string) == ("aaa", "stop", "b")


def test_a_program_of_ones_own(llm: LLM) -> None:
    tide = tuple(llm.tokenizer.encode(" tide"))
    phases = (Forced(tide), FreeText(budget=3), Grammar("regex", "[0-9]{2}"))
    text = llm.generate("The", GREEDY, program=OutputProgram(phases))[0].text
    assert re.fullmatch(r" tide.*[0-9]{2}", text, re.DOTALL)


@pytest.mark.parametrize(
    ("call", "param"),
    [
        (lambda llm: llm.chat(PARIS, tools=[{"type": "function"}]), "tools[0].function"),
        (lambda llm: llm.chat(PARIS, tool_choice="required"), "tool_choice"),
        (lambda llm: llm.chat(PARIS, guided_json={"not": {}}), "guided_json.not"),
        (lambda llm: llm.generate("x", guided_regex="("), "guided_regex"),
        (lambda llm: llm.generate("x", guided_jsn={}), "guided_jsn"),
        (lambda llm: llm.generate("x", tools=TOOLS), "tools"),
        (
            lambda llm: llm.generate("x", program=OutputProgram(), guided_regex="a"),
            "guided_regex",
        ),
        (lambda llm: llm.chat(PARIS, SamplingParams(min_tokens=1), guided_regex="a"), "min_tokens"),
        (lambda llm: llm.chat(PARIS, enable_thinking=False, thinking_budget=5), "enable_thinking"),
        (lambda llm: list(llm.stream("x", tools=TOOLS)), "tools"),
    ],
)
def test_mistakes_are_named(llm: LLM, call: Any, param: str) -> None:
    with pytest.raises(TidemillError) as caught:
        call(llm)
    assert caught.value.param == param, caught.value.message
