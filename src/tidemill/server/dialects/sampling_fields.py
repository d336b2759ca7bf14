"""The parameters that bodies take by the names of `contract.sampling`; one declaration for all.

A parameter that a request's body gives unchanged to `SamplingParams` is a member here, and then
in every dialect that uses these names. Dialects with names of their own have a table
(parameter -> member) beside their translation; docs/parameters.md is generated from both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from tidemill.contract.repetition import RepetitionDetection
from tidemill.server.dialects.fields import Fields, Neutral
from tidemill.server.dialects.members import Body, InvalidField, JsonSchema, checked, wrong_type


def _check_breakers(value: Any) -> None:
    breakers_of(value)


def breakers_of(value: Any) -> list[str]:
    """DRY's breakers: a list of texts, or its JSON text, with or without brackets (as
    text-generation-webui and its clients send it).

    Raises:
        InvalidField: it is neither.
    """
    texts = value
    if isinstance(value, str):
        try:
            texts = msgspec.json.decode(value if value.startswith("[") else f"[{value}]")
        except msgspec.DecodeError:
            texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise wrong_type("expected a list of texts")
    return texts


_TEXTS: JsonSchema = {"type": "array", "items": {"type": "string"}}
DryBreakers = Annotated[
    Any, checked(_check_breakers, {"anyOf": [_TEXTS, {"type": "string"}, {"type": "null"}]})
]


class RepetitionFields(Body, kw_only=True):
    """`repetition_detection`: ends an output that repeats itself; see `RepetitionDetection`.

    Attributes:
        max_pattern_size: absent or 0: nothing is detected.
    """

    known: ClassVar[Fields] = {
        name: Neutral((0,)) for name in ("max_pattern_size", "min_pattern_size", "min_count")
    }

    max_pattern_size: int | None = None
    min_pattern_size: int | None = None
    min_count: int | None = None

    def finalize(self) -> None:
        if self.max_pattern_size is not None and self.min_count is None:
            raise InvalidField("missing_required_parameter", "is required", "min_count")


class SamplingFields(Body, kw_only=True):
    """Parameters that are copied as they are; see `contract.sampling.SamplingParams`."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    repetition_detection: RepetitionFields | None = None
    best_of: int | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    typical_p: float | None = None
    top_a: float | None = None
    top_n_sigma: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    smoothing_factor: float | None = None
    smoothing_curve: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: DryBreakers = None
    dry_breaker_ids: list[int] | None = None
    repeat_last_n: int | None = None
    no_repeat_ngram_size: int | None = None
    allowed_token_ids: list[int] | None = None
    bad_words_ids: list[list[int]] | None = None


SAMPLING_FIELDS = SamplingFields.__struct_fields__
"""The members' names, which are those of `SamplingParams`."""


_AS_TUPLES: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "dry_sequence_breakers": lambda value: tuple(breakers_of(value)),
    "dry_breaker_ids": tuple,
    "allowed_token_ids": tuple,
    "bad_words_ids": lambda value: tuple(map(tuple, value)),
}


def sampling_values(body: SamplingFields) -> dict[str, Any]:
    """The parameters that a body has."""
    given = {name: value for name in SAMPLING_FIELDS if (value := getattr(body, name)) is not None}
    for name, make in _AS_TUPLES.items():
        if name in given:
            given[name] = make(given[name])
    repetition: RepetitionFields | None = given.pop("repetition_detection", None)
    if repetition is not None and repetition.max_pattern_size is not None:
        members = ((name, getattr(repetition, name)) for name in repetition.__struct_fields__)
        rule = {name: value for name, value in members if value is not None}
        given["repetition_detection"] = RepetitionDetection(**rule)
    return given
