"""What is left of the limits of one request, for the headers of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemill.server.quotas.account import Account
from tidemill.server.quotas.meters import Now

REQUESTS = ("requests_per_minute", "requests_per_day")
TOKENS = ("tokens_per_minute", "tokens_per_day")
"""The limits that headers tell of; the second where there is none of the first."""


class Left(NamedTuple):
    """What is left of the tightest limit of one unit.

    Attributes:
        limit, remaining: requests or tokens.
        reset: seconds until all of it can be used again.
    """

    limit: int
    remaining: int
    reset: float


class Standing(NamedTuple):
    """Limits as headers say them; None where there is none.

    Attributes:
        requests, tokens: of the tightest limits per minute; where there is none, per day.
        wall: seconds of the wall clock that resets count from.
        warnings: soft limits that the request exceeds.
    """

    requests: Left | None
    tokens: Left | None
    wall: float
    warnings: tuple[str, ...]


def standing(accounts: Sequence[Account], now: Now, warnings: tuple[str, ...]) -> Standing:
    """What is left now."""
    requests, tokens = _tightest(accounts, REQUESTS, now), _tightest(accounts, TOKENS, now)
    return Standing(requests, tokens, now.wall, warnings)


def _tightest(accounts: Sequence[Account], names: tuple[str, str], now: Now) -> Left | None:
    for name in names:
        best, least = None, 0
        for account in accounts:
            meter = account.hard.get(name)
            if meter is not None:
                remaining = meter.remaining(now)
                if best is None or remaining < least:
                    best, least = meter, remaining
        if best is not None:
            return Left(best.amount, least, best.reset(now))
    return None
