"""llama-index: OpenAILike, a tool call and its result, chat and completion, whole and streamed."""

import json
import sys

from common import MODEL, QUESTION, get_weather
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

how = {"model": MODEL, "api_base": sys.argv[1], "api_key": "none", "temperature": 0}
model = OpenAILike(is_chat_model=True, is_function_calling_model=True, context_window=2048, **how)
tool = FunctionTool.from_defaults(get_weather)
first = model.chat_with_tools([tool], user_msg=QUESTION)
(call,) = model.get_tool_calls_from_response(first)
assert call.tool_name == "get_weather", first
result = json.dumps(get_weather(**call.tool_kwargs))
history = [
    ChatMessage(role="user", content=QUESTION),
    first.message,
    ChatMessage(role="tool", content=result, additional_kwargs={"tool_call_id": call.tool_id}),
]
last = model.chat_with_tools([tool], chat_history=history).message.content
assert "17" in last, last
required = model.chat_with_tools([tool], user_msg=QUESTION, tool_required=True)
assert model.get_tool_calls_from_response(required)
assert list(model.stream_chat([ChatMessage(role="user", content=QUESTION)]))[-1].message.content
plain = OpenAILike(is_chat_model=False, max_tokens=8, **how)
assert plain.complete("The tide").text
assert list(plain.stream_complete("The tide"))
print(last)
