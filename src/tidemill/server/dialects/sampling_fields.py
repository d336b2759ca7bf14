"""The parameters that bodies take by the names of `contract.sampling`; one declaration for all.

A parameter that a request's body gives unchanged to `SamplingParams` is a member here, and then
in every dialect that uses these names. Dialects with names of their own have a table
(parameter -> member) beside their translation; docs/parameters.md is generated from both.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from tidemill.contract.repetition import RepetitionDetection
from tidemill.server.dialects.fields import Fields, Neutral
from tidemill.server.dialects.members import Body, InvalidField


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


SAMPLING_FIELDS = SamplingFields.__struct_fields__
"""The members' names, which are those of `SamplingParams`."""


def sampling_values(body: SamplingFields) -> dict[str, Any]:
    """The parameters that a body has."""
    given = {name: value for name in SAMPLING_FIELDS if (value := getattr(body, name)) is not None}
    repetition: RepetitionFields | None = given.pop("repetition_detection", None)
    if repetition is not None and repetition.max_pattern_size is not None:
        members = ((name, getattr(repetition, name)) for name in repetition.__struct_fields__)
        rule = {name: value for name, value in members if value is not None}
        given["repetition_detection"] = RepetitionDetection(**rule)
    return given
