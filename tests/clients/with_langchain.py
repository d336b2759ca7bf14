"""langchain-openai: bound tools, a tool message, the answer; and structured output."""

import sys

from common import MODEL, QUESTION, as_text
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


@tool
def get_weather(city: str) -> str:
    """Get the current weather of a city."""
    return as_text(city)


class Person(BaseModel):
    name: str
    age: int


model = ChatOpenAI(model=MODEL, base_url=sys.argv[1], api_key="none", temperature=0)
bound = model.bind_tools([get_weather])
messages = [HumanMessage(QUESTION)]
first = bound.invoke(messages)
(call,) = first.tool_calls
assert call["name"] == "get_weather", first
messages += [first, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
last = bound.invoke(messages).content
assert "17" in last, last
streamed = None
for part in bound.stream(messages[:1]):
    streamed = part if streamed is None else streamed + part
assert streamed.tool_calls[0]["args"] == call["args"], streamed
person = model.with_structured_output(Person, method="json_schema").invoke(
    "Extract name and age as JSON. Meet Dora Kilm. The age is 43."
)
assert person == Person(name="Dora Kilm", age=43), person
# Every option of the class that says something to the server.
full = ChatOpenAI(
    model=MODEL, base_url=sys.argv[1], api_key="none", temperature=0, top_p=1, n=1, seed=1,
    presence_penalty=0, frequency_penalty=0, logprobs=True, top_logprobs=1, logit_bias={},
    max_completion_tokens=100, reasoning_effort="none", stop_sequences=["Observation:"],
    stream_usage=True, service_tier="default", store=False, metadata={"a": "b"},
    verbosity="medium", model_kwargs={"user": "u"}, extra_body={"typical_p": 1.0},
)  # fmt: skip
assert "17" in full.bind_tools([get_weather], parallel_tool_calls=True).invoke(messages).content
assert list(full.stream([HumanMessage(QUESTION, name="ann")]))
forced = full.bind_tools([get_weather], tool_choice="any", strict=True).invoke(messages[:1])
assert forced.tool_calls[0]["name"] == "get_weather", forced
print(last)
