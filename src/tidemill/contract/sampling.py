"""How tokens are chosen: the sampling parameters of one request, resolved and checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any, cast

import msgspec

from tidemill.base.errors import bad_request
from tidemill.contract.repetition import RepetitionDetection
from tidemill.contract.samplers import (
    CHOOSING,
    INTEGERS,
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_DRY_BREAKERS,
    NUMBERS,
)

MAX_LOGPROBS = 2**20
ALL_LOGPROBS = -1
MAX_CHOICES = 128
MAX_BEAMS = 32
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKENS = 256
MAX_LOGIT_BIAS = 4096
MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1
_INT32_MAX = 2**31 - 1


NEUTRAL: dict[str, float | int] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""Fields for which a model may recommend a value, and their values where it recommends none."""


class SamplingParams(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True
):
    """Sampling parameters of a request; a value out of its range fails in the constructor.

    A field of `NEUTRAL` that is left out (None) means what the model's makers recommend, else
    the neutral value: `contract.resolve.resolve` fills it in.

    Order of application to the logits (float32): masks, logit_bias and bans (allowed_token_ids,
    bad_words_ids, no_repeat_ngram_size), repetition, presence and frequency penalties, DRY,
    temperature (dynatemp_range, smoothing_factor), then top_k, top_p, min_p, top_a, top_n_sigma,
    epsilon_cutoff and eta_cutoff as filters of one distribution, then typical_p and XTC on what
    they keep; the draw is an exponential race by counter-based random numbers of (seed, choice,
    position, token id). docs/sampling.md has the definitions and their sources.

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
        logprobs: None for none; k for the chosen token's and the k most likely tokens', from the
            softmax of the raw logits (before any of the above); -1 for those of all tokens.
        prompt_logprobs: the same for the prompt's tokens (the first has none).
        include_stop_str_in_output: the stop string that ended the output is part of it, and the
            end token or stop token id that ended it is decoded like any other token.
        skip_special_tokens: special tokens add no text.
        spaces_between_special_tokens: False: of two special tokens in a row that are shown, the
            second is written without the space that some tokenizers put before every token.
        repetition_detection: ends an output that repeats itself; None: nothing does.
        best_of: so many choices are sampled, and the `n` with the highest mean logprob are the
            output, best first; None: as many as `n`.
        beam_width: above 1: beam search with so many beams instead of sampling, as transformers'
            `num_beams` (`sched.beam_search`); the output are the `n` best hypotheses, best first.
            Of the parameters above, those that change or ban logits apply (to the log-softmax, as
            in transformers), those that only choose among tokens do not and must be left out.
        typical_p: locally typical sampling (Meister et al. 2022), in [0, 1]; 1 is off.
        top_a: keep p >= top_a * (largest p)^2, in [0, 1]; 0 is off.
        top_n_sigma: keep logits within so many standard deviations of the largest (Tang et al.
            2024); 0 (or -1) is off.
        epsilon_cutoff, eta_cutoff: probabilities below which tokens are dropped (Hewitt et al.
            2022); 0 is off.
        xtc_probability, xtc_threshold: with that probability all tokens of at least the threshold
            but the least likely of them are dropped; 0 is off.
        dynatemp_range, dynatemp_exponent: the temperature moves within temperature +- range by the
            entropy; 0 is off.
        smoothing_factor, smoothing_curve: quadratic smoothing of the scaled logits; 0 is off.
        dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n: DRY: a token that would
            make the output repeat a sequence is penalised by multiplier * base^(length -
            allowed_length); within the last so many tokens, -1: all. A multiplier of 0 is off.
        dry_sequence_breakers: texts that no such sequence crosses; of each the last token of
            ``a`` + text counts.
        dry_breaker_ids: their token ids; where they are given, the texts are not used.
        repeat_last_n: the penalties look at so many last tokens; -1: all, 0: none.
        no_repeat_ngram_size: no sequence of so many tokens occurs twice, the prompt included; 0 is
            off.
        allowed_token_ids: no other token is sampled; empty: all are allowed.
        bad_words_ids: sequences of token ids that the output does not contain.
        length_penalty: of beam search: a hypothesis' score is its sum of logprobs divided by its
            tokens to this power, in [-10, 10].
        early_stopping: of beam search: True, False or ``never``, as in transformers.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
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
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    repetition_detection: RepetitionDetection | None = None
    best_of: int | None = None
    beam_width: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    typical_p: float = 1.0
    top_a: float = 0.0
    top_n_sigma: float = 0.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    smoothing_factor: float = 0.0
    smoothing_curve: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    dry_breaker_ids: tuple[int, ...] | None = None
    repeat_last_n: int = -1
    no_repeat_ngram_size: int = 0
    allowed_token_ids: tuple[int, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        # Every character of a string would be a stop string of its own.
        stop = cast(object, self.stop)
        if isinstance(stop, str):
            msgspec.structs.force_setattr(self, "stop", (stop,))
        rule = cast(object, self.repetition_detection)
        if isinstance(rule, Mapping):
            msgspec.structs.force_setattr(
                self, "repetition_detection", RepetitionDetection.of("repetition_detection", rule)
            )
        self.validate()

    def filled(self, defaults: Mapping[str, float | int] = {}) -> SamplingParams:
        """The same with a value for every field of `NEUTRAL`.

        Args:
            defaults: what the model's makers recommend.
        """
        left_out = {k: v for k, v in NEUTRAL.items() if getattr(self, k) is None}
        defaults = {k: v for k, v in defaults.items() if self.takes(k)}
        return self.with_values({k: defaults.get(k, v) for k, v in left_out.items()})

    def with_values(self, values: Mapping[str, Any]) -> SamplingParams:
        """The same with other values, which must be in their ranges: they are not checked."""
        if not values:
            return self
        changed = copy(self)
        for name, value in values.items():
            msgspec.structs.force_setattr(changed, name, value)
        return changed

    @property
    def greedy(self) -> bool:
        """True when no random number is drawn."""
        return self.temperature == 0.0

    def takes(self, name: str) -> bool:
        """Whether what others recommend for a field applies: to a beam search nothing does that
        only chooses among tokens."""
        return not self.beam_search or name not in _UNUSED_BY_BEAMS

    @property
    def beam_search(self) -> bool:
        """True for beam search instead of sampling."""
        return self.beam_width > 1

    @property
    def chosen(self) -> bool:
        """True where more choices are sampled than output (`best_of`)."""
        return self.best_of is not None and self.best_of > self.n and not self.beam_search

    @property
    def outputs(self) -> int:
        """Choices that the engine outputs for one prompt."""
        return self.n if self.beam_search else self.best_of or self.n

    @property
    def width(self) -> int:
        """Sequences that are computed for one prompt."""
        return self.beam_width if self.beam_search else self.best_of or self.n

    @property
    def penalized(self) -> bool:
        """True when the token history changes the logits."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty not in (None, 1.0)
            or self.dry_multiplier != 0.0
            or self.no_repeat_ngram_size != 0
            or bool(self.bad_words_ids)
        )

    def validate(self, vocab_size: int | None = None) -> SamplingParams:
        """Return self if every field is in its range.

        Args:
            vocab_size: when given, token ids are checked against it.

        Raises:
            TidemillError: kind BAD_REQUEST, `param` naming the first field out of range.
        """
        for name, default in _DEFAULTS:
            value = getattr(self, name)
            if value is not default:
                _check_value(name, value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise bad_request(
                "min_tokens",
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})",
            )
        self._validate_stops()
        if self.beam_search or self.best_of is not None:
            self._validate_width()
        if self.bad_words_ids or len(self.dry_sequence_breakers) > MAX_DRY_BREAKERS:
            self._validate_sequences()
        self.check_token_ids(vocab_size or _INT32_MAX)
        return self

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

    def _validate_sequences(self) -> None:
        if len(self.dry_sequence_breakers) > MAX_DRY_BREAKERS:
            raise bad_request(
                "dry_sequence_breakers",
                f"dry_sequence_breakers takes at most {MAX_DRY_BREAKERS} texts",
            )
        if len(self.bad_words_ids) > MAX_BAD_WORDS:
            raise bad_request(
                "bad_words_ids",
                f"bad_words_ids takes at most {MAX_BAD_WORDS} sequences, "
                f"got {len(self.bad_words_ids)}",
            )
        for word in self.bad_words_ids:
            if not 1 <= len(word) <= MAX_BAD_WORD_TOKENS:
                raise bad_request(
                    "bad_words_ids",
                    f"each sequence of bad_words_ids must have 1 to {MAX_BAD_WORD_TOKENS} tokens",
                )

    def _validate_width(self) -> None:
        name, most = ("beam_width", MAX_BEAMS) if self.beam_search else ("best_of", MAX_CHOICES)
        if self.beam_search and self.best_of not in (None, self.beam_width):
            raise bad_request("best_of", "best_of and beam_width contradict each other; send one")
        if not self.n <= self.width <= most:
            raise bad_request(
                name, f"{name} must be between n ({self.n}) and {most}, got {self.width}"
            )
        if not self.beam_search:
            return
        for field, neutral in _UNUSED_BY_BEAMS.items():
            if getattr(self, field) not in neutral:
                raise bad_request(
                    field,
                    f"{field} has no effect with a beam_width above 1: a beam search samples "
                    f"nothing; leave {field} out",
                )

    def check_token_ids(self, vocab_size: int) -> None:
        """Raise unless every token id is below `vocab_size`.

        Raises:
            TidemillError: kind BAD_REQUEST, `param` naming the field.
        """
        ids: Iterable[int]
        for name, ids, most, what in (
            ("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKENS, "ids"),
            ("logit_bias", self.logit_bias, MAX_LOGIT_BIAS, "entries"),
            ("dry_breaker_ids", self.dry_breaker_ids or (), MAX_STOP_TOKENS, "ids"),
            ("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKENS, "ids"),
            *(("bad_words_ids", word, MAX_BAD_WORD_TOKENS, "ids") for word in self.bad_words_ids),
        ):
            if len(ids) > most:
                raise bad_request(name, f"{name} takes at most {most} {what}, got {len(ids)}")
            if ids:  # the extremes alone: this may be thousands for each of hundreds of prompts
                for token in (min(ids), max(ids)):
                    _in_range(name, token, 0, vocab_size - 1)


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_strings(value: object) -> bool:
    return type(value) in (tuple, list) and all(type(v) is str for v in cast(Any, value))


def _is_ids(value: object) -> bool:
    return type(value) in (tuple, list) and all(map(_is_int, cast(Any, value)))


def _is_bias(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    return {int} >= {*map(type, value)} and {int, float} >= {*map(type, value.values())}


def _is_sequences(value: object) -> bool:
    return type(value) in (tuple, list) and all(map(_is_ids, cast(Any, value)))


_INTEGER = (_is_int, "a whole number")
_NUMBER = (_is_number, "a number")
_BOOLEAN = (lambda value: type(value) is bool, "True or False")
_TYPES: dict[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), _NUMBER),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), _NUMBER),
    **dict.fromkeys(("top_k", "seed", "max_tokens", "min_tokens", "n"), _INTEGER),
    **dict.fromkeys(("best_of", "beam_width"), _INTEGER),
    "length_penalty": _NUMBER,
    "early_stopping": (
        lambda value: type(value) is bool or value == "never",
        'True, False or "never"',
    ),
    **dict.fromkeys(("logprobs", "prompt_logprobs"), _INTEGER),
    **dict.fromkeys(("ignore_eos", "include_stop_str_in_output"), _BOOLEAN),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), _BOOLEAN),
    **dict.fromkeys(NUMBERS, _NUMBER),
    **dict.fromkeys(INTEGERS, _INTEGER),
    **dict.fromkeys(("stop", "dry_sequence_breakers"), (_is_strings, "a tuple of strings")),
    **dict.fromkeys(("dry_breaker_ids", "allowed_token_ids"), (_is_ids, "a tuple of token ids")),
    "bad_words_ids": (_is_sequences, "a tuple of tuples of token ids"),
    "stop_token_ids": (_is_ids, "a tuple of token ids"),
    "logit_bias": (_is_bias, "a dict of token ids and numbers"),
    "repetition_detection": (
        lambda value: isinstance(value, RepetitionDetection),
        "a RepetitionDetection",
    ),
}
_OPTIONAL = frozenset(
    (
        *(*NEUTRAL, "seed", "max_tokens", "logprobs", "prompt_logprobs"),
        *("repetition_detection", "best_of", "dry_breaker_ids"),
    )
)
_DEFAULTS = tuple(
    (field.name, None if field.default is msgspec.NODEFAULT else field.default)
    for field in msgspec.structs.fields(SamplingParams)
)
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, _INT32_MAX),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    # Less would make the logits overflow, which looks like a broken model.
    "repetition_penalty": (0.01, 100.0),
    "seed": (MIN_SEED, MAX_SEED),
    "max_tokens": (1, _INT32_MAX),
    "min_tokens": (0, _INT32_MAX),
    "n": (1, MAX_CHOICES),
    "best_of": (1, MAX_CHOICES),
    "beam_width": (1, MAX_BEAMS),
    "length_penalty": (-10.0, 10.0),
    "logprobs": (ALL_LOGPROBS, MAX_LOGPROBS),
    "prompt_logprobs": (ALL_LOGPROBS, MAX_LOGPROBS),
    **NUMBERS,
    **INTEGERS,
}


# Fields that only choose among tokens -> the values that a beam search accepts.
_UNUSED_BY_BEAMS: dict[str, tuple[object, ...]] = {
    "temperature": (None, 0.0, 1.0),
    "top_p": (None, 1.0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0.0),
    "repetition_detection": (None,),
    **{name: (neutral,) for name, neutral in CHOOSING.items()},
}


def _check_value(name: str, value: Any) -> None:
    # Structs check types when they are decoded, not when Python code makes them.
    test, what = _TYPES[name]
    if value is None and name in _OPTIONAL:
        return
    if not test(value):
        raise bad_request(name, f"{name} must be {what}, got {str(value)[:80]!r}")
    if name in RANGES:
        _in_range(name, value, *RANGES[name])
    elif name == "logit_bias":
        for bias in {*value.values()}:
            _in_range(name, bias, -100.0, 100.0)
    elif name == "repetition_detection":
        value.check(name)


def _finite(param: str, value: float) -> float:
    if isinstance(value, float) and not math.isfinite(value):
        raise bad_request(param, f"{param} must be a finite number, got {value}")
    return value


def _in_range(param: str, value: float, low: float, high: float) -> None:
    if not low <= _finite(param, value) <= high:
        least, most = (f"{v:g}" if isinstance(v, float) else str(v) for v in (low, high))
        raise bad_request(param, f"{param} must be between {least} and {most}, got {value}")
