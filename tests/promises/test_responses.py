"""Responses with the bundled model, through the official client."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pydantic
import pytest
from helpers.real_server import RealServer

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
PATCH = """start: "*** Begin Patch" LF file+ "*** End Patch"
file: "*** Add File: " /[a-z]{1,8}/ ".txt" LF line~1..2
line: "+" /[^\\n]{0,12}/ LF
%import common.LF
"""


class Person(pydantic.BaseModel):
    name: str
    age: int


@pytest.fixture(scope="module")
def client(server: RealServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_a_tool_is_called_and_its_result_is_used(client: openai.OpenAI) -> None:
    how: Any = {"model": "brook", "temperature": 0, "tools": [WEATHER]}
    question = "What is the weather in Paris?"
    first = client.responses.create(input=question, **how)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"city": "Paris"}
    result: Any = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": json.dumps({"temperature": 17, "condition": "rain"}),
    }
    last = client.responses.create(input=[result], previous_response_id=first.id, **how)
    assert "17" in last.output_text
    # What was said before is in the cache.
    assert last.usage is not None and first.usage is not None
    assert last.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens // 32 * 32
    with client.responses.stream(input=[result], previous_response_id=first.id, **how) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == last.output_text


def test_structure_is_parsed(client: openai.OpenAI) -> None:
    ask = "Extract name and age as JSON. Meet Dora. The age is 43."
    parsed = client.responses.parse(model="brook", input=ask, text_format=Person, temperature=0)
    assert parsed.output_parsed == Person(name="Dora", age=43)


def test_a_grammar_of_a_custom_tool_is_enforced(client: openai.OpenAI) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": PATCH}
    tool: Any = {"type": "custom", "name": "patch", "description": "Edit.", "format": form}
    for temperature in (0, 1):
        response = client.responses.create(
            model="brook",
            input="Add a file.",
            tools=[tool],
            tool_choice={"type": "custom", "name": "patch"},
            temperature=temperature,
            max_output_tokens=400,
            extra_body={"seed": 3},
        )
        (call,) = response.output
        assert call.type == "custom_tool_call"
        if response.status == "completed":
            file = r"\*\*\* Add File: [a-z]{1,8}\.txt\n(\+[^\n]{0,12}\n){1,2}"
            whole = rf"\*\*\* Begin Patch\n({file})+\*\*\* End Patch"
            assert re.fullmatch(whole, call.input), call.input
        assert call.input.startswith("*** Begin Patch\n*** Add File: ")


def test_what_cannot_be_enforced_is_refused_by_name(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "name": "x", "schema": {"not": {}}}
    looking = {"type": "grammar", "syntax": "regex", "definition": "(?=a)b"}
    tool = {"type": "custom", "name": "patch", "format": looking}
    for body, param in (
        ({"text": {"format": form}}, "text.format.schema.not"),
        ({"tools": [tool]}, "tools[0].format"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="brook", input="x", **body)
        assert caught.value.param is not None and caught.value.param.startswith(param), caught.value
