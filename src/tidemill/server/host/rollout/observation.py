"""What one answered request says of its version, and the metrics made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tidemill.base.errors import ErrorKind
from tidemill.server.host.rollout.evidence import log_grid, share_grid

# Failures that a version answers for. The others are the client's (a wrong request, an unknown
# name, a missing key), the client's decision (it left), or a limit of the server (429).
# TIMEOUT counts: the deadline is the client's, but both versions meet the same ones.
VERSION_ERRORS = frozenset(
    {
        ErrorKind.MODEL_FILE,
        ErrorKind.RESOURCE,
        ErrorKind.UNAVAILABLE,
        ErrorKind.NOT_FINITE,
        ErrorKind.INTERNAL,
        ErrorKind.TIMEOUT,
    }
)


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One request when it has ended. What was not measured is None.

    Attributes:
        version: that answered.
        step: `Choice.step`.
        unit: `Choice.unit`.
        error: kind of the failure, or None for an answer that was completed.
        ttft_s: seconds from the arrival to the first token.
        itl_mean_s: mean seconds between tokens of the request.
        itl_p95_s: 95th percentile of the seconds between tokens of the request.
        output_tokens: tokens of the answer.
        computed_prompt_tokens: prompt tokens that the prefix cache did not have. TTFT is compared
            among requests with similar numbers of them, so that a version whose prefixes are not
            cached yet is not taken for a slow one.
    """

    version: str
    step: int = -1
    unit: int = 0
    error: ErrorKind | None = None
    ttft_s: float | None = None
    itl_mean_s: float | None = None
    itl_p95_s: float | None = None
    output_tokens: int | None = None
    computed_prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """A number per request.

    Attributes:
        value: of an observation; None when it says nothing of the metric.
        relative: compared as a ratio, on log scale; otherwise as a difference.
        grid: values of the effect at which its interval may end.
        stratum: observations are compared within a stratum only; None: there is one.
        unit: what the values are, for people.
    """

    value: Callable[[Observation], float | None]
    relative: bool
    unit: str
    grid: tuple[float, ...]
    stratum: Callable[[Observation], int] | None = None


def _failed(o: Observation) -> float | None:
    if o.error is None:
        return 0.0
    return 1.0 if o.error in VERSION_ERRORS else None


def _length(o: Observation) -> float | None:
    # The length of an answer that broke off says nothing of the answers that a version gives.
    return None if o.error is not None or o.output_tokens is None else max(1.0, o.output_tokens)


def prompt_stratum(o: Observation) -> int:
    """Prompts of up to 15, 63, 255 ... computed tokens; 8 strata."""
    tokens = min(o.computed_prompt_tokens or 0, 4**9)
    return max(0, (tokens.bit_length() - 3) // 2)


_RATIOS = log_grid((0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 2, 4, 9))
_SHARES = share_grid(
    (0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75)
)

METRICS: dict[str, Metric] = {
    "errors": Metric(_failed, False, "of requests", _SHARES),
    "ttft": Metric(lambda o: o.ttft_s, True, "s", _RATIOS, prompt_stratum),
    "itl": Metric(lambda o: o.itl_mean_s, True, "s", _RATIOS),
    "itl_p95": Metric(lambda o: o.itl_p95_s, True, "s", _RATIOS),
    "length": Metric(_length, True, "tokens", _RATIOS),
}
