"""The official client: tools, parse with pydantic models, the streaming helpers, errors."""

import json
import sys

import openai
from common import MODEL, QUESTION, TOOL, get_weather
from openai_options import try_all
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


client = openai.OpenAI(base_url=sys.argv[1], api_key="none")
messages = [{"role": "user", "content": QUESTION}]
how = {"model": MODEL, "temperature": 0}
first = client.chat.completions.create(messages=messages, tools=[TOOL], **how).choices[0]
assert first.finish_reason == "tool_calls", first
(call,) = first.message.tool_calls
result = json.dumps(get_weather(**json.loads(call.function.arguments)))
messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": result}]
last = client.chat.completions.create(messages=messages, tools=[TOOL], **how)
assert "17" in last.choices[0].message.content
ask = [{"role": "user", "content": "Extract name and age as JSON. Meet Dora. The age is 43."}]
parsed = client.chat.completions.parse(messages=ask, response_format=Person, **how)
assert parsed.choices[0].message.parsed == Person(name="Dora", age=43), parsed
with client.chat.completions.stream(messages=ask, response_format=Person, **how) as stream:
    for _ in stream:
        pass
    assert stream.get_final_completion().choices[0].message.parsed.age == 43
with client.chat.completions.stream(messages=messages[:1], tools=[TOOL], **how) as stream:
    final = stream.get_final_completion().choices[0].message
assert final.tool_calls[0].function.arguments == call.function.arguments
try:
    client.chat.completions.create(
        messages=ask,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"not": {}}},
        },
        **how,
    )
except openai.BadRequestError as error:
    assert error.param.endswith(".not"), error
else:
    raise AssertionError("a schema that cannot be honoured was taken")
try_all(client, MODEL)
# Responses: a call and its result, parsed, streamed, in the background.
flat = {"type": "function", **TOOL["function"], "strict": True}
response = client.responses.create(input=QUESTION, tools=[flat], **how)
(call,) = [item for item in response.output if item.type == "function_call"]
result = json.dumps(get_weather(**json.loads(call.arguments)))
output = {"type": "function_call_output", "call_id": call.call_id, "output": result}
then = {"input": [output], "tools": [flat], "previous_response_id": response.id, **how}
assert "17" in client.responses.create(**then).output_text
with client.responses.stream(**then) as stream:
    for _ in stream:
        pass
    assert "17" in stream.get_final_response().output_text
extract = ask[0]["content"]
dora = client.responses.parse(input=extract, text_format=Person, **how).output_parsed
assert dora == Person(name="Dora", age=43), dora
running = client.responses.create(input=extract, background=True, **how)
for event in client.responses.retrieve(running.id, stream=True, starting_after=1):
    ended = event
assert ended.type == "response.completed", ended
assert client.responses.retrieve(running.id).output_text == ended.response.output_text
conversation = client.conversations.create()
client.responses.create(input="Hello.", conversation=conversation.id, **how)
assert len(client.conversations.items.list(conversation.id).data) == 2
client.conversations.delete(conversation.id)
# What the client's own objects look like in a history.
messages += [last.choices[0].message, {"role": "user", "content": "Thanks.", "name": "ann"}]
messages[1] = parsed.choices[0].message.model_dump() | {"content": "So."}
messages.pop(2)  # the result of the call that was replaced
client.chat.completions.create(messages=messages, **how)
print(last.choices[0].message.content)
