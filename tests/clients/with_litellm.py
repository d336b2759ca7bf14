"""litellm: a tool call, its result, the answer."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
from common import MODEL, QUESTION, TOOL, get_weather

url = sys.argv[1]
how = {"model": f"openai/{MODEL}", "api_base": url, "api_key": "none", "temperature": 0}
messages = [{"role": "user", "content": QUESTION}]
first = litellm.completion(messages=messages, tools=[TOOL], **how).choices[0]
assert first.finish_reason == "tool_calls", first
(call,) = first.message.tool_calls
result = get_weather(**json.loads(call.function.arguments))
messages += [
    first.message.model_dump(exclude_none=True),
    {"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)},
]
last = litellm.completion(messages=messages, tools=[TOOL], **how).choices[0].message.content
assert str(result["temperature"]) in last, last
parts = litellm.completion(messages=messages[:1], tools=[TOOL], stream=True, **how)
whole = litellm.stream_chunk_builder(list(parts)).choices[0].message
assert whole.tool_calls[0].function.arguments == call.function.arguments
print(last)
