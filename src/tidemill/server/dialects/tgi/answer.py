"""TGI's answers: a text with details, or an event for each token; both from the same tokens.

The texts of a choice's tokens that are not special, put together, are its generated text. As in
TGI, a text that a stop string ended contains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidemill.contract.request import TokenLogprob
from tidemill.generation.choices import ChoiceDelta, TokenPiece
from tidemill.generation.pace import slices
from tidemill.server.dialects.tgi.schema import TgiParameters
from tidemill.server.host.generation import Generation
from tidemill.server.host.pace import LOOP
from tidemill.server.transport.framing import SSE
from tidemill.server.transport.pieces import Document
from tidemill.server.transport.sink import Piece
from tidemill.text.tokenizer import Tokenizer

encode = msgspec.json.encode

FLOOR = -9999.0
"""Replaces minus infinity, which JSON cannot represent."""

SLICE = 256
"""Tokens that are encoded without yielding to the event loop."""


class Token(msgspec.Struct):
    """One generated token, as in the API."""

    id: int
    text: str
    logprob: float
    special: bool


@dataclass(slots=True)
class Shown:
    """A token and the likeliest ones at its position."""

    token: Token
    top: list[Token]


@dataclass(slots=True)
class Choice:
    """What is known of one choice so far.

    Attributes:
        length: characters of its text.
        tokens: generated tokens; logprob: the sum of theirs.
        finish: in TGI's words, once it has ended.
        last: the id of its last token.
    """

    text: list[str] = field(default_factory=list)
    length: int = 0
    tokens: int = 0
    logprob: float = 0.0
    finish: str = ""
    last: int = 0
    shown: list[Shown] = field(default_factory=list)

    @property
    def whole(self) -> str:
        """Its text."""
        return "".join(self.text)

    @property
    def mean(self) -> float:
        """Mean logprob of its tokens."""
        return self.logprob / max(1, self.tokens)


class TgiFormat:
    """Answers, whole and streamed.

    Args:
        tokenizer: the model's.
        inputs: the prompt, as it was sent.
        asked: the parameters.
        generation: the request.
        listed: a whole answer is a list with one element (POST /).
    """

    content_type = b"application/json"

    def __init__(
        self,
        tokenizer: Tokenizer,
        inputs: str,
        asked: TgiParameters,
        generation: Generation,
        *,
        listed: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._asked = asked
        self._before = inputs if asked.return_full_text else ""
        self._listed = listed
        self._prompt = generation.prepared.prompts[0]
        sampling = generation.prepared.sampling[0]
        self._seed = None if sampling.greedy else (sampling.seed or 0) % 2**64
        self._choices = [Choice() for _ in range(generation.num_choices)]
        self._prefill: list[Piece] = []

    async def read_prompt(self, delta: ChoiceDelta) -> None:
        """The prompt's tokens, once for all choices."""
        if delta.prompt_logprobs is None or self._prefill:
            return
        known = list(zip(self._prompt, delta.prompt_logprobs, strict=True))
        async for some in slices(known, SLICE, LOOP):
            entries = [self._prefilled(token, logprob) for token, logprob in some]
            self._prefill += (b"," if self._prefill else b"[", encode(entries)[1:-1])
        self._prefill.append(b"]")

    def add(self, delta: ChoiceDelta) -> None:
        """Collect."""
        shown = self._take(delta)
        if self._asked.details:
            self._choices[delta.index].shown += shown

    def document(self, generation: Generation) -> list[Piece]:
        """The choice with the highest mean logprob; the first of equal ones."""
        placed = Document()
        best = max(range(len(self._choices)), key=lambda i: (self._choices[i].mean, -i))
        found: dict[str, Any] = {"generated_text": self._before + self._choices[best].whole}
        if self._asked.details:
            details = self._details(best, placed)
            if len(self._choices) > 1:
                details["best_of_sequences"] = [
                    {
                        "generated_text": self._before + choice.whole,
                        **self._details(i, placed),
                    }
                    for i, choice in enumerate(self._choices)
                    if i != best
                ]
            found["details"] = details
        return placed.encode([found] if self._listed else found)

    def opening(self, generation: Generation) -> bytes:
        """Nothing."""
        return b""

    def events(self, delta: ChoiceDelta) -> bytes:
        """An event for each token; the last one has the text and, if requested, the details."""
        choice = self._choices[delta.index]
        before = choice.tokens
        shown = self._take(delta)
        parts = []
        for place, one in enumerate(shown, 1):
            event: dict[str, Any] = {"index": before + place, "token": one.token}
            if one.top:
                event["top_tokens"] = one.top
            ended = place == len(shown) and bool(choice.finish)
            event["generated_text"] = self._before + choice.whole if ended else None
            event["details"] = self._ending(choice) if ended and self._asked.details else None
            parts.append(SSE.part(encode(event)))
        return b"".join(parts)

    def closing(self, generation: Generation) -> bytes:
        """Nothing: the last token's event is the end."""
        return b""

    def _take(self, delta: ChoiceDelta) -> list[Shown]:
        """Add a delta to its choice; its tokens with their texts."""
        choice = self._choices[delta.index]
        text = delta.text
        if delta.finish is not None:
            choice.finish = _finish_of(delta)
        shown = self._shown(delta.pieces, text, choice.length)
        if not shown and delta.finish is not None and choice.tokens + len(delta.token_ids):
            # The end came after the last token: it needs an event of its own.
            shown = [Shown(Token(choice.last, text, 0.0, not text), [])]
        choice.text.append(text)
        choice.length += len(text)
        choice.tokens += len(delta.token_ids)
        choice.logprob += sum(_finite(p.logprob.logprob) for p in delta.pieces)
        if delta.token_ids:
            choice.last = delta.token_ids[-1]
        return shown

    def _shown(self, pieces: Sequence[TokenPiece], text: str, start: int) -> list[Shown]:
        """Tokens with the parts of a new text, which begins at character `start` of the output.

        Text that was held back (half a character, what could become a stop string) belongs to the
        token that releases it.
        """
        found, at = [], 0
        for i, piece in enumerate(pieces):
            end = len(text)
            if i + 1 < len(pieces):
                end = min(max(pieces[i + 1].offset - start, at), len(text))
            part, at = text[at:end], end
            token = self._token(piece.logprob.token_id, piece.logprob.logprob)
            token.special = token.special and not part
            if not token.special:
                token.text = part
            found.append(Shown(token, [self._token(t, value) for t, value in piece.logprob.top]))
        return found

    def _token(self, token_id: int, logprob: float) -> Token:
        special = token_id in self._tokenizer.special_ids
        text = self._spelled(token_id)
        return Token(token_id, text, _finite(logprob), special)

    def _spelled(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode(errors="replace")

    def _prefilled(self, token_id: int, known: TokenLogprob | None) -> dict[str, Any]:
        logprob = None if known is None else _finite(known.logprob)
        return {"id": token_id, "text": self._spelled(token_id), "logprob": logprob}

    def _details(self, index: int, placed: Document) -> dict[str, Any]:
        choice = self._choices[index]
        found: dict[str, Any] = {
            "finish_reason": choice.finish,
            "generated_tokens": choice.tokens,
            "seed": self._seed,
            "prefill": placed.place(self._prefill or [b"[]"]),
            "tokens": placed.place([encode([one.token for one in choice.shown])]),
        }
        if self._asked.top_n_tokens:
            found["top_tokens"] = placed.place([encode([one.top for one in choice.shown])])
        return found

    def _ending(self, choice: Choice) -> dict[str, Any]:
        return {
            "finish_reason": choice.finish,
            "generated_tokens": choice.tokens,
            "input_length": len(self._prompt),
            "seed": self._seed,
        }


def _finish_of(delta: ChoiceDelta) -> str:
    if delta.finish == "length":
        return "length"
    return "stop_sequence" if isinstance(delta.stopped_by, str) else "eos_token"


def _finite(logprob: float) -> float:
    return logprob if logprob > FLOOR else FLOOR
