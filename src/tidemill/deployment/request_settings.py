"""Settings whose table is the type that uses them: sampling defaults, and limits of requests."""

from __future__ import annotations

import dataclasses
from functools import cache

from tidemill.contract.sampling import NEUTRAL, RANGES
from tidemill.deployment import kinds
from tidemill.deployment.settings import Apply, Setting
from tidemill.server.access.limits import FIXED, Limits

_LONGEST = 365 * 86400.0


@cache
def sampling_settings() -> tuple[Setting, ...]:
    """Sampling parameters that a model may preset; a request's own value counts first."""
    found = []
    for key, neutral in NEUTRAL.items():
        low, high = RANGES[key]
        if isinstance(neutral, int):
            kind = kinds.integer(int(low), int(high))
        else:
            kind = kinds.number(low, high)
        text = f"Where a request says nothing; default: the model's own, else {neutral:g}."
        found.append(Setting(key, kind, None, text, Apply.IN_PLACE, flag=False))
    return tuple(found)


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
        text = "See [request limits](operations.md#request-limits)."
        found.append(Setting(field.name, kind, default, text, Apply.SERVER, flag=False))
    return tuple(found)
