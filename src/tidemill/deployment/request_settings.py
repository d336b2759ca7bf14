"""Settings whose table is the type that uses them: sampling presets, and limits of requests."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

from tidemill.contract.sampling import (
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    NEUTRAL,
    RANGES,
)
from tidemill.deployment import kinds
from tidemill.deployment.kinds import Kind
from tidemill.deployment.settings import Apply, Setting
from tidemill.server.access.limits import FIXED, Limits

_LONGEST = 365 * 86400.0

_WHOLE = ("top_k", "max_tokens", "min_tokens", "seed")
PRESETS = (*NEUTRAL, "presence_penalty", "frequency_penalty", *_WHOLE[1:], "stop")
"""Fields of `SamplingParams` that a model may preset."""


@cache
def sampling_settings() -> tuple[Setting, ...]:
    """Sampling parameters that a model may preset; a request's own value counts first."""
    found = []
    for key in PRESETS:
        neutral = f", else {NEUTRAL[key]:g}" if key in NEUTRAL else ", else none"
        help = f"Where a request says nothing; default: the model's own{neutral}."
        found.append(Setting(key, _sampling_kind(key), None, help, Apply.IN_PLACE, flag=False))
    return tuple(found)


def _sampling_kind(key: str) -> Kind:
    if key == "stop":
        return kinds.several(
            Kind(f"a text of 1 to {MAX_STOP_STRING_CHARS} characters", _read_stop),
            f"a text, or a list of at most {MAX_STOP_STRINGS}",
            most=MAX_STOP_STRINGS,
        )
    low, high = RANGES[key]
    if key in _WHOLE:
        return kinds.integer(int(low), int(high))
    return kinds.number(low, high)


def _read_stop(value: Any, _: Path) -> str:
    # Line breaks alone are texts that answers often end at.
    if type(value) is not str or not 1 <= len(value) <= MAX_STOP_STRING_CHARS:
        raise ValueError
    return value


@cache
def limit_settings() -> tuple[Setting, ...]:
    """Bounds of the HTTP API (`server.access.limits.Limits`)."""
    found = []
    for field in dataclasses.fields(Limits):
        default = field.default
        if isinstance(default, int):
            kind = kinds.integer(1, default if field.name in FIXED else kinds.UNBOUNDED)
        else:
            kind = kinds.number(0, _LONGEST, "seconds", above=True)
        help = "See [request limits](operations.md#request-limits)."
        found.append(Setting(field.name, kind, default, help, Apply.SERVER, flag=False))
    return tuple(found)
