"""Completion answers, whole and as chunks, from the same deltas; and parts shared with chat.

A chunk is a prebuilt head, the encoded text and a tail: encoding a whole object per token would
cost several times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidemill.base.clock import wall
from tidemill.generation.choices import ChoiceDelta, TokenPiece
from tidemill.server.dialects.openai import schema
from tidemill.server.dialects.openai.echo import EchoedPrompt
from tidemill.server.dialects.openai.effective import effective
from tidemill.server.dialects.openai.logprobs import CompletionLogprobs, prompt_entries
from tidemill.server.host.generation import Generation
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.pieces import Document
from tidemill.server.transport.sink import Piece
from tidemill.text.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"

encode = msgspec.json.encode
Effective = Callable[[Generation], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields that all documents and chunks of an answer repeat.

    Attributes:
        id, created, model, fingerprint: as in the API.
        include_usage: a stream ends with a usage chunk (and other chunks say ``usage: null``).
        running_usage: computes the usage of the other chunks, if requested.
        effective: computes the `tidemill` object, if requested.
    """

    id: str
    created: int
    model: str
    fingerprint: str
    include_usage: bool = False
    effective: Effective | None = None
    running_usage: Callable[[], dict[str, Any]] | None = None

    def fields(self, kind: str) -> dict[str, Any]:
        """The leading members of a document."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def document(
        self,
        kind: str,
        choices: Sequence[Mapping[str, Any]],
        generation: Generation,
        placed: Document,
        **more: Any,
    ) -> list[Piece]:
        """A whole answer; `placed` has its pre-encoded values, `more` further members."""
        answer = {**self.fields(kind), "choices": choices, "usage": usage(generation), **more}
        if self.effective is not None:
            answer["tidemill"] = self.effective(generation)
        return placed.encode(answer)


def usage(generation: Generation) -> dict[str, Any]:
    """The usage object."""
    prompt, completion = generation.prompt_tokens, generation.completion_tokens
    found: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
    }
    if generation.prepared.rules.thinks:
        found["completion_tokens_details"] = {"reasoning_tokens": generation.reasoning_tokens}
    return found


def envelope_of(
    model: ServedModel, body: schema.Generation, answer_id: str, generation: Generation
) -> Envelope:
    """The envelope of the answer to a body."""
    options = body.stream_options
    running = options is not None and bool(options.continuous_usage_stats)
    return Envelope(
        answer_id,
        int(wall()),
        model.name,
        model.fingerprint,
        options is not None and bool(options.include_usage),
        (lambda ended: effective(model, ended)) if body.include_effective else None,
        (lambda: usage(generation)) if running else None,
    )


def finish_of(finish: str | None, stopped_by: str | int | None) -> bytes:
    """A choice's finish reason and, as the next member, the stop string or token id that was
    met, encoded.
    """
    named = b"" if stopped_by is None else b',"stop_reason":%b' % encode(stopped_by)
    return b'"finish_reason":%b%b' % (encode(finish), named)


class Chunks:
    """Writes the chunks of one stream."""

    def __init__(self, envelope: Envelope, kind: str) -> None:
        self._envelope = envelope
        self._kind = kind
        head = encode(envelope.fields(kind))[:-1]
        self._head = b"data: " + head + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if envelope.include_usage else b"]}\n\n"

    def chunk(self, choice: bytes) -> bytes:
        """One event with one choice."""
        if (running := self._envelope.running_usage) is not None:
            return self._head + choice + b'],"usage":' + encode(running()) + b"}\n\n"
        return self._head + choice + self._tail

    def closing(self, generation: Generation) -> bytes:
        """The last events: usage and effective settings, if requested, and the end marker."""
        envelope = self._envelope
        if not envelope.include_usage and envelope.effective is None:
            return DONE
        last: dict[str, Any] = {**envelope.fields(self._kind), "choices": []}
        if envelope.include_usage:
            last["usage"] = usage(generation)
        if envelope.effective is not None:
            last["tidemill"] = envelope.effective(generation)
        return b"data: " + encode(last) + b"\n\n" + DONE


@dataclass(slots=True)
class _Collected:
    text: list[str] = field(default_factory=list)
    finish: str | None = None
    stopped_by: str | int | None = None


class CompletionFormat:
    """`text_completion`, whole and streamed (the two have the same shape).

    Args:
        envelope: the repeated fields.
        tokenizer: for the bytes of alternative tokens.
        choices: their number over all prompts.
        logprobs: whether they were requested.
        echo: the prompt repeated before each choice's output, or empty.
        prompt_logprobs: each choice includes the logprobs of its prompt.
        scored: only the prompt is returned.
        per_prompt: choices of each prompt; 0: there is one prompt.
    """

    content_type = b"application/json"

    def __init__(
        self,
        envelope: Envelope,
        tokenizer: Tokenizer,
        choices: int,
        *,
        logprobs: bool,
        echo: Sequence[EchoedPrompt] = (),
        prompt_logprobs: bool = False,
        scored: bool = False,
        per_prompt: int = 0,
    ) -> None:
        self._envelope = envelope
        self._tokenizer = tokenizer
        self._chunks = Chunks(envelope, "text_completion")
        self._logprobs = logprobs
        self._echo = echo
        self._scored = scored
        self._has_prompt_logprobs = prompt_logprobs
        self._per_prompt = per_prompt or choices
        # By prompt, shared by its choices: `prompt_logprobs`, and the lists of an echoed prompt.
        self._prompts: dict[int, list[Piece]] = {}
        self._echo_lists: dict[int, CompletionLogprobs] = {}
        self._collected = [_Collected() for _ in range(choices)]
        self._lists: dict[int, CompletionLogprobs] = {}

    async def read_prompt(self, delta: ChoiceDelta) -> None:
        """Process the prompt's part of a first delta, once for all choices of the prompt."""
        prompt = delta.index // self._per_prompt
        if self._has_prompt_logprobs and prompt not in self._prompts:
            entries = await prompt_entries(self._tokenizer, delta.prompt_logprobs or ())
            self._prompts[prompt] = entries
        echoed = self._echoed(delta)
        if self._logprobs and echoed is not None and prompt not in self._echo_lists:
            lists = CompletionLogprobs(self._tokenizer)
            tokens = list(zip(echoed.pieces, echoed.offsets, strict=True))
            known = delta.prompt_logprobs
            await lists.add_prompt(tokens, known if known is not None else [None] * len(tokens))
            self._echo_lists[prompt] = lists

    def _echoed(self, delta: ChoiceDelta) -> EchoedPrompt | None:
        return self._echo[delta.index // self._per_prompt] if self._echo else None

    def _new_lists(self, delta: ChoiceDelta) -> CompletionLogprobs:
        prefix = self._echo_lists.get(delta.index // self._per_prompt) if delta.first else None
        return CompletionLogprobs(self._tokenizer, prefix)

    def _text(self, delta: ChoiceDelta) -> str:
        echoed = self._echoed(delta) if delta.first else None
        text = "" if self._scored else delta.text
        return text if echoed is None else echoed.text + text

    def _add_logprobs(self, lists: CompletionLogprobs, delta: ChoiceDelta) -> None:
        echoed = self._echoed(delta)
        if not self._scored:
            _add_pieces(lists, delta.pieces, 0 if echoed is None else len(echoed.text))

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta to the document."""
        collected = self._collected[delta.index]
        collected.text.append(self._text(delta))
        collected.finish = ("length" if self._scored else delta.finish) or collected.finish
        collected.stopped_by = delta.stopped_by
        if self._logprobs:
            if delta.first:
                self._lists[delta.index] = self._new_lists(delta)
            self._add_logprobs(self._lists[delta.index], delta)

    def document(self, generation: Generation) -> list[Piece]:
        """The whole answer."""
        placed = Document()
        choices: list[dict[str, Any]] = [
            {
                "index": index,
                "text": "".join(c.text),
                "logprobs": self._placed_lists(placed, index) if self._logprobs else None,
                "finish_reason": c.finish,
                **({} if c.stopped_by is None else {"stop_reason": c.stopped_by}),
            }
            for index, c in enumerate(self._collected)
        ]
        if self._has_prompt_logprobs:
            for index, choice in enumerate(choices):
                entries = self._prompts[index // self._per_prompt]
                choice["prompt_logprobs"] = placed.place(entries)
        return self._envelope.document("text_completion", choices, generation, placed)

    def _placed_lists(self, placed: Document, index: int) -> dict[str, msgspec.Raw]:
        lists = self._lists[index].pieces()
        return {name: placed.place(pieces) for name, pieces in lists.items()}

    def opening(self, generation: Generation) -> bytes:
        """Nothing: completions have no role."""
        return b""

    def events(self, delta: ChoiceDelta) -> bytes:
        """A chunk if the delta has content or ends the choice."""
        text = self._text(delta)
        finish = delta.finish and ("length" if self._scored else delta.finish)
        logprobs = b"null"
        if self._logprobs:
            lists = self._new_lists(delta)
            self._add_logprobs(lists, delta)
            logprobs = lists.encoded() if lists else b"null"
        if not text and logprobs == b"null" and delta.finish is None:
            return b""
        return self._chunks.chunk(
            b'{"index":%d,"text":%b,"logprobs":%b,%b}'
            % (delta.index, encode(text), logprobs, finish_of(finish, delta.stopped_by))
        )

    def closing(self, generation: Generation) -> bytes:
        """See `Chunks.closing`."""
        return self._chunks.closing(generation)


def _add_pieces(lists: CompletionLogprobs, pieces: Sequence[TokenPiece], shift: int) -> None:
    for item in pieces:
        lists.add(item.piece, item.logprob, item.offset + shift)
