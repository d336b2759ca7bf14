"""Points that are chosen from what was measured: the goodput search, and sweeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tidemill.bench.results import PointReport
from tidemill.bench.stats import wilson

# Measures one concurrency or rate.
Measure = Callable[[float], Awaitable[PointReport]]

_GROWTH = 2.0
_MOST_DOUBLINGS = 20
_LOWEST = 16  # a search gives up at this part of its first rate
_ENOUGH = 1.05  # a concurrency that gives less than this much more throughput ends a sweep
_RATE_SHARES = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)


async def find_goodput(
    measure: Measure, target: float, precision: float, first: float = 1.0
) -> dict[str, Any]:
    """The highest rate at which `target` of the requests meet the objectives: doubled (or halved)
    until it is bracketed, then bisected geometrically.

    Args:
        measure: measures a rate; its point has an `attainment`.
        precision: the search ends when the bounds differ by this share.
        first: the first rate, in requests per second.

    Returns:
        ``rate`` is the highest that passed (None: none did), ``above`` the lowest that failed
        (None: none did), ``goodput`` the requests per second that met the objectives at ``rate``;
        ``probes`` has every measurement with the 95 % interval of its share.
    """
    probes: list[dict[str, Any]] = []
    goodputs: dict[float, float | None] = {}

    async def passes(rate: float) -> bool:
        point = await measure(rate)
        share = point.attainment or 0.0
        interval = wilson(round(share * point.requests), point.requests)
        passed = share >= target
        goodputs[rate] = point.goodput
        probes.append({
            "rate": rate, "attainment": share, "interval": interval, "passed": passed,
            "requests": point.requests,
        })  # fmt: skip
        return passed

    low: float | None = None
    high: float | None = None
    rate = first
    for _ in range(_MOST_DOUBLINGS):
        if await passes(rate):
            low, rate = rate, rate * _GROWTH
        else:
            high, rate = rate, rate / _GROWTH
        if (low is not None and high is not None) or rate < first / _LOWEST:
            break
    while low is not None and high is not None and high / low > 1 + precision:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if await passes(middle) else (low, middle)
    return {
        "target": target,
        "rate": low,
        "above": high,
        "goodput": goodputs.get(low) if low is not None else None,
        "probes": probes,
    }


async def sweep_concurrency(measure: Measure) -> None:
    """1, 2, 4, ... streams until the output throughput no longer grows."""
    best, streams = 0.0, 1
    for _ in range(_MOST_DOUBLINGS):
        point = await measure(streams)
        if not point.completed or point.output_throughput < best * _ENOUGH:
            return
        best, streams = max(best, point.output_throughput), streams * 2


async def sweep_rate(measure_closed: Measure, measure: Measure, streams: int) -> None:
    """Shares of the request rate that the server reaches with so many streams."""
    capacity = (await measure_closed(streams)).request_throughput
    if capacity > 0:
        for share in _RATE_SHARES:
            await measure(share * capacity)
