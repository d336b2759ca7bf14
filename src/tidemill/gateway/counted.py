"""What a relayed answer used, for usage, quotas and the log; read from the answer itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

_NUMBER = re.compile(
    rb'"(prompt_tokens|completion_tokens|input_tokens|output_tokens|cached_tokens'
    rb"|cache_read_input_tokens|cache_creation_input_tokens|prompt_eval_count|eval_count"
    rb'|reasoning_tokens|total_tokens|tokens_predicted|tokens_evaluated)"\s*:\s*(\d{1,12})'
)
_FINISH = re.compile(rb'"(?:finish_reason|stop_reason|done_reason)"\s*:\s*"([a-z_]{1,32})"')
_PROMPT = (b"prompt_tokens", b"input_tokens", b"prompt_eval_count", b"tokens_evaluated")
_ANSWER = (b"completion_tokens", b"output_tokens", b"eval_count", b"tokens_predicted")


@dataclass(slots=True)
class Counted:
    """A `server.recording.Measured`.

    Attributes:
        model: whose prices count.
        prompt_tokens, completion_tokens: as the target says; as estimated where it does not.
    """

    model: str
    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    admitted: bool = False
    finished: bool = False
    finish_reasons: Sequence[str] = ()
    num_choices: int = 1
    timings: None = field(default=None, init=False)
    trace: None = field(default=None, init=False)

    @property
    def spent(self) -> Mapping[str, tuple[int, int, int]]:
        """Tokens by model, for their prices."""
        return {self.model: (self.prompt_tokens, self.cached_tokens, self.completion_tokens)}

    def read(self, answer: bytes, parts: int) -> None:
        """Take what an answer says of its use.

        Args:
            answer: the whole one, or a stream's first and last parts.
            parts: of a stream: of about so many tokens.
        """
        found: dict[bytes, int] = {}
        for name, digits in _NUMBER.findall(answer):
            found[name] = max(found.get(name, 0), int(digits))
        self.prompt_tokens = next((found[n] for n in _PROMPT if n in found), self.prompt_tokens)
        read = found.get(b"cache_read_input_tokens", 0)
        if b"input_tokens" in found and b"prompt_tokens" not in found:
            # Anthropic's input_tokens leave out what is cached.
            self.prompt_tokens += read + found.get(b"cache_creation_input_tokens", 0)
        self.completion_tokens = next((found[n] for n in _ANSWER if n in found), parts)
        self.cached_tokens = min(self.prompt_tokens, max(found.get(b"cached_tokens", 0), read))
        self.reasoning_tokens = min(found.get(b"reasoning_tokens", 0), self.completion_tokens)
        reasons = _FINISH.findall(answer)
        self.finish_reasons = tuple(dict.fromkeys(r.decode() for r in reasons))


def usage_part(body: bytes) -> bytes:
    """The part of a whole answer that says what was used: an answer's own text is none of it."""
    try:
        found = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return b""
    names = ("usage", "meta", "prompt_eval_count", "eval_count", "stop_reason", "done_reason")
    more = ("tokens_predicted", "tokens_evaluated")
    parts = [b'"%b":%b' % (n.encode(), bytes(found[n])) for n in (*names, *more) if n in found]
    choices = found.get("choices")
    if choices is not None:
        parts += [
            b'"finish_reason":' + bytes(choice["finish_reason"])
            for choice in msgspec.json.decode(choices, type=list[dict[str, msgspec.Raw]])
            if "finish_reason" in choice
        ]
    return b",".join(parts)
