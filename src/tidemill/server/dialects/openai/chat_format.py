"""`chat.completion` and `chat.completion.chunk` from the same deltas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemill.base.ids import new_call_id
from tidemill.generation.choices import ChoiceDelta
from tidemill.server.dialects.openai.assemble import Chunks, Envelope, encode, finish_of
from tidemill.server.dialects.openai.logprobs import chat_entries, prompt_entries
from tidemill.server.host.generation import Generation
from tidemill.server.transport.pieces import Document
from tidemill.server.transport.sink import Piece
from tidemill.text.answer import CallPart
from tidemill.text.tokenizer import Tokenizer


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class _Message:
    content: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    entries: bytearray = field(default_factory=bytearray)  # encoded, without brackets
    finish: str | None = None
    stopped_by: str | int | None = None


class ChatFormat:
    """Writes chat answers.

    A whole answer equals the concatenated parts of a stream: both are made of the same deltas by
    the same rules (promise 8).

    Args:
        envelope: the repeated fields.
        tokenizer: for the bytes of alternative tokens.
        choices: their number.
        logprobs: whether they were requested.
        tools: tools were offered, so the content of an answer without text is null, not "".
        reasoning: the answer includes the thinking.
        prompt_logprobs: the answer includes the logprobs of the prompt.
        prompt_ids: the prompt's tokens.
        before: text that precedes each choice's own.
    """

    content_type = b"application/json"

    def __init__(
        self,
        envelope: Envelope,
        tokenizer: Tokenizer,
        choices: int,
        *,
        logprobs: bool,
        tools: bool = False,
        reasoning: bool = True,
        prompt_logprobs: bool = False,
        prompt_ids: Sequence[int] = (),
        before: str = "",
    ) -> None:
        self._shown, self._times = envelope.shown, envelope.times
        self._has_ids = envelope.shown.token_ids
        self._prompt_ids = prompt_ids
        self._before = before
        self._has_prompt_logprobs = prompt_logprobs
        self._prompt: list[Piece] = [b"[]"]
        self._envelope = envelope
        self._tokenizer = tokenizer
        self._chunks = Chunks(envelope, "chat.completion.chunk")
        self._logprobs = logprobs
        self._empty_content = None if tools else ""
        self._reasoning = reasoning
        self._messages = [_Message() for _ in range(choices)]

    async def read_prompt(self, delta: ChoiceDelta) -> None:
        """Process the prompt's part of a choice's first delta."""
        if self._has_prompt_logprobs and delta.index == 0:
            self._prompt = await prompt_entries(self._tokenizer, delta.prompt_logprobs or ())

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta to the document."""
        if self._times is not None:
            self._times.tick()
        message = self._messages[delta.index]
        message.content.append(self._text(delta))
        if self._has_ids:
            message.token_ids += delta.token_ids
        message.finish = delta.finish or message.finish
        message.stopped_by = delta.stopped_by
        if self._reasoning:
            message.reasoning.append(delta.reasoning)
        for part in delta.calls:
            if part.name is not None:
                message.calls.append(_Call(new_call_id(), part.name))
            message.calls[part.index].arguments.append(part.arguments)
        message.errors += delta.errors
        if self._logprobs and delta.pieces:
            if message.entries:
                message.entries += b","
            message.entries += self._chat_entries(delta)

    def document(self, generation: Generation) -> list[Piece]:
        """The whole answer."""
        placed = Document()
        choices = [
            {
                "index": index,
                "message": self._document(message),
                "logprobs": self._entries(placed, message) if self._logprobs else None,
                "finish_reason": message.finish,
                **({} if message.stopped_by is None else {"stop_reason": message.stopped_by}),
                **({"token_ids": message.token_ids} if self._shown.token_ids else {}),
            }
            for index, message in enumerate(self._messages)
        ]
        more = {"prompt_logprobs": placed.place(self._prompt)} if self._has_prompt_logprobs else {}
        if self._shown.token_ids:
            more["prompt_token_ids"] = placed.place([encode(self._prompt_ids)])
        return self._envelope.document("chat.completion", choices, generation, placed, **more)

    def _document(self, message: _Message) -> dict[str, Any]:
        content = "".join(message.content) or self._empty_content
        found: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if reasoning := "".join(message.reasoning):
            found |= _thinking(reasoning)
        if message.calls:
            found["tool_calls"] = [call.document() for call in message.calls]
        if message.errors:
            found["tool_call_errors"] = message.errors
        return found

    @staticmethod
    def _entries(placed: Document, message: _Message) -> dict[str, Any]:
        return {"content": placed.place((b"[", message.entries, b"]")), "refusal": None}

    def _text(self, delta: ChoiceDelta) -> str:
        return self._before + delta.text if delta.first else delta.text

    def _chat_entries(self, delta: ChoiceDelta) -> bytes:
        as_ids = self._shown.tokens_as_ids
        return chat_entries(self._tokenizer, delta.pieces, as_ids=as_ids)

    def opening(self, generation: Generation) -> bytes:
        """The role chunk of every choice; the first one has the prompt's tokens, if requested."""
        delta = encode({"role": "assistant", "content": self._empty_content})
        tail = b'"delta":%b,"logprobs":null,"finish_reason":null}' % delta
        ids = encode(self._prompt_ids) if self._shown.token_ids else b""
        more = b',"prompt_token_ids":' + ids if ids else b""
        return b"".join(
            [
                self._chunks.chunk(b'{"index":%d,' % i + tail, b"" if i else more)
                for i in range(len(self._messages))
            ]
        )

    def events(self, delta: ChoiceDelta) -> bytes:
        """A chunk if the delta has content, and the finish chunk at the end."""
        if self._times is not None:
            self._times.tick()
        events = ids = b""
        shown = self._delta(delta)
        if self._has_ids and delta.token_ids:
            ids = b',"token_ids":' + encode(delta.token_ids)
        if shown is not None or delta.pieces or ids:
            logprobs = b"null"
            if delta.pieces:
                logprobs = b'{"content":[%b],"refusal":null}' % self._chat_entries(delta)
            events = self._chunks.chunk(
                b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null%b}'
                % (delta.index, shown or b"{}", logprobs, ids)
            )
        if delta.finish is not None:
            events += self._chunks.chunk(
                b'{"index":%d,"delta":{},"logprobs":null,%b}'
                % (delta.index, finish_of(delta.finish, delta.stopped_by))
            )
        return events

    def _delta(self, delta: ChoiceDelta) -> bytes | None:
        """The encoded delta; None when it is empty."""
        reasoning = delta.reasoning if self._reasoning else ""
        text = self._before + delta.text if delta.first else delta.text
        if not reasoning and not delta.calls and not delta.errors:
            # The common case, without the cost of a dictionary.
            return b'{"content":%b}' % encode(text) if text else None
        found: dict[str, Any] = {}
        if reasoning:
            found |= _thinking(reasoning)
        if text:
            found["content"] = text
        if delta.calls:
            found["tool_calls"] = [self._call(delta.index, part) for part in delta.calls]
        if delta.errors:
            found["tool_call_errors"] = delta.errors
        return encode(found)

    def _call(self, choice: int, part: CallPart) -> dict[str, Any]:
        function: dict[str, Any] = {"arguments": part.arguments}
        if part.name is None:
            return {"index": part.index, "function": function}
        function = {"name": part.name, **function}
        return {"index": part.index, "id": new_call_id(), "type": "function", "function": function}

    def closing(self, generation: Generation) -> bytes:
        """See `Chunks.closing`."""
        return self._chunks.closing(generation)


def _thinking(text: str) -> dict[str, str]:
    # Clients read one name or the other, so both are sent.
    return {"reasoning_content": text, "reasoning": text}
