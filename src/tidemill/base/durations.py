"""Durations as people write them: ``90``, ``"5m"``, ``"1h30m"``, ``"300ms"``."""

from __future__ import annotations

import math
import re
from typing import Any

_SECONDS_OF = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = r"(?:(\d+(?:\.\d+)?){})?"
_WRITTEN = re.compile(
    "(-?)" + "".join(_PART.format(u) for u in ("d", "h", "m(?!s)", "s", "ms")), re.ASCII
)


FOR_EVER = 100 * 365 * 86400
"""Longer than this is for ever: no date could name its end."""


def duration_seconds(written: str) -> float:
    """Seconds of a text; negative for ``forever``.

    Raises:
        ValueError: it is no duration, or not finite.
    """
    written = written.strip()
    if written == "forever":
        return -1.0
    try:
        seconds = float(written)
    except ValueError:
        match = _WRITTEN.fullmatch(written)
    else:
        if not math.isfinite(seconds):
            raise ValueError
        return seconds
    if match is None or not any(match.groups()[1:]):
        raise ValueError
    sign, *parts = match.groups()
    total = sum(float(p or 0) * of for p, of in zip(parts, _SECONDS_OF.values(), strict=True))
    return -total if sign else total


def stay_seconds(value: Any) -> float:
    """How long something stays: seconds or a text; infinite for what is negative or longer than
    `FOR_EVER`.

    Raises:
        ValueError: it is neither, or no finite number.
    """
    if type(value) is str:
        value = duration_seconds(value)
    if type(value) not in (int, float) or value != value or value in (float("inf"), float("-inf")):
        raise ValueError
    return float("inf") if value < 0 or value > FOR_EVER else float(value)
