"""Anthropic's client: tools, streams, thinking, structure, counting, models, errors. Every answer
and event is validated against the client's own types."""

import json
import sys

import anthropic
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from common import MODEL, QUESTION, TOOL, get_weather
from pydantic import TypeAdapter

EVENT = TypeAdapter(RawMessageStreamEvent)
client = anthropic.Anthropic(
    base_url=sys.argv[1].removesuffix("/v1"), api_key="none", max_retries=0
)
function = TOOL["function"]
tool = {
    "name": function["name"],
    "description": function["description"],
    "input_schema": function["parameters"],
}
how = {"model": MODEL, "max_tokens": 200, "extra_body": {"temperature": 0}}
ask = [{"role": "user", "content": QUESTION}]


def whole(**fields):
    """An answer, of which every member is as the types say."""
    raw = client.messages.with_raw_response.create(**{**how, **fields})
    return Message.model_validate_json(raw.text())


def streamed(**fields):
    """The same by events."""
    with client.messages.stream(**{**how, **fields}) as stream:
        found = stream.get_final_message()
    for event in client.messages.create(**{**how, **fields}, stream=True):
        EVENT.validate_json(event.to_json())
    return found


def plain(message):
    """Its content without the ids."""
    return [{**block.model_dump(), "id": None} for block in message.content]


first = whole(messages=ask, tools=[tool])
assert first.stop_reason == "tool_use", first
assert plain(streamed(messages=ask, tools=[tool])) == plain(first)
(call,) = [block for block in first.content if block.type == "tool_use"]
result = {
    "type": "tool_result",
    "tool_use_id": call.id,
    "content": json.dumps(get_weather(**call.input)),
}
turns = [
    *ask,
    {"role": "assistant", "content": first.content},
    {"role": "user", "content": [result]},
]
last = whole(messages=turns, tools=[tool])
assert "17" in last.content[0].text, last
assert last.usage.cache_read_input_tokens > 0
counted = client.messages.count_tokens(model=MODEL, messages=turns, tools=[tool])
MessageTokensCount.model_validate(counted.model_dump())
used = last.usage
assert counted.input_tokens == used.input_tokens + used.cache_read_input_tokens

schema = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
meet = "Extract name and age as JSON. Meet Dora. The age is 43."
parsed = whole(
    messages=[{"role": "user", "content": meet}],
    output_config={"format": {"type": "json_schema", "schema": schema}},
)
assert json.loads(parsed.content[0].text) == {"name": "Dora", "age": 43}, parsed

thinking = {"type": "enabled", "budget_tokens": 100}
thought = whole(messages=ask, thinking=thinking)
if thought.content[0].type == "thinking":
    again = [*ask, {"role": "assistant", "content": thought.content}, ask[0]]
    whole(messages=again, thinking=thinking)
stopped = whole(messages=turns, tools=[tool], stop_sequences=["17"])
assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "17"), stopped
forced = whole(messages=ask, tools=[tool], tool_choice={"type": "tool", "name": tool["name"]})
assert forced.stop_reason == "tool_use"
beta = client.beta.messages.create(messages=ask, betas=["effort-2025-11-24"], **how)
assert beta.content
assert MODEL in [model.id for model in client.models.list()]
assert client.models.retrieve(MODEL).id == MODEL

for kind, fields in (
    (anthropic.NotFoundError, {"model": "claude-none"}),
    (anthropic.BadRequestError, {"mcp_servers": [{"url": "x"}]}),
    (anthropic.BadRequestError, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
):
    extra = {k: v for k, v in fields.items() if k == "mcp_servers"}
    named = {k: v for k, v in fields.items() if k not in extra}
    try:
        client.messages.create(**{"messages": ask, **how, **named, "extra_body": extra})
    except kind as error:
        assert error.body["type"] == "error" and error.request_id, error
    else:
        raise AssertionError(f"{fields} was taken")
with client.messages.stream(messages=ask, **how) as stream:
    next(iter(stream))  # and then it leaves
print(last.content[0].text)
