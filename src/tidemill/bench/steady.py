"""Where a measurement's warm-up ends, and whether it was steady after that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev, stdev
from typing import Any

from tidemill.bench.results import RequestTrace
from tidemill.bench.stats import t_quantile

_BATCH = 5  # requests in a batch mean of MSER-5
_FEWEST = 20  # requests below which nothing is said
_DRIFT = 0.25  # growth of the latency over the steady part that is called drift


def warm_up(values: Sequence[float]) -> int | None:
    """How many values at the start to discard, by MSER-5 (White, 1997): the cut that minimizes
    the standard error of what remains. None: a cut in the second half does, or there are too
    few values: then nothing is known of a warm-up."""
    means = [fmean(values[i : i + _BATCH]) for i in range(0, len(values) - _BATCH + 1, _BATCH)]
    if len(means) < 4:
        return None
    errors = []
    for cut in range(len(means) - 1):
        left = means[cut:]
        errors.append((pstdev(left) ** 2 / len(left), cut))
    # The last few batches vary little by chance: only cuts in the first half count.
    best = min(errors[: max(1, len(means) // 2 + 1)])[1]
    return None if best >= len(means) // 2 and best > 0 else best * _BATCH


def drift(times: Sequence[float], values: Sequence[float]) -> tuple[float, bool]:
    """The growth of values over the time they span, as a share of their mean, by a regression
    line; and whether it differs from 0 at the level 0.99."""
    count = len(values)
    mean_t, mean_v = fmean(times), fmean(values)
    spread = sum((t - mean_t) ** 2 for t in times)
    if count < 8 or spread == 0 or mean_v <= 0 or stdev(values) == 0:
        return 0.0, False
    slope = sum((t - mean_t) * (v - mean_v) for t, v in zip(times, values, strict=True)) / spread
    residual = sum(
        (v - mean_v - slope * (t - mean_t)) ** 2 for t, v in zip(times, values, strict=True)
    )
    error = math.sqrt(residual / (count - 2) / spread)
    growth = slope * (times[-1] - times[0]) / mean_v
    return growth, error == 0 or abs(slope / error) > t_quantile(0.995, count - 2)


def steady_state(traces: Sequence[RequestTrace], closed: bool) -> dict[str, Any]:
    """The steady part of a point.

    Args:
        traces: of one repetition.
        closed: whether streams end one by one: then the part ends with the last send.

    Returns:
        ``verdict`` is ``steady``, ``drifting`` (latency grows or falls: the rate is above what the
        server sustains, or it is still warming up) or ``too short``; ``from_seconds`` and
        ``to_seconds`` bound the part, ``discarded`` is the number of requests due before it,
        ``drift`` the growth of the latency in it as a share of its mean.
    """
    good = sorted((t for t in traces if t.error is None), key=lambda t: t.start)
    if len(good) < _FEWEST:
        return {"verdict": "too short"}
    latencies = [t.end - t.start for t in good]
    last = max(t.start for t in good) if closed else max(t.end for t in good)
    cut = warm_up(latencies)
    kept = good[cut or 0 :]
    growth, significant = drift([t.start for t in kept], latencies[cut or 0 :])
    drifting = significant and abs(growth) > _DRIFT
    return {
        "verdict": "drifting" if drifting else "steady",
        "from_seconds": kept[0].start if cut else 0.0,
        "to_seconds": last,
        "discarded": cut or 0,
        "drift": growth,
    }


def steady_part(traces: Sequence[RequestTrace], steady: Mapping[str, Any]) -> list[RequestTrace]:
    """The requests that were sent and answered within the steady part; all, where there is none."""
    if steady["verdict"] != "steady":
        return list(traces)
    first, last = steady["from_seconds"], steady["to_seconds"]
    return [t for t in traces if t.start >= first and t.end <= last]
