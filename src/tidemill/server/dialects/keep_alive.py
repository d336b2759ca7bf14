"""`keep_alive` of a request: how long its model stays loaded after it."""

from __future__ import annotations

from typing import Annotated, Any

from tidemill.base.durations import stay_seconds
from tidemill.server.dialects.members import checked, wrong_value


def _check(value: Any) -> None:
    try:
        stay_seconds(value)
    except (ValueError, OverflowError):
        raise wrong_value(
            'expected seconds, a duration such as "5m", 0 (unload after this request), or a '
            "negative number (stay loaded)"
        ) from None


KeepAlive = Annotated[
    Any, checked(_check, {"anyOf": [{"type": "number"}, {"type": "string"}, {"type": "null"}]})
]
"""Seconds, ``"5m"``, 0 (unloaded once nothing uses it) or a negative number (for ever)."""


def keep_alive_of(value: Any) -> float | None:
    """Seconds for `ModelHost.lease`; None where the request says nothing."""
    return None if value is None else stay_seconds(value)
