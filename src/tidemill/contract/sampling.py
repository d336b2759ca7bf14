"""How tokens are chosen: the sampling parameters of one request, resolved and checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from tidemill.base.errors import bad_request

MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKENS = 256
MAX_LOGIT_BIAS = 4096
MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1
_INT32_MAX = 2**31 - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters of a request. Build it with the constructor, then `validate()`.

    Order of application to the logits (float32): logit_bias and bans, repetition penalty
    (Keskar et al. 2019, over prompt and output), presence and frequency penalties (OpenAI's
    definition, over output), temperature, then top_k, top_p (nucleus, Holtzman et al. 2020) and
    min_p (Nguyen et al. 2024) as filters of one distribution, each computed on the softmax of the
    temperature-scaled logits; the draw is by a counter-based generator keyed by
    (seed, choice, position, draw).

    Attributes:
        temperature: 0 means greedy (ties go to the lowest token id); up to 100.
        top_p: keep the smallest set of most likely tokens whose mass reaches it, in [0, 1]; 0 keeps
            the most likely one: greedy.
        top_k: keep this many most likely tokens; 0 (or -1 from a client) keeps all.
        min_p: drop tokens less likely than this share of the most likely one, in [0, 1].
        presence_penalty, frequency_penalty: in [-2, 2].
        repetition_penalty: 0.01 to 100; 1 is none.
        seed: a signed integer of 64 bits; None is replaced by a drawn seed in the API process.
        stop: strings that end the output and are not part of it.
        stop_token_ids: tokens that end the output and are not part of its text.
        max_tokens: upper bound of the output; None means what is left of the context.
        min_tokens: no end token and no stop token id before this many; stop strings are ignored
            until then.
        ignore_eos: the model's own end tokens do not end the output.
        n: how many choices are generated for the prompt.
        logit_bias: token id -> added to its logit, in [-100, 100]; -100 bans the token.
        logprobs: None for none; k for the chosen token's and the k most likely tokens' (0 to 20),
            from the softmax of the raw logits (before any of the above).
        prompt_logprobs: the same for the prompt's tokens (the first has none).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int = 1
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        # Every character of a string would be a stop string of its own.
        stop = cast(object, self.stop)
        if isinstance(stop, str):
            msgspec.structs.force_setattr(self, "stop", (stop,))

    @property
    def greedy(self) -> bool:
        """True when no random number is drawn."""
        return self.temperature == 0.0

    @property
    def penalized(self) -> bool:
        """True when the token history changes the logits."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )

    def validate(self, vocab_size: int | None = None) -> SamplingParams:
        """Return self if every field is in its range.

        Args:
            vocab_size: when given, token ids are checked against it.

        Raises:
            TidemillError: kind BAD_REQUEST, `param` naming the first field out of range.
        """
        self._check_types()
        _in_range("temperature", self.temperature, 0.0, 100.0)
        _in_range("top_p", self.top_p, 0.0, 1.0)
        _int_in_range("top_k", self.top_k, -1, _INT32_MAX)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        # Less would make the logits overflow, which looks like a broken model.
        _in_range("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        if self.seed is not None:
            _int_in_range("seed", self.seed, MIN_SEED, MAX_SEED)
        if self.max_tokens is not None:
            _int_in_range("max_tokens", self.max_tokens, 1, _INT32_MAX)
        _int_in_range("min_tokens", self.min_tokens, 0, _INT32_MAX)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise bad_request(
                "min_tokens",
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})",
            )
        _int_in_range("n", self.n, 1, MAX_CHOICES)
        if self.logprobs is not None:
            _int_in_range("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _int_in_range("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        self._validate_stops()
        self._validate_tokens(vocab_size)
        return self

    def _check_types(self) -> None:
        # Structs check types when they are decoded, not when Python code makes them.
        for name, (test, what) in _TYPES.items():
            value = getattr(self, name)
            if not test(value) and not (value is None and name in _OPTIONAL):
                raise bad_request(name, f"{name} must be {what}, got {str(value)[:80]!r}")

    def _validate_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise bad_request(
                "stop", f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}"
            )
        for text in self.stop:
            if not text or len(text) > MAX_STOP_STRING_CHARS:
                raise bad_request(
                    "stop", f"each stop string must have 1 to {MAX_STOP_STRING_CHARS} characters"
                )

    def _validate_tokens(self, vocab_size: int | None) -> None:
        limit = _INT32_MAX if vocab_size is None else vocab_size
        if len(self.stop_token_ids) > MAX_STOP_TOKENS:
            raise bad_request(
                "stop_token_ids",
                f"stop_token_ids takes at most {MAX_STOP_TOKENS} ids, "
                f"got {len(self.stop_token_ids)}",
            )
        for token in self.stop_token_ids:
            _int_in_range("stop_token_ids", token, 0, limit - 1)
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise bad_request(
                "logit_bias",
                f"logit_bias takes at most {MAX_LOGIT_BIAS} entries, got {len(self.logit_bias)}",
            )
        for token, bias in self.logit_bias.items():
            _int_in_range("logit_bias", token, 0, limit - 1)
            _in_range("logit_bias", bias, -100.0, 100.0)


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_strings(value: object) -> bool:
    return type(value) in (tuple, list) and all(type(v) is str for v in cast(Any, value))


def _is_ids(value: object) -> bool:
    return type(value) in (tuple, list) and all(map(_is_int, cast(Any, value)))


def _is_bias(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        _is_int(k) and _is_number(v) for k, v in value.items()
    )


_INTEGER = (_is_int, "a whole number")
_NUMBER = (_is_number, "a number")
_TYPES: dict[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), _NUMBER),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), _NUMBER),
    **dict.fromkeys(("top_k", "seed", "max_tokens", "min_tokens", "n"), _INTEGER),
    **dict.fromkeys(("logprobs", "prompt_logprobs"), _INTEGER),
    "ignore_eos": (lambda value: type(value) is bool, "True or False"),
    "stop": (_is_strings, "a tuple of strings"),
    "stop_token_ids": (_is_ids, "a tuple of token ids"),
    "logit_bias": (_is_bias, "a dict of token ids and numbers"),
}
_OPTIONAL = frozenset(("seed", "max_tokens", "logprobs", "prompt_logprobs"))


def _finite(param: str, value: float) -> float:
    if not math.isfinite(value):
        raise bad_request(param, f"{param} must be a finite number, got {value}")
    return value


def _in_range(param: str, value: float, low: float, high: float) -> None:
    if not low <= _finite(param, value) <= high:
        raise bad_request(param, f"{param} must be between {low:g} and {high:g}, got {value}")


def _int_in_range(param: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise bad_request(param, f"{param} must be between {low} and {high}, got {value}")
