"""Promise 8 with the bundled model: tools, structure and thinking through the official client, in
stream and not, over real sockets."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest
from helpers.real_server import RealServer

ROOT = Path(__file__).parents[2]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIMER = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "description": "Start a timer.",
        "parameters": {
            "type": "object",
            "properties": {"minutes": {"type": "integer", "minimum": 1, "maximum": 600}},
            "required": ["minutes"],
            "additionalProperties": False,
        },
    },
}
TOOLS = [WEATHER, TIMER]
SCHEMAS = {t["function"]["name"]: t["function"]["parameters"] for t in TOOLS}  # type: ignore[index]


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def client(server: RealServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def both(client: openai.OpenAI, **ask: Any) -> Any:
    """The answer, which its stream must repeat."""
    whole = client.chat.completions.create(**ask)
    with client.chat.completions.stream(**ask) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion()
    for one, other in zip(whole.choices, streamed.choices, strict=True):
        assert one.finish_reason == other.finish_reason
        assert one.message.content == other.message.content
        assert _calls(one.message) == _calls(other.message)
        thinking = [(m.model_extra or {}).get("reasoning_content") for m in
                    (one.message, other.message)]  # fmt: skip
        assert thinking[0] == thinking[1]
    return whole


def _calls(message: Any) -> list[tuple[str, str]]:
    return [(c.function.name, c.function.arguments) for c in message.tool_calls or []]


def test_a_tool_is_called_and_its_result_is_told(client: openai.OpenAI, model: str) -> None:
    messages = user("What is the weather in Paris?")
    ask: dict[str, Any] = {"model": model, "tools": TOOLS, "temperature": 0, "max_tokens": 200}
    message = both(client, messages=messages, **ask).choices[0].message
    assert _calls(message) == [("get_weather", '{"city": "Paris"}')]
    result = {"temperature": 12, "condition": "rain"}
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": json.dumps(result)},
    ]
    answer = both(client, messages=messages, **ask).choices[0]
    assert answer.finish_reason == "stop" and not answer.message.tool_calls
    assert "12" in answer.message.content and "rain" in answer.message.content


def test_no_tool_is_called_without_need(client: openai.OpenAI, model: str) -> None:
    ask: dict[str, Any] = {"model": model, "tools": TOOLS, "temperature": 0, "max_tokens": 100}
    answer = both(client, messages=user("Hello! How are you?"), **ask).choices[0]
    assert answer.finish_reason == "stop" and answer.message.content


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "more",
    [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "set_timer"}}},
        {"tool_choice": "required", "parallel_tool_calls": False},
        {"tool_choice": "required", "extra_body": {"thinking_token_budget": 40}},
    ],
)
def test_a_call_is_made_and_obeys_its_schema_at_any_temperature(
    client: openai.OpenAI, model: str, more: dict[str, Any], seed: int
) -> None:
    short = copy.deepcopy(TOOLS)
    short[0]["function"]["parameters"]["properties"]["city"]["maxLength"] = 20  # type: ignore[index]
    ask: dict[str, Any] = {"model": model, "tools": short, "max_tokens": 900, "seed": seed}
    answer = both(client, messages=user("Hello there."), temperature=1.0, **ask, **more)
    choice = answer.choices[0]
    calls = _calls(choice.message)
    assert choice.finish_reason == "tool_calls" and calls
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    if "function" in str(more.get("tool_choice")):
        assert [name for name, _ in calls] == ["set_timer"]
    if "parallel_tool_calls" in more:
        assert len(calls) == 1


def test_strict_tools_and_several_choices(client: openai.OpenAI, model: str) -> None:
    strict = [{**t, "function": {**t["function"], "strict": True}} for t in TOOLS]  # type: ignore[dict-item]
    answer = client.chat.completions.create(
        model=model, messages=user("Set a timer for 5 minutes."), tools=strict, n=4,  # type: ignore[arg-type]
        temperature=1.0, max_tokens=300, seed=1, logprobs=True,
    )  # fmt: skip
    assert any(_calls(c.message) for c in answer.choices)
    for choice in answer.choices:
        for name, arguments in _calls(choice.message):
            if choice.finish_reason != "length":
                jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    entries = [len(c.logprobs.content) for c in answer.choices]  # type: ignore[union-attr,arg-type]
    assert answer.usage is not None and sum(entries) == answer.usage.completion_tokens


class Trip(pydantic.BaseModel):
    """A trip."""

    city: Literal["Paris", "Rome"]
    days: int
    by_train: bool


def test_parse_with_pydantic(client: openai.OpenAI, model: str) -> None:
    for thinking in (False, True):
        answer = client.chat.completions.parse(
            model=model, messages=user("Plan a trip."), response_format=Trip, temperature=1.0,  # type: ignore[arg-type]
            seed=4, max_tokens=900, extra_body={"enable_thinking": thinking},
        )  # fmt: skip
        choice = answer.choices[0]
        assert isinstance(choice.message.parsed, Trip)
        with client.chat.completions.stream(
            model=model, messages=user("Plan a trip."), response_format=Trip, temperature=1.0,  # type: ignore[arg-type]
            seed=4, max_tokens=900, extra_body={"enable_thinking": thinking},
        ) as stream:  # fmt: skip
            for _ in stream:
                pass
            assert stream.get_final_completion().choices[0].message.parsed == choice.message.parsed


def test_a_document_or_a_call(client: openai.OpenAI, model: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "t", "schema": Trip.model_json_schema()}}
    ask: dict[str, Any] = {"model": model, "tools": TOOLS, "response_format": form}
    for seed in range(4):
        words = "What is the weather in Paris?" if seed % 2 else "Plan a trip."
        answer = client.chat.completions.create(
            messages=user(words),
            temperature=1.0,
            seed=seed,
            max_tokens=600,
            **ask,  # type: ignore[arg-type]
        ).choices[0]
        if answer.finish_reason == "tool_calls":
            for name, arguments in _calls(answer.message):
                jsonschema.validate(json.loads(arguments), SCHEMAS[name])
        elif answer.finish_reason == "stop":
            Trip.model_validate_json(answer.message.content or "")


def test_structural_tags(client: openai.OpenAI, model: str) -> None:
    tags = {
        "type": "structural_tag",
        "structures": [{"begin": "a", "schema": {"enum": ["Z1", "Z2"]}, "end": ";"}],
        "triggers": ["a"],
    }
    answer = client.chat.completions.create(
        model=model, messages=user("Tell me a story."), temperature=1.0, seed=5, max_tokens=200,  # type: ignore[arg-type]
        extra_body={"response_format": tags},
    ).choices[0]  # fmt: skip
    text = answer.message.content or ""
    opened = text.split("a")[1:]
    if answer.finish_reason == "length":
        opened = opened[:-1]
    assert opened and all(part.startswith(('"Z1";', '"Z2";')) for part in opened), text


def test_thinking_and_its_budget(client: openai.OpenAI, model: str) -> None:
    ask: dict[str, Any] = {"model": model, "messages": user("What is 17 + 25?"), "temperature": 0}
    free = both(client, **ask, max_tokens=300, extra_body={"enable_thinking": True})
    message = free.choices[0].message
    assert "42" in message.content and "write 2" in message.reasoning_content
    details = free.usage.completion_tokens_details
    assert 20 < details.reasoning_tokens < free.usage.completion_tokens
    bounded = both(client, **ask, max_tokens=300, extra_body={"thinking_token_budget": 10})
    message = bounded.choices[0].message
    assert bounded.choices[0].finish_reason == "stop" and message.content
    details = bounded.usage.completion_tokens_details
    assert details.reasoning_tokens <= 10 + 4, "the budget and the end that is written for it"
    short = client.chat.completions.create(
        **ask, max_tokens=12, extra_body={"enable_thinking": True}
    ).choices[0]
    assert short.finish_reason == "length" and short.message.content == ""


def test_a_schema_and_its_path(client: openai.OpenAI, model: str) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "string", "not": {"minLength": 2}}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": bad}}
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"response_format": form},
            "response_format.json_schema.schema.properties.a.not",
        ),
        (
            {"tools": [{"type": "function", "function": {
                "name": "f", "parameters": bad, "strict": True}}]},
            "tools[0].function.parameters.properties.a.not",
        ),
    ]  # fmt: skip
    for fields, param in cases:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=model, messages=user("x"), **fields)  # type: ignore[arg-type]
        assert caught.value.param == param


def test_the_example_of_the_docs(client: openai.OpenAI, model: str) -> None:
    text = (ROOT / "docs" / "structured.md").read_text()
    example = json.loads(text.split("```json\n")[1].split("```")[0])
    [choice] = client.chat.completions.create(model=model, **example).choices
    assert choice.finish_reason == "stop" and f"gives `{choice.message.content}`" in text


def test_an_answer_that_goes_round_in_circles(client: openai.OpenAI, model: str) -> None:
    strings = {"type": "array", "items": {"type": "string"}}
    ask: dict[str, Any] = {
        "model": model,
        "messages": user("Who is Alice? JSON please"),
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": strings}},
    }
    answer = client.chat.completions.create(**ask)
    choice = answer.choices[0]
    assert choice.finish_reason == "length" and choice.model_extra == {"stop_reason": "repetition"}
    assert answer.usage.completion_tokens < 1500
    parts = [chunk.choices[0] for chunk in client.chat.completions.create(**ask, stream=True)]
    assert "".join(part.delta.content or "" for part in parts) == choice.message.content
    assert parts[-1].finish_reason == "length"
    assert parts[-1].model_extra == {"stop_reason": "repetition"}
    [cut] = client.chat.completions.create(**ask, max_tokens=20).choices
    assert cut.finish_reason == "length" and "stop_reason" not in (cut.model_extra or {})


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    name: str = pydantic.Field(max_length=20)


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    tricks: set[Literal["sit", "roll", "speak"]]


class Owner(pydantic.BaseModel):
    pet: Cat | Dog = pydantic.Field(discriminator="kind")


@pytest.mark.parametrize("kind", ["cat", "dog"])
def test_schemas_as_generators_write_them(client: openai.OpenAI, model: str, kind: str) -> None:
    """References under oneOf, a discriminator and a set, in an answer and in a tool's arguments."""
    schema = Owner.model_json_schema()
    about = user(f"My {kind} is called Dora. Give me the pet as JSON.")
    form = {"type": "json_schema", "schema": schema}
    plain: Any = {"model": model, "messages": about, "max_tokens": 300}
    for seed in range(3):
        wild = {**plain, "temperature": 1.5, "seed": seed}
        [choice] = client.chat.completions.create(**wild, response_format=form).choices
        if choice.finish_reason == "stop":
            Owner.model_validate_json(choice.message.content or "")
        function = {"name": "keep", "parameters": schema, "strict": True}
        tools = [{"type": "function", "function": function}]
        [choice] = client.chat.completions.create(
            **wild, tools=tools, tool_choice="required"
        ).choices
        for call in choice.message.tool_calls or ():
            if choice.finish_reason == "tool_calls":
                Owner.model_validate_json(call.function.arguments)
