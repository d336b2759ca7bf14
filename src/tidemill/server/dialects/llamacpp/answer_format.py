"""Answers of /completion and /infill: documents, or events of a stream, from the same deltas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from tidemill.generation.choices import ChoiceDelta, TokenPiece
from tidemill.server.dialects.llamacpp.schema import INFILL, LlamaGeneration, samplers_of
from tidemill.server.dialects.logprobs import token_entry
from tidemill.server.dialects.times import Times
from tidemill.server.host.generation import Generation
from tidemill.server.transport.framing import SSE
from tidemill.server.transport.sink import Piece
from tidemill.text.tokenizer import Tokenizer

encode = msgspec.json.encode


@dataclass(slots=True)
class _Answer:
    """The output for one prompt so far."""

    times: Times
    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    probabilities: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    stopped_by: str | int | None = None


class LlamaFormat:
    """Writes the answers of /completion and /infill.

    Args:
        model: its name.
        body: the request.
        generation: the choices.
        prompts: each choice's prompt as a text.
        tokenizer: for the bytes of tokens.
        times: of the request.
    """

    content_type = b"application/json; charset=utf-8"

    def __init__(
        self,
        model: str,
        body: LlamaGeneration,
        generation: Generation,
        prompts: Sequence[str],
        tokenizer: Tokenizer,
        times: Times,
    ) -> None:
        self._model = model
        self._body = body
        self._generation = generation
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._answers = [_Answer(replace(times)) for _ in prompts]
        self._notices = (
            ["samplers: infill is not applied; the output is drawn from the other filters"]
            if body.samplers is not None and INFILL in samplers_of(body.samplers)
            else []
        )

    async def read_prompt(self, delta: ChoiceDelta) -> None:
        """There is nothing of the prompt in an answer."""

    def _take(self, delta: ChoiceDelta) -> tuple[_Answer, list[dict[str, Any]]]:
        answer = self._answers[delta.index]
        answer.times.tick()
        if not self._generation.prepared.request.scored:
            answer.text.append(delta.text)
            answer.tokens += delta.token_ids
        answer.finish = delta.finish or answer.finish
        answer.stopped_by = delta.stopped_by
        return answer, [self._entry(piece) for piece in delta.pieces]

    def _entry(self, piece: TokenPiece) -> dict[str, Any]:
        found, logprob = token_entry(piece.piece, piece.logprob.logprob), piece.logprob
        top = [
            {"id": token, **token_entry(self._tokenizer.token_bytes(token), value)}
            for token, value in logprob.top
        ]
        return {"id": logprob.token_id, **found, "top_logprobs": top}

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta to its prompt's document."""
        answer, entries = self._take(delta)
        answer.probabilities += entries

    def document(self, generation: Generation) -> list[Piece]:
        """An object, or for several prompts a list of them."""
        found = [self._document(index) for index in range(len(self._answers))]
        return [encode(found[0] if len(found) == 1 else found)]

    def _document(self, index: int) -> dict[str, Any]:
        answer, body = self._answers[index], self._body
        whole = {
            "index": index,
            "content": "".join(answer.text),
            "tokens": answer.tokens if body.return_tokens else [],
            **self._end(index),
        }
        if body.n_probs:
            whole["completion_probabilities"] = answer.probabilities
        if not body.response_fields:
            return whole
        notices = {"notices": self._notices} if self._notices else {}
        return {**_selected(whole, body.response_fields), **notices}

    def opening(self, generation: Generation) -> bytes:
        """Nothing."""
        return b""

    def events(self, delta: ChoiceDelta) -> bytes:
        """An event with the text, and the last one of its prompt."""
        answer, entries = self._take(delta)
        events, index = b"", delta.index
        if (delta.text or delta.token_ids) and not self._generation.prepared.request.scored:
            part: dict[str, Any] = {
                "index": index,
                "content": delta.text,
                "tokens": delta.token_ids,
                "stop": False,
                "id_slot": -1,
                "tokens_predicted": len(answer.tokens),
                "tokens_evaluated": self._evaluated(index),
            }
            if entries:
                part["completion_probabilities"] = entries
            if self._body.timings_per_token:
                part["timings"] = self._timings(index)
            events = SSE.part(encode(part))
        if delta.finish is not None:
            last = {"index": index, "content": "", "tokens": [], **self._end(index)}
            events += SSE.part(encode(last))
        return events

    def closing(self, generation: Generation) -> bytes:
        """Nothing: each prompt's last event says `stop`."""
        return b""

    def _evaluated(self, index: int) -> int:
        return len(self._generation.prepared.prompts[self._prompt_of(index)])

    def _prompt_of(self, index: int) -> int:
        return index // self._generation.prepared.request.sampling.n

    def _end(self, index: int) -> dict[str, Any]:
        answer = self._answers[index]
        word = answer.stopped_by if isinstance(answer.stopped_by, str) else ""
        kind = "limit" if answer.finish == "length" else "word" if word else "eos"
        if self._generation.prepared.request.scored:
            kind, word = "limit", ""
        found = {
            "id_slot": -1,
            "stop": True,
            "model": self._model,
            "tokens_predicted": len(answer.tokens),
            "tokens_evaluated": self._evaluated(index),
            "generation_settings": self._settings(index),
            "prompt": self._prompts[index],
            "has_new_line": "\n" in "".join(answer.text),
            "truncated": False,
            "stop_type": kind,
            "stopping_word": word if kind == "word" else "",
            "tokens_cached": self._evaluated(index) + len(answer.tokens),
            "timings": self._timings(index),
        }
        return {**found, "notices": self._notices} if self._notices else found

    def _settings(self, index: int) -> dict[str, Any]:
        sampling = self._generation.prepared.sampling[self._prompt_of(index)]
        return {
            "n_predict": sampling.max_tokens,
            "seed": sampling.seed,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repeat_last_n": -1,
            "repeat_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "ignore_eos": sampling.ignore_eos,
            "stop": sampling.stop,
            "n_probs": sampling.logprobs or 0,
            "stream": bool(self._body.stream),
        }

    def _timings(self, index: int) -> dict[str, Any]:
        answer = self._answers[index]
        cached, times = 0, answer.times
        if len(self._answers) == 1:
            cached = self._generation.cached_tokens
            times = times.measured(self._generation.timings)
        return times.timings(self._evaluated(index), cached, len(answer.tokens))


def _selected(document: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """The members of a document at these paths, under them; what is not there is left out."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = document
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found
