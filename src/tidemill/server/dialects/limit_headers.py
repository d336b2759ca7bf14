"""Headers that say what is left of a client's limits: OpenAI's names, which most clients know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.server.quotas.standing import Left, Standing


Fields = list[tuple[str, str]]
LimitHeaders = Callable[["Standing"], Fields]

WARNING = "x-tidemill-quota-warning"

LIMIT_HEADERS = (
    *(
        f"x-ratelimit-{k}-{u}"
        for u in ("requests", "tokens")
        for k in ("limit", "remaining", "reset")
    ),
    WARNING,
)
"""Names of the headers."""


def openai_headers(standing: Standing) -> Fields:
    """``x-ratelimit-*``; a reset is a duration such as ``6m0s``."""
    found: Fields = []
    for unit, left in (("requests", standing.requests), ("tokens", standing.tokens)):
        if left is not None:
            found += _of(unit, left)
    return found + warnings(standing.warnings)


def warnings(texts: Sequence[str]) -> Fields:
    """The header of soft limits that are exceeded; in names, what is not ASCII is escaped."""
    if not texts:
        return []
    return [(WARNING, "; ".join(texts).encode("ascii", "backslashreplace").decode())]


def _of(unit: str, left: Left) -> Fields:
    return [
        (f"x-ratelimit-limit-{unit}", str(left.limit)),
        (f"x-ratelimit-remaining-{unit}", str(left.remaining)),
        (f"x-ratelimit-reset-{unit}", duration(left.reset)),
    ]


def duration(seconds: float) -> str:
    """As OpenAI writes it: ``120ms``, ``1.5s``, ``6m0s``, ``3h2m1s``."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))}ms"
    minutes, rest = divmod(seconds, 60)
    if not minutes:
        return f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    hours, minutes = divmod(int(minutes), 60)
    return f"{f'{hours}h' if hours else ''}{minutes}m{int(rest)}s"
