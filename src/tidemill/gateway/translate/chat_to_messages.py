"""A client of OpenAI's chat completions, a target of Anthropic's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.base.clock import wall
from tidemill.base.errors import bad_request, unsupported
from tidemill.gateway.translate.events import event, events_of

if TYPE_CHECKING:
    from tidemill.gateway.asked import Asked

DEFAULT_TOKENS = 4096
"""Anthropic's API must be told how long an answer may be; OpenAI's need not."""

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_SAME = ("temperature", "top_p", "top_k", "stream")
_REFUSED = {
    "n": 1,
    "logprobs": False,
    "logit_bias": {},
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "response_format": {"type": "text"},
    "audio": None,
}
"""Members that change the answer and have no counterpart, and the value that changes nothing."""


class ChatToMessages:
    """See `Translator`."""

    def __init__(self, asked: Asked, model: str) -> None:
        self._model = asked.model
        body = {name: msgspec.json.decode(raw) for name, raw in asked.members.items()}
        self.body = msgspec.json.encode(request_of(body, model))
        options = body.get("stream_options") or {}
        self._usage_asked = bool(options.get("include_usage"))
        self._id = ""
        self._created = int(wall())
        self._usage: dict[str, int] = {}
        self._calls = -1  # of tools, by index
        self._is_call = False

    # -- whole ---------------------------------------------------------------------------------

    def whole(self, answer: bytes) -> bytes:
        """See `Translator`."""
        found = msgspec.json.decode(answer)
        text, thinking, calls = "", "", []
        for block in found.get("content", ()):
            if block["type"] == "text":
                text += block["text"]
            elif block["type"] == "thinking":
                thinking += block.get("thinking", "")
            elif block["type"] == "tool_use":
                calls.append(_call(block["id"], block["name"], _encoded(block.get("input", {}))))
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if thinking:
            message["reasoning_content"] = thinking
        if calls:
            message["tool_calls"] = calls
        finish = _FINISH.get(found.get("stop_reason"), "stop")
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        return msgspec.json.encode(
            {
                "id": found.get("id", ""),
                "object": "chat.completion",
                "created": self._created,
                "model": self._model,
                "choices": [choice],
                "usage": _usage(found.get("usage", {})),
            }
        )

    # -- streams -------------------------------------------------------------------------------

    def feed(self, events: bytes) -> bytes:
        """See `Translator`."""
        return b"".join(filter(None, map(self._event, events_of(events))))

    def end(self) -> bytes:
        """See `Translator`."""
        last = b""
        if self._usage_asked:
            last = event({**self._envelope(), "choices": [], "usage": _usage(self._usage)})
        return last + b"data: [DONE]\n\n"

    def _event(self, found: dict[str, Any]) -> bytes | None:
        kind = found.get("type")
        if kind == "message_start":
            message = found["message"]
            self._id = message.get("id", "")
            self._usage |= message.get("usage") or {}
            return self._delta({"role": "assistant", "content": ""})
        if kind == "content_block_start":
            block = found["content_block"]
            self._is_call = block["type"] == "tool_use"
            if self._is_call:
                self._calls += 1
                call = {"index": self._calls, **_call(block["id"], block["name"], "")}
                return self._delta({"tool_calls": [call]})
            return None
        if kind == "content_block_delta":
            return self._block_delta(found["delta"])
        if kind == "message_delta":
            self._usage |= {k: v for k, v in (found.get("usage") or {}).items() if v is not None}
            reason = (found.get("delta") or {}).get("stop_reason")
            return self._delta({}, _FINISH.get(reason, "stop")) if reason else None
        if kind == "error":
            error = found.get("error") or {}
            text, name = error.get("message", ""), error.get("type", "server_error")
            return event({"error": {"message": text, "type": name, "param": None, "code": name}})
        return None

    def _block_delta(self, delta: dict[str, Any]) -> bytes | None:
        kind = delta.get("type")
        if kind == "text_delta":
            return self._delta({"content": delta["text"]})
        if kind == "thinking_delta":
            return self._delta({"reasoning_content": delta["thinking"]})
        if kind == "input_json_delta" and self._is_call:
            function = {"arguments": delta["partial_json"]}
            return self._delta({"tool_calls": [{"index": self._calls, "function": function}]})
        return None

    def _envelope(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
        }

    def _delta(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**self._envelope(), "choices": [choice]})


def _call(identity: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": identity, "type": "function", "function": function}


def _usage(found: dict[str, Any]) -> dict[str, Any]:
    read = found.get("cache_read_input_tokens") or 0
    written = found.get("cache_creation_input_tokens") or 0
    prompt = (found.get("input_tokens") or 0) + read + written
    answer = found.get("output_tokens") or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": read},
    }


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# -- requests --------------------------------------------------------------------------------------


def request_of(body: dict[str, Any], model: str) -> dict[str, Any]:
    """The body of a messages request.

    Raises:
        TidemillError: a member is wrong, or has no counterpart.
    """
    for name, neutral in _REFUSED.items():
        if body.get(name) not in (None, neutral):
            raise unsupported(name, f"{name}: the target of this model has no such setting")
    system, messages = _messages(body.get("messages"))
    length = body.get("max_completion_tokens") or body.get("max_tokens") or DEFAULT_TOKENS
    found: dict[str, Any] = {"model": model, "max_tokens": length, "messages": messages}
    found |= {name: body[name] for name in _SAME if body.get(name) is not None}
    if system:
        found["system"] = system
    if isinstance(found.get("temperature"), (int, float)):
        found["temperature"] = min(1.0, found["temperature"])
    if stop := body.get("stop"):
        found["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if body.get("user"):
        found["metadata"] = {"user_id": body["user"]}
    if tools := body.get("tools"):
        found["tools"] = [_tool(tool) for tool in tools]
        found |= _choice(body.get("tool_choice"), body.get("parallel_tool_calls"))
    return found


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict):
        raise unsupported("tools", "tools: the target of this model takes functions alone")
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    about = {k: function[k] for k in ("name", "description") if function.get(k)}
    return {**about, "input_schema": schema}


def _choice(choice: Any, parallel: bool | None) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "auto"}
    if isinstance(choice, dict):
        found = {"type": "tool", "name": (choice.get("function") or {}).get("name", "")}
    elif choice in ("none", "required"):
        found = {"type": {"none": "none", "required": "any"}[choice]}
    if parallel is False and found["type"] != "none":
        found["disable_parallel_tool_use"] = True
    return {"tool_choice": found} if choice is not None or parallel is False else {}


def _messages(messages: Any) -> tuple[str, list[dict[str, Any]]]:
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise bad_request("messages", "messages must be a list of objects")
    system: list[str] = []
    found: list[dict[str, Any]] = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role in ("system", "developer"):
            system.append(_plain(content))
            continue
        if role == "tool":
            result = {
                "type": "tool_result",
                "tool_use_id": message.get("tool_call_id", ""),
                "content": _plain(content),
            }
            blocks, role = [result], "user"
        else:
            blocks = _blocks(content)
            for call in message.get("tool_calls") or ():
                blocks.append(_tool_use(call))
        if found and found[-1]["role"] == role:
            found[-1]["content"] += blocks
        elif blocks:
            found.append({"role": role, "content": blocks})
    return "\n\n".join(filter(None, system)), found


def _tool_use(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    try:
        value = msgspec.json.decode(function.get("arguments") or "{}")
    except msgspec.DecodeError:
        raise bad_request("messages", "the arguments of a tool call are not JSON") from None
    about = {"id": call.get("id", ""), "name": function.get("name", "")}
    return {"type": "tool_use", **about, "input": value}


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [_block(part) for part in content or ()]


def _block(part: Any) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        return {"type": "text", "text": part.get("text", "")}
    if kind == "image_url":
        image = part.get("image_url")
        url = image.get("url", "") if isinstance(image, dict) else str(image)
        head, comma, data = url.partition(",")
        if head.startswith("data:") and comma:
            media = head[5:].partition(";")[0]
            source = {"type": "base64", "media_type": media, "data": data}
        else:
            source = {"type": "url", "url": url}
        return {"type": "image", "source": source}
    raise unsupported("messages", "messages: the target of this model takes text and images alone")
