"""Completion answers, whole and as chunks, from the same deltas; and parts shared with chat.

A chunk is a prebuilt head, the encoded text and a tail: encoding a whole object per token would
cost several times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidemill.base.ids import created_at
from tidemill.generation.choices import ChoiceDelta, TokenPiece
from tidemill.server.dialects.openai import schema
from tidemill.server.dialects.openai.echo import EchoedPrompt
from tidemill.server.dialects.openai.effective import effective
from tidemill.server.dialects.openai.logprobs import CompletionLogprobs, prompt_entries
from tidemill.server.dialects.times import Times
from tidemill.server.host.generation import Generation
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.pieces import Document
from tidemill.server.transport.sink import Piece
from tidemill.text.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"

encode = msgspec.json.encode
Effective = Callable[[Generation], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Shown:
    """What an answer's choices have beside texts, where a request asks for it.

    Attributes:
        token_ids: the ids of prompt and output.
        tokens_as_ids: tokens in logprobs are named by their ids.
    """

    token_ids: bool = False
    tokens_as_ids: bool = False


PLAIN = Shown()


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields that all documents and chunks of an answer repeat.

    Attributes:
        id, created, model, fingerprint: as in the API.
        include_usage: a stream ends with a usage chunk (and other chunks say ``usage: null``).
        running: computes the last members of the other chunks, where they have numbers.
        effective: computes the `tidemill` object, if requested.
        times: of the request, if `timings` were requested.
        shown: what else choices have.
        truncated: names of the prompts of which only the end was used.
    """

    id: str
    created: int
    model: str
    fingerprint: str
    include_usage: bool = False
    effective: Effective | None = None
    running: Callable[[], dict[str, Any]] | None = None
    times: Times | None = None
    shown: Shown = PLAIN
    truncated: Sequence[str] = ()

    def tick(self) -> None:
        """Some output came."""
        if self.times is not None:
            self.times.tick()

    def fields(self, kind: str) -> dict[str, Any]:
        """The leading members of a document."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            **({"truncated": self.truncated} if self.truncated else {}),
        }

    def closing(self, generation: Generation) -> dict[str, Any]:
        """Members that only a whole answer and a stream's last chunk have."""
        found: dict[str, Any] = {}
        if self.effective is not None:
            found["tidemill"] = self.effective(generation)
        if self.times is not None:
            found["timings"] = timings(self.times, generation) | self.times.phases()
        return found

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
        return placed.encode({**answer, **self.closing(generation)})


def timings(times: Times, generation: Generation) -> dict[str, Any]:
    """The `timings` object: over all prompts and choices."""
    prompt, output = generation.prompt_tokens, generation.completion_tokens
    return times.measured(generation.timings).timings(prompt, generation.cached_tokens, output)


def usage(generation: Generation) -> dict[str, Any]:
    """The usage object."""
    prompt, completion = generation.prompt_tokens, generation.completion_tokens
    found: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
    }
    details: dict[str, int] = {}
    if generation.prepared.rules.thinks:
        details["reasoning_tokens"] = generation.reasoning_tokens
    drafts = generation.drafts
    if any(drafts) or generation.prepared.prediction:
        names = ("accepted_prediction_tokens", "rejected_prediction_tokens")
        details |= zip(names, drafts, strict=True)
    if details:
        found["completion_tokens_details"] = details
    return found


def envelope_of(
    model: ServedModel,
    body: schema.Answered,
    answer_id: str,
    generation: Generation,
    times: Times,
) -> Envelope:
    """The envelope of the answer to a body."""
    options = body.stream_options
    include_usage = options is not None and bool(options.include_usage)
    running_usage = options is not None and bool(options.continuous_usage_stats)

    def running() -> dict[str, Any]:
        found: dict[str, Any] = {}
        if include_usage:
            found["usage"] = usage(generation) if running_usage else None
        if body.timings_per_token:
            found["timings"] = timings(times, generation)
        return found

    return Envelope(
        answer_id,
        int(created_at()),
        model.name,
        model.fingerprint,
        include_usage,
        (lambda ended: effective(model, ended)) if body.include_effective else None,
        running if running_usage or body.timings_per_token else None,
        times if body.include_timings or body.timings_per_token else None,
        Shown(bool(body.return_token_ids), bool(body.return_tokens_as_token_ids)),
        generation.prepared.cut,
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

    def chunk(self, choice: bytes, more: bytes = b"") -> bytes:
        """One event with one choice; `more` are members of the event, each after a comma."""
        if (running := self._envelope.running) is not None:
            return self._head + choice + b"]" + more + b"," + encode(running())[1:] + b"\n\n"
        if more:
            return self._head + choice + b"]" + more + self._tail[1:]
        return self._head + choice + self._tail

    def closing(self, generation: Generation) -> bytes:
        """The last events: usage and effective settings, if requested, and the end marker."""
        envelope = self._envelope
        last: dict[str, Any] = {"usage": usage(generation)} if envelope.include_usage else {}
        last |= envelope.closing(generation)
        if not last:
            return DONE
        last = {**envelope.fields(self._kind), "choices": [], **last}
        return b"data: " + encode(last) + b"\n\n" + DONE


@dataclass(slots=True)
class _Collected:
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
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
        prompt_ids: the prompts' tokens.
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
        prompt_ids: Sequence[Sequence[int]] = (),
    ) -> None:
        self._envelope = envelope
        self._tokenizer = tokenizer
        self._chunks = Chunks(envelope, "text_completion")
        self._logprobs = logprobs
        self._echo = echo
        self._scored = scored
        self._shown = envelope.shown
        self._prompt_ids = prompt_ids
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
            lists = CompletionLogprobs(self._tokenizer, as_ids=self._shown.tokens_as_ids)
            tokens = list(zip(echoed.token_ids, echoed.pieces, echoed.offsets, strict=True))
            known = delta.prompt_logprobs
            await lists.add_prompt(tokens, known if known is not None else [None] * len(tokens))
            self._echo_lists[prompt] = lists

    def _echoed(self, delta: ChoiceDelta) -> EchoedPrompt | None:
        return self._echo[delta.index // self._per_prompt] if self._echo else None

    def _new_lists(self, delta: ChoiceDelta) -> CompletionLogprobs:
        prefix = self._echo_lists.get(delta.index // self._per_prompt) if delta.first else None
        return CompletionLogprobs(self._tokenizer, prefix, as_ids=self._shown.tokens_as_ids)

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
        self._envelope.tick()
        collected = self._collected[delta.index]
        if self._shown.token_ids and not self._scored:
            collected.token_ids += delta.token_ids
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
        if self._shown.token_ids:
            prompts = [placed.place([encode(ids)]) for ids in self._prompt_ids]
            for index, choice in enumerate(choices):
                choice["prompt_token_ids"] = prompts[index // self._per_prompt]
                choice["token_ids"] = self._collected[index].token_ids
        return self._envelope.document("text_completion", choices, generation, placed)

    def _placed_lists(self, placed: Document, index: int) -> dict[str, msgspec.Raw]:
        lists = self._lists[index].pieces()
        return {name: placed.place(pieces) for name, pieces in lists.items()}

    def opening(self, generation: Generation) -> bytes:
        """Nothing: completions have no role."""
        return b""

    def events(self, delta: ChoiceDelta) -> bytes:
        """A chunk if the delta has content or ends the choice."""
        self._envelope.tick()
        text = self._text(delta)
        finish = delta.finish and ("length" if self._scored else delta.finish)
        logprobs = b"null"
        if self._logprobs:
            lists = self._new_lists(delta)
            self._add_logprobs(lists, delta)
            logprobs = lists.encoded() if lists else b"null"
        ids = self._ids(delta)
        if not text and logprobs == b"null" and delta.finish is None and not ids:
            return b""
        return self._chunks.chunk(
            b'{"index":%d,"text":%b,"logprobs":%b,%b%b}'
            % (delta.index, encode(text), logprobs, finish_of(finish, delta.stopped_by), ids)
        )

    def _ids(self, delta: ChoiceDelta) -> bytes:
        """A chunk's members with token ids, each after a comma; those of the prompt come first."""
        if not self._shown.token_ids or not (delta.token_ids or delta.first):
            return b""
        ids = () if self._scored else delta.token_ids
        found = b',"token_ids":' + encode(ids)
        if delta.first:
            prompt = self._prompt_ids[delta.index // self._per_prompt]
            found = b',"prompt_token_ids":' + encode(prompt) + found
        return found

    def closing(self, generation: Generation) -> bytes:
        """See `Chunks.closing`."""
        return self._chunks.closing(generation)


def _add_pieces(lists: CompletionLogprobs, pieces: Sequence[TokenPiece], shift: int) -> None:
    for item in pieces:
        lists.add(item.logprob.token_id, item.piece, item.logprob, item.offset + shift)
