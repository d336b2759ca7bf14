"""The APIs of servers: what a request looks like, and what an event of a stream says.

A dialect is an entry of `DIALECTS`: its route, framing, body and reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidemill.bench.client import Client, HttpFailure
from tidemill.bench.results import RequestTrace

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one request says.

    Attributes:
        messages: the conversation; completions send the texts one after another.
        ids: token ids as the inside of a JSON list, instead of messages.
        output_tokens: the most tokens of the answer.
    """

    messages: list[dict[str, str]]
    ids: str | None
    output_tokens: int

    def text(self) -> str:
        """All messages as one text."""
        return "\n".join(message["content"] for message in self.messages)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Fields of every request of a run."""

    model: str
    temperature: float
    ignore_eos: bool
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API.

    Attributes:
        route: below the root.
        root: what a server's address is followed by; a base URL may contain it.
        framing: ``sse`` or ``lines``.
        body: prompt and sampling -> the body's members, without those of `Sampling.extra`.
        read: adds an event to the trace, and returns the text that it carries ("" for none; a
            part without a text, such as a tool call, is "\\0").
        models: route that tells the models' names, and the way to the first one.
        key_headers: how a key is sent; ``{}`` is the key.
    """

    route: str
    root: str
    framing: str
    body: Callable[[Prompt, Sampling], dict[str, Any]]
    read: Callable[[Event, RequestTrace], str]
    models: tuple[str, tuple[str | int, ...]]
    key_headers: tuple[str, ...] = ("Authorization: Bearer {}",)

    def encode(self, prompt: Prompt, sampling: Sampling) -> bytes:
        """The body as JSON."""
        data = msgspec.json.encode(self.body(prompt, sampling) | dict(sampling.extra))
        if prompt.ids is None:
            return data
        return b'{"prompt":[' + prompt.ids.encode() + b"]," + data[1:]

    def add(self, event: bytes, trace: RequestTrace) -> str:
        """Add an event as it was received; see `read`.

        Raises:
            HttpFailure: where it is an error.
            ValueError: where it is no JSON object.
        """
        if event == b"[DONE]":
            return ""
        data = msgspec.json.decode(event)
        if not isinstance(data, dict):
            raise ValueError("an event is no JSON object")
        if data.get("error"):
            raise HttpFailure(200, msgspec.json.encode(data["error"]).decode())
        return self.read(data, trace)

    def path(self, path: str) -> str:
        """The path of a base URL with this API's root instead of another's."""
        bare = path.removesuffix("/v1")
        return path if self.root and path and bare == path else bare + self.root

    async def first_model(self, client: Client) -> str | None:
        """The first model that the server lists. Raises HttpFailure, OSError or ValueError."""
        route, way = self.models
        found: Any = await client.json(route)
        try:
            for step in way:
                found = found[step]
        except (KeyError, IndexError, TypeError):
            return None
        return str(found)


# Fields of a chat delta that carry output: text, reasoning (under both names), tool calls.
_REASONING = ("reasoning_content", "reasoning", "tool_calls")


def _openai_fields(prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": sampling.model,
        "max_tokens": prompt.output_tokens,
        "temperature": sampling.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if sampling.ignore_eos:
        body["ignore_eos"] = True
    return body


def _completions(prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
    body = _openai_fields(prompt, sampling)
    return body if prompt.ids is not None else body | {"prompt": prompt.text()}


def _chat(prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
    return _openai_fields(prompt, sampling) | {"messages": prompt.messages}


def _read_openai(event: Event, trace: RequestTrace) -> str:
    usage = event.get("usage")
    if usage:
        trace.input_tokens = usage.get("prompt_tokens", trace.input_tokens)
        trace.output_tokens = usage.get("completion_tokens", 0)
        details = usage.get("prompt_tokens_details") or {}
        trace.cached_tokens = details.get("cached_tokens") or 0
    output = ""
    for choice in event.get("choices", ()):
        trace.finish_reason = choice.get("finish_reason") or trace.finish_reason
        delta = choice.get("delta")
        if delta is None:
            output += choice.get("text") or ""
        else:
            output += delta.get("content") or ("\0" if any(map(delta.get, _REASONING)) else "")
    return output


def _responses(prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
    return {
        "model": sampling.model,
        "input": prompt.messages,
        "max_output_tokens": prompt.output_tokens,
        "temperature": sampling.temperature,
        "stream": True,
        "store": False,
    }


def _read_responses(event: Event, trace: RequestTrace) -> str:
    kind = event.get("type", "")
    if kind in ("response.completed", "response.incomplete"):
        response = event["response"]
        usage = response.get("usage") or {}
        trace.finish_reason = response.get("status", "completed")
        trace.input_tokens = usage.get("input_tokens", trace.input_tokens)
        trace.output_tokens = usage.get("output_tokens", 0)
        trace.cached_tokens = (usage.get("input_tokens_details") or {}).get("cached_tokens") or 0
    elif kind == "response.failed":
        raise HttpFailure(200, msgspec.json.encode(event["response"].get("error")).decode())
    elif kind == "response.output_text.delta":
        return str(event.get("delta") or "")
    return "\0" if kind.endswith(".delta") else ""


def _messages(prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
    return {
        "model": sampling.model,
        "max_tokens": prompt.output_tokens,
        "temperature": sampling.temperature,
        "stream": True,
        "messages": prompt.messages,
    }


def _read_messages(event: Event, trace: RequestTrace) -> str:
    kind = event.get("type")
    if kind == "message_start":
        usage = event["message"].get("usage") or {}
        trace.cached_tokens = usage.get("cache_read_input_tokens") or 0
        created = usage.get("cache_creation_input_tokens") or 0
        # Anthropic counts what was cached or written to the cache next to input_tokens.
        trace.input_tokens = usage.get("input_tokens", 0) + trace.cached_tokens + created
    elif kind == "message_delta":
        trace.finish_reason = event["delta"].get("stop_reason") or trace.finish_reason
        trace.output_tokens = (event.get("usage") or {}).get("output_tokens", 0)
    elif kind == "content_block_delta":
        return event["delta"].get("text") or "\0"
    return ""


def _ollama_fields(prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
    options = {"num_predict": prompt.output_tokens, "temperature": sampling.temperature}
    return {"model": sampling.model, "stream": True, "options": options}


def _ollama_chat(prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
    return _ollama_fields(prompt, sampling) | {"messages": prompt.messages}


def _ollama_generate(prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
    return _ollama_fields(prompt, sampling) | {"prompt": prompt.text(), "raw": True}


def _read_ollama(event: Event, trace: RequestTrace) -> str:
    if event.get("done"):
        trace.finish_reason = event.get("done_reason") or "stop"
        trace.input_tokens = event.get("prompt_eval_count", trace.input_tokens)
        trace.output_tokens = event.get("eval_count", 0)
    message = event.get("message") or {}
    output = message.get("content") or event.get("response")
    return output or ("\0" if message.get("thinking") or message.get("tool_calls") else "")


def _tgi(prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
    parameters: dict[str, Any] = {"max_new_tokens": prompt.output_tokens, "details": True}
    if sampling.temperature > 0:
        parameters |= {"do_sample": True, "temperature": sampling.temperature}
    return {"inputs": prompt.text(), "parameters": parameters, "stream": True}


def _read_tgi(event: Event, trace: RequestTrace) -> str:
    details = event.get("details")
    if details:
        trace.finish_reason = details.get("finish_reason") or "length"
        trace.output_tokens = details.get("generated_tokens") or 0
        trace.input_tokens = details.get("input_length") or trace.input_tokens
    token = event.get("token") or {}
    return "" if token.get("special") else token.get("text") or "\0"


_OPENAI_MODELS: tuple[str, tuple[str | int, ...]] = ("/models", ("data", 0, "id"))
_OLLAMA_MODELS: tuple[str, tuple[str | int, ...]] = ("/api/tags", ("models", 0, "name"))
_ANTHROPIC_HEADERS = ("x-api-key: {}", "anthropic-version: 2023-06-01")

DIALECTS = {
    "completions": Dialect(
        "/completions", "/v1", "sse", _completions, _read_openai, _OPENAI_MODELS
    ),
    "chat": Dialect("/chat/completions", "/v1", "sse", _chat, _read_openai, _OPENAI_MODELS),
    "responses": Dialect("/responses", "/v1", "sse", _responses, _read_responses, _OPENAI_MODELS),
    "anthropic": Dialect(
        "/messages", "/v1", "sse", _messages, _read_messages, _OPENAI_MODELS, _ANTHROPIC_HEADERS
    ),
    "ollama": Dialect("/api/chat", "", "lines", _ollama_chat, _read_ollama, _OLLAMA_MODELS),
    "ollama-generate": Dialect(
        "/api/generate", "", "lines", _ollama_generate, _read_ollama, _OLLAMA_MODELS
    ),
    "tgi": Dialect("/generate_stream", "", "sse", _tgi, _read_tgi, ("/info", ("model_id",))),
}
