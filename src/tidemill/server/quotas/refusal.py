"""Why a request exceeds a limit, as the 429 that clients see."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from tidemill.contract.quotas import Measure, Period, Unit
from tidemill.server.errors import Problem, Rejection
from tidemill.server.quotas.ledger import Cost, Exceeded
from tidemill.server.quotas.meters import NEVER, SOON, Meter, Now

RATE = "rate_limit_exceeded"
BUDGET = "insufficient_quota"
TOO_LARGE = "request_exceeds_limit"

_OUTAGE_SECONDS = 5

_NO_RETRY = {"x-should-retry": "false"}
"""A header of OpenAI's and Anthropic's SDKs, which retry a 429 otherwise."""


def refusal(exceeded: Exceeded, now: Now) -> Rejection:
    """The rejection: names the limit, its level, and when the request would fit."""
    meter, account = exceeded.meter, exceeded.account
    limit = meter.measure.shown(meter.amount)
    if exceeded.wait == NEVER:
        message = (
            f"{account.title} has a limit of {limit}, and this request {_needs(exceeded)}: it is "
            f"refused however often it is sent; {_remedy(exceeded)}"
        )
        return Rejection(Problem(429, "rate_limit_error", message, None, TOO_LARGE, _NO_RETRY))
    left = _amount(meter.measure, meter.remaining(now))
    seconds = max(1, math.ceil(exceeded.wait))
    headers = {"Retry-After": str(seconds)}
    budget = meter.measure.period in (Period.DAY, Period.MONTH)
    if budget and exceeded.wait > SOON:
        reset = datetime.fromtimestamp(now.wall + exceeded.wait, UTC)
        message = (
            f"{account.title} has a limit of {limit}, of which {left} is left, and this request "
            f"{_needs(exceeded)}; it is renewed at {reset:%Y-%m-%d %H:%M} UTC"
        )
        return Rejection(Problem(429, BUDGET, message, None, BUDGET, {**headers, **_NO_RETRY}))
    if meter.measure.period is Period.CONCURRENT:
        message = f"{account.title} has a limit of {limit}, which are running"
    else:
        held = " beside what requests in flight hold" if budget else ""
        message = (
            f"{account.title} has a limit of {limit}, of which {left} is left{held}, and this "
            f"request {_needs(exceeded)}"
        )
    message += f"; try again in {seconds} s"
    return Rejection(Problem(429, "rate_limit_error", message, None, RATE, headers))


def unavailable(exceeded: Exceeded) -> Rejection:
    """The rejection where what was drawn ahead is used up and the database does not answer."""
    meter, account = exceeded.meter, exceeded.account
    message = (
        f"the database does not answer, and what this server had drawn of the limit of "
        f"{account.title}, {meter.measure.shown(meter.amount)}, is used up; try again in "
        f"{_OUTAGE_SECONDS} s"
    )
    headers = {"Retry-After": str(_OUTAGE_SECONDS)}
    return Rejection(Problem(503, "server_error", message, None, "database_unavailable", headers))


def gone() -> Rejection:
    """The rejection where limits are not spent any longer without the database."""
    message = (
        "the database of limits has not answered for longer than --database-outage; try again in "
        f"{_OUTAGE_SECONDS} s"
    )
    headers = {"Retry-After": str(_OUTAGE_SECONDS)}
    return Rejection(Problem(503, "server_error", message, None, "database_unavailable", headers))


def warning(title: str, meter: Meter) -> str:
    """The warning of a soft limit, for a header."""
    return f"{title} exceeds its soft limit of {meter.measure.shown(meter.amount)}"


def _needs(exceeded: Exceeded) -> str:
    cost, measure = exceeded.cost, exceeded.meter.measure
    if measure.unit is Unit.REQUESTS:
        return "is one more"
    verb = "may cost up to" if measure.unit is Unit.MONEY else "needs"
    generated = cost.expected if measure.period is Period.MINUTE else cost.most
    if measure.unit is Unit.TOKENS and not generated:
        return f"needs {cost.prompt:,}"
    parts = _parts(cost, generated)
    return f"{verb} {_amount(measure, exceeded.need)} ({parts})"


def _parts(cost: Cost, generated: int) -> str:
    kind = "up to" if generated == cost.most else "an estimated"
    return f"{cost.prompt:,} prompt tokens and {kind} {generated:,} generated"


def _remedy(exceeded: Exceeded) -> str:
    """What the client, or the administrator, can do about a request that never fits."""
    cost, meter = exceeded.cost, exceeded.meter
    if not meter.amount or meter.measure.unit is Unit.REQUESTS:
        return "an administrator can raise the limit"
    if meter.measure.unit is Unit.TOKENS and meter.amount > cost.prompt:
        return f"state a max_tokens of at most {meter.amount - cost.prompt:,} over all choices"
    if meter.measure.unit is Unit.MONEY and cost.most:
        return "state a lower max_tokens"
    return "shorten the prompt"


def _amount(measure: Measure, amount: int) -> str:
    return measure.shown(amount).removesuffix(measure.text).strip()
