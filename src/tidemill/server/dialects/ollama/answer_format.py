"""Answers of chat and generate: a document, or lines of a stream, from the same deltas."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from tidemill.base.clock import monotonic, wall
from tidemill.base.ids import new_call_id
from tidemill.generation.choices import TOOL_CALLS, ChoiceDelta
from tidemill.server.dialects.logprobs import token_entries
from tidemill.server.dialects.times import Times
from tidemill.server.host.generation import Generation
from tidemill.server.transport.framing import NDJSON
from tidemill.server.transport.sink import Piece
from tidemill.text.tokenizer import Tokenizer

encode = msgspec.json.encode


def timestamp(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339 writes them."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """A duration as Ollama writes it."""
    return max(0, round(seconds * 1e9))


def durations(times: Times, prompt_tokens: int, tokens: int) -> dict[str, int]:
    """The members of an answer that count and measure."""
    return {
        "total_duration": nanoseconds(monotonic() - times.arrival),
        "load_duration": nanoseconds(times.leased - times.arrival),
        "prompt_eval_count": prompt_tokens,
        "prompt_eval_duration": nanoseconds(times.prompt_seconds),
        "eval_count": tokens,
        "eval_duration": nanoseconds(times.output_seconds),
    }


@dataclass(slots=True)
class Part:
    """Some of an answer.

    Attributes:
        calls: whole tool calls, in Ollama's form.
        errors: reasons why something that began like a call is none.
    """

    text: str = ""
    thinking: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.text or self.thinking or self.calls or self.errors or self.logprobs)


def chat_members(part: Part) -> dict[str, Any]:
    """What a part of a chat's answer adds to a document."""
    message: dict[str, Any] = {"role": "assistant", "content": part.text}
    if part.thinking:
        message["thinking"] = part.thinking
    if part.calls:
        message["tool_calls"] = part.calls
    if part.errors:
        message["tool_call_errors"] = part.errors
    return {"message": message}


def generate_members(part: Part) -> dict[str, Any]:
    """What a part of a generated text adds to a document."""
    thinking = {"thinking": part.thinking} if part.thinking else {}
    return {"response": part.text, **thinking}


Members = Callable[[Part], dict[str, Any]]


class Calls:
    """Tool calls, gathered from their parts: Ollama's clients get arguments as whole objects."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._arguments: list[str] = []
        self._count = 0

    def add(self, delta: ChoiceDelta, part: Part) -> None:
        """Put the calls that are complete with a delta into a part."""
        for piece in delta.calls:
            if piece.name is not None:
                self._end(part)
                self._name = piece.name
            self._arguments.append(piece.arguments)
        if delta.finish is not None:
            self._end(part)

    def _end(self, part: Part) -> None:
        if self._name is None:
            return
        name, text = self._name, "".join(self._arguments)
        self._name, self._arguments = None, []
        try:
            arguments = json.loads(text or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            part.errors.append(f"the arguments of {name} are no JSON object: {text}")
            return
        function = {"index": self._count, "name": name, "arguments": arguments}
        self._count += 1
        part.calls.append({"id": new_call_id(), "function": function})


class OllamaFormat:
    """Writes the answers of chat and generate.

    Args:
        model: name of the model, as the client wrote it.
        tokenizer: for the bytes of alternative tokens.
        times: of the request.
        members: how the parts of an answer are written.
    """

    content_type = b"application/json; charset=utf-8"

    def __init__(self, model: str, tokenizer: Tokenizer, times: Times, members: Members) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._times = times
        self._members = members
        self._calls = Calls()
        self._whole = Part()
        self._finish: str | None = None

    async def read_prompt(self, delta: ChoiceDelta) -> None:
        """There is nothing of the prompt in an answer."""

    def _part(self, delta: ChoiceDelta) -> Part:
        self._times.tick()
        self._finish = delta.finish or self._finish
        part = Part(delta.text, delta.reasoning, errors=[*delta.errors])
        self._calls.add(delta, part)
        if delta.pieces:
            part.logprobs = token_entries(self._tokenizer, delta.pieces)
        return part

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta to the document."""
        part, whole = self._part(delta), self._whole
        whole.text += part.text
        whole.thinking += part.thinking
        whole.calls += part.calls
        whole.errors += part.errors
        whole.logprobs += part.logprobs

    def document(self, generation: Generation) -> list[Piece]:
        """The whole answer."""
        return [encode(self._line(self._whole, self._end(generation)))]

    def opening(self, generation: Generation) -> bytes:
        """Nothing: Ollama's streams have no first line of their own."""
        return b""

    def events(self, delta: ChoiceDelta) -> bytes:
        """A line, if the delta has content."""
        part = self._part(delta)
        return NDJSON.part(encode(self._line(part, {"done": False}))) if part else b""

    def closing(self, generation: Generation) -> bytes:
        """The line with the reason for the end, and the measurements."""
        return NDJSON.part(encode(self._line(Part(), self._end(generation))))

    def _line(self, part: Part, more: Mapping[str, Any]) -> dict[str, Any]:
        logprobs = {"logprobs": part.logprobs} if part.logprobs else {}
        head = {"model": self._model, "created_at": timestamp(wall())}
        return {**head, **self._members(part), **logprobs, **more}

    def _end(self, generation: Generation) -> dict[str, Any]:
        dropped = generation.prepared.dropped
        times = self._times.measured(generation.timings)
        return {
            "done": True,
            "done_reason": "stop" if self._finish == TOOL_CALLS else self._finish,
            **durations(times, generation.prompt_tokens, generation.completion_tokens),
            **({"dropped_messages": dropped} if dropped else {}),
        }
