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
# Every parameter that it maps for this API.
full = {
    "top_p": 1, "n": 1, "seed": 1, "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {},
    "max_tokens": 100, "user": "u", "stop": ["Observation:"], "logprobs": True, "top_logprobs": 1,
    "tool_choice": "auto", "parallel_tool_calls": True, "reasoning_effort": "none",
    "response_format": {"type": "text"}, "timeout": 60,
    "allowed_openai_params": ["reasoning_effort"],
    "extra_body": {"min_p": 0, "repetition_penalty": 1.0, "skip_special_tokens": True},
}  # fmt: skip
every = litellm.completion(messages=messages, tools=[TOOL], **how, **full).choices[0].message
assert str(result["temperature"]) in every.content, every
print(last)
