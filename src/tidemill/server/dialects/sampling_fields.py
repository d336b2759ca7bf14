"""The parameters that bodies take by the names of `contract.sampling`; one declaration for all.

A parameter that a request's body gives unchanged to `SamplingParams` is a member here, and then
in every dialect that uses these names. Dialects with names of their own have a table
(parameter -> member) beside their translation; docs/parameters.md is generated from both.
"""

from __future__ import annotations

from typing import Any

from tidemill.server.dialects.members import Body


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


SAMPLING_FIELDS = SamplingFields.__struct_fields__
"""The members' names, which are those of `SamplingParams`."""


def sampling_values(body: SamplingFields) -> dict[str, Any]:
    """The parameters that a body has."""
    return {name: value for name in SAMPLING_FIELDS if (value := getattr(body, name)) is not None}
