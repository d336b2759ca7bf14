"""smolagents: an agent that calls tools, its stop strings beside `tool_choice: required`, and its
structured code output.
"""

import sys

from common import MODEL, QUESTION, as_text
from smolagents import ChatMessage, MessageRole, OpenAIModel, tool


@tool
def get_weather(city: str) -> str:
    """Get the current weather of a city.

    Args:
        city: The city
    """
    return as_text(city)


model = OpenAIModel(model_id=MODEL, api_base=sys.argv[1], api_key="none", temperature=0)
ask = [ChatMessage(role=MessageRole.USER, content=QUESTION)]
# What its ToolCallingAgent sends in every step.
stops = ["Observation:", "Calling tools:"]
first = model.generate(ask, tools_to_call_from=[get_weather], stop_sequences=stops)
(call,) = first.tool_calls
assert call.function.name == "get_weather", first
parts = list(model.generate_stream(ask, tools_to_call_from=[get_weather], stop_sequences=stops))
assert parts
# What its CodeAgent sends with structured outputs.
schema = {"type": "object", "properties": {"thought": {"type": "string", "maxLength": 40},
                                           "code": {"type": "string", "maxLength": 40}},
          "required": ["thought", "code"], "additionalProperties": False}  # fmt: skip
wanted = {"type": "json_schema", "json_schema": {"schema": schema, "name": "x", "strict": True}}
written = model.generate(ask, stop_sequences=[*stops, "</code>"], response_format=wanted)
assert written.content.startswith("{"), written
result = as_text("Paris")
last = model.generate(
    [
        *ask,
        ChatMessage(role=MessageRole.ASSISTANT, content=None, tool_calls=first.tool_calls),
        ChatMessage(role=MessageRole.TOOL_RESPONSE, content=[{"type": "text", "text": result}]),
    ]
)
assert last.content is not None
print(last.content.splitlines()[0][:100])
