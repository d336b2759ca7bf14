"""What is left of the limits of one request, for the headers of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemill.contract.quotas import Period, Unit
from tidemill.server.quotas.account import Account
from tidemill.server.quotas.meters import Now


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
    found: dict[tuple[Unit, bool], Left] = {}
    for account in accounts:
        for meter in account.meters:
            measure = meter.measure
            daily = measure.period is Period.DAY
            if meter.soft or measure.unit is Unit.MONEY or measure.period is Period.CONCURRENT:
                continue
            remaining, key = meter.remaining(now), (measure.unit, daily)
            best = found.get(key)
            if best is None or remaining < best.remaining:
                found[key] = Left(meter.amount, remaining, meter.reset(now))
    of = found.get
    return Standing(
        of((Unit.REQUESTS, False)) or of((Unit.REQUESTS, True)),
        of((Unit.TOKENS, False)) or of((Unit.TOKENS, True)),
        now.wall,
        warnings,
    )
