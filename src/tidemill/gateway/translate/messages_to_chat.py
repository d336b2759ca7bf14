"""A client of Anthropic's messages, a target of OpenAI's chat completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.base.errors import bad_request, unsupported
from tidemill.base.ids import new_id
from tidemill.gateway.translate.events import events_of, named_event

if TYPE_CHECKING:
    from tidemill.gateway.asked import Asked

_STOP = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_SAME = ("max_tokens", "temperature", "top_p", "top_k", "stream")
_THINKING = ("reasoning_content", "reasoning")


class MessagesToChat:
    """See `Translator`."""

    def __init__(self, asked: Asked, model: str) -> None:
        self._model = asked.model
        body = {name: msgspec.json.decode(raw) for name, raw in asked.members.items()}
        self.body = msgspec.json.encode(request_of(body, model))
        self._id = ""
        self._open: str | None = None  # type of the block that is open
        self._block = -1
        self._call: int | None = None  # index of the tool call that is open
        self._stop: str | None = None
        self._usage: dict[str, Any] = {}

    # -- whole ---------------------------------------------------------------------------------

    def whole(self, answer: bytes) -> bytes:
        """See `Translator`."""
        found = msgspec.json.decode(answer)
        choice = found["choices"][0]
        message: dict[str, Any] = choice["message"]
        content: list[dict[str, Any]] = []
        thinking = next((message[name] for name in _THINKING if message.get(name)), None)
        if thinking:
            content.append({"type": "thinking", "thinking": thinking, "signature": ""})
        if message.get("content"):
            content.append({"type": "text", "text": message["content"]})
        for call in message.get("tool_calls") or ():
            function = call["function"]
            value = _decoded(function.get("arguments"))
            about = {"id": call["id"], "name": function["name"]}
            content.append({"type": "tool_use", **about, "input": value})
        return msgspec.json.encode(
            {
                "id": found.get("id", ""),
                "type": "message",
                "role": "assistant",
                "model": self._model,
                "content": content,
                "stop_reason": _STOP.get(choice.get("finish_reason"), "end_turn"),
                "stop_sequence": None,
                "usage": _usage(found.get("usage") or {}),
            }
        )

    # -- streams -------------------------------------------------------------------------------

    def feed(self, events: bytes) -> bytes:
        """See `Translator`."""
        return b"".join(part for found in events_of(events) for part in self._event(found))

    def end(self) -> bytes:
        """See `Translator`."""
        parts = self._closed()
        delta = {"stop_reason": self._stop or "end_turn", "stop_sequence": None}
        parts.append({"type": "message_delta", "delta": delta, "usage": _usage(self._usage)})
        parts.append({"type": "message_stop"})
        return b"".join(map(named_event, parts))

    def _event(self, found: dict[str, Any]) -> list[bytes]:
        if "error" in found:
            error = found["error"] if isinstance(found["error"], dict) else {}
            about = {"type": "api_error", "message": error.get("message", "the target failed")}
            return [named_event({"type": "error", "error": about})]
        parts: list[dict[str, Any]] = []
        if not self._id:
            self._id = found.get("id") or new_id("msg")
            parts.append(self._start())
        self._usage |= found.get("usage") or {}
        for choice in found.get("choices", ())[:1]:
            parts += self._delta(choice.get("delta") or {})
            if choice.get("finish_reason"):
                self._stop = _STOP.get(choice["finish_reason"], "end_turn")
        return [named_event(part) for part in parts]

    def _start(self) -> dict[str, Any]:
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        return {"type": "message_start", "message": message}

    def _delta(self, delta: dict[str, Any]) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        thinking = next((delta[name] for name in _THINKING if delta.get(name)), None)
        if thinking:
            parts += self._opened("thinking", {"thinking": "", "signature": ""})
            parts.append(self._grown({"type": "thinking_delta", "thinking": thinking}))
        if delta.get("content"):
            parts += self._opened("text", {"text": ""})
            parts.append(self._grown({"type": "text_delta", "text": delta["content"]}))
        for call in delta.get("tool_calls") or ():
            function, index = call.get("function") or {}, call.get("index", 0)
            if self._call != index:
                self._call = index
                about = {"id": call.get("id") or new_id("toolu"), "name": function.get("name", "")}
                parts += self._closed() + self._opened("tool_use", {**about, "input": {}})
            if function.get("arguments"):
                more = {"type": "input_json_delta", "partial_json": function["arguments"]}
                parts.append(self._grown(more))
        return parts

    def _opened(self, kind: str, block: dict[str, Any]) -> list[dict[str, Any]]:
        if self._open == kind:
            return []
        parts = self._closed()
        self._open = kind
        self._block += 1
        start = {"type": "content_block_start", "index": self._block}
        return [*parts, {**start, "content_block": {"type": kind, **block}}]

    def _closed(self) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        self._open = None
        return [{"type": "content_block_stop", "index": self._block}]

    def _grown(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._block, "delta": delta}


def _usage(found: dict[str, Any]) -> dict[str, int]:
    cached = (found.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": (found.get("prompt_tokens") or 0) - cached,
        "cache_read_input_tokens": cached,
        "output_tokens": found.get("completion_tokens") or 0,
    }


def _decoded(arguments: str | None) -> Any:
    try:
        return msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return {}


# -- requests --------------------------------------------------------------------------------------


def request_of(body: dict[str, Any], model: str) -> dict[str, Any]:
    """The body of a chat request.

    Raises:
        TidemillError: a member is wrong, or has no counterpart.
    """
    messages: list[dict[str, Any]] = []
    if system := _plain(body.get("system")):
        messages.append({"role": "system", "content": system})
    for message in _checked(body.get("messages")):
        messages += _message(message)
    found: dict[str, Any] = {"model": model, "messages": messages}
    found |= {name: body[name] for name in _SAME if body.get(name) is not None}
    if body.get("stream"):
        found["stream_options"] = {"include_usage": True}
    if body.get("stop_sequences"):
        found["stop"] = body["stop_sequences"]
    if user := (body.get("metadata") or {}).get("user_id"):
        found["user"] = user
    if tools := body.get("tools"):
        found["tools"] = [_tool(tool) for tool in tools]
        choice = body.get("tool_choice") or {}
        named = {"type": "function", "function": {"name": choice.get("name", "")}}
        kinds: dict[Any, Any] = {"auto": "auto", "any": "required", "none": "none", "tool": named}
        if choice:
            found["tool_choice"] = kinds.get(choice.get("type"), "auto")
        if choice.get("disable_parallel_tool_use"):
            found["parallel_tool_calls"] = False
    return found


def _checked(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise bad_request("messages", "messages must be a list of objects")
    return messages


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type", "custom") != "custom":
        kind = str(tool["type"])[:64]
        raise unsupported("tools", f"tools: the target of this model has no tool {kind!r}")
    about = {k: tool[k] for k in ("name", "description") if tool.get(k)}
    return {"type": "function", "function": {**about, "parameters": tool.get("input_schema", {})}}


def _message(message: dict[str, Any]) -> list[dict[str, Any]]:
    role, content = message.get("role"), message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    found: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for block in content or ():
        kind = block.get("type")
        if kind == "text":
            parts.append({"type": "text", "text": block.get("text", "")})
        elif kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": _url(block["source"])}})
        elif kind == "tool_use":
            arguments = msgspec.json.encode(block.get("input", {})).decode()
            function = {"name": block.get("name", ""), "arguments": arguments}
            calls.append({"id": block.get("id", ""), "type": "function", "function": function})
        elif kind == "tool_result":
            about = {"tool_call_id": block.get("tool_use_id", "")}
            found.append({"role": "tool", **about, "content": _plain(block.get("content"))})
        elif kind not in ("thinking", "redacted_thinking"):
            raise unsupported(
                "messages", f"messages: the target of this model takes no {str(kind)[:64]!r} block"
            )
    if parts or calls:
        plain = all(part["type"] == "text" for part in parts)
        text: Any = "".join(part["text"] for part in parts) if plain else parts
        own: dict[str, Any] = {"role": role, "content": text or None}
        found.append({**own, "tool_calls": calls} if calls else own)
    return found


def _url(source: dict[str, Any]) -> str:
    if source.get("type") == "base64":
        return f"data:{source.get('media_type', '')};base64,{source.get('data', '')}"
    return str(source.get("url", ""))


def _plain(content: Any) -> str:
    if isinstance(content, list):
        texts = (block.get("text", "") for block in content if isinstance(block, dict))
        return "\n".join(filter(None, texts))
    return content if isinstance(content, str) else ""
