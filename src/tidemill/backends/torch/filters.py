"""Which tokens are drawn from, and their weights: csrc/sample's filters in numpy.

Sums over the vocabulary are in the same order as there: eight lanes of doubles.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import SAMPLER_OPTIONS, SamplingInputs
from tidemill.backends.draw.portable_math import (
    Float32,
    Float64,
    portable_exp,
    portable_log,
    scaled_exp,
)
from tidemill.backends.draw.race import XTC, Int64, RandomKey, uniform

Options = NDArray[np.void]


def options_of(inputs: SamplingInputs, s: int) -> Options | None:
    """A row's further options: a record of SAMPLER_OPTIONS."""
    extras = inputs.extras
    if extras is None or extras.row[s] < 0:
        return None
    record: Options = extras.options.view(SAMPLER_OPTIONS)[int(extras.row[s]), 0]
    return record


def best(values: NDArray[np.floating], count: int) -> Int64:
    """Indices of the `count` largest values, by (value descending, index ascending)."""
    return np.argsort(-values, kind="stable")[:count]


def lane_sum(values: Float64) -> float:
    """Sum in eight lanes over ascending indices, then over the lanes."""
    whole = len(values) // 8 * 8
    lanes = np.zeros(8)
    for row in (values[:whole].reshape(-1, 8).cumsum(axis=0)[-1:], values[None, whole:]):
        lanes[: row.shape[1]] += row[0] if len(row) else 0.0
    total = 0.0
    for lane in lanes.tolist():
        total += lane
    return total


def _double(values: Float32) -> Float64:
    return values.astype(np.float64)


def _log(x: float) -> float:
    return float(portable_log(np.array([x]))[0])


def _dot(z: Float32, e: Float32) -> float:
    return lane_sum(_double(e) * _double(np.maximum(z, np.float32(-88))))


def _entropy(z: Float32, e: Float32, total: float) -> float:
    return _log(total) - _dot(z, e) / total


def _temperature(x: Float32, temperature: np.float32, options: Options) -> np.float32:
    """The dynamic temperature."""
    count = int((x > -np.inf).sum())
    if count < 2:
        return temperature
    z, e = scaled_exp(x, x.max(), np.float32(1))
    share = min(1.0, _entropy(z, e, lane_sum(_double(e))) / _log(float(count)))
    spread, exponent = float(options["dynatemp_range"]), float(options["dynatemp_exponent"])
    low, high = max(0.0, float(temperature) - spread), float(temperature) + spread
    if share <= 0.0:
        power = 1.0 if exponent == 0.0 else 0.0
    else:
        power = portable_exp(exponent * _log(share))
    return np.float32(max(low + (high - low) * power, 1e-6))


def _smoothed(z: Float32, options: Options) -> Float32:
    f = np.float32
    factor, curve = options["smoothing_factor"], options["smoothing_curve"]
    k, s = (f(3) - curve) / f(2) * factor, (curve - f(1)) / f(2) * factor
    t = np.maximum(z, f(-1e6))
    return np.where(z == -np.inf, z, t * t * (s * t - k))


def weights(
    x: Float32, temperature: np.float32, options: Options | None
) -> tuple[Float32, Float32]:
    """Scaled logits and their exponentials, float32 [vocab]."""
    if options is not None and options["dynatemp_range"] > 0:
        temperature = _temperature(x, temperature, options)
    z, e = scaled_exp(x, x.max(), temperature)
    if options is not None and options["smoothing_factor"] > 0:
        z, e = scaled_exp(_smoothed(z, options), np.float32(0), np.float32(1))
    return z, e


def _sigmas(x: Float32, sigmas: float) -> float:
    """So many standard deviations of the logits."""
    count = int((x > -np.inf).sum())
    allowed = x > -np.inf
    values = _double(np.where(allowed, x, np.float32(0)))
    mean = lane_sum(values) / count
    deviation = np.where(allowed, values - mean, 0.0)
    return sigmas * float(np.sqrt(lane_sum(deviation * deviation) / count))


def _least(z: Float32, e: Float32, options: Options, total: float) -> float:
    """The least weight that top_a, epsilon and eta cutoffs keep; the likeliest token has 1."""
    least = max(float(options["top_a"]) / total, float(options["epsilon_cutoff"]) * total)
    eta = float(options["eta_cutoff"])
    if eta > 0:
        flat = float(np.sqrt(eta)) * portable_exp(-_entropy(z, e, total))
        least = max(least, min(eta, flat) * total)
    return min(least, 1.0)


def _reach(key: NDArray[np.floating], e: Float32, mass: float) -> Int64:
    """Places of the first tokens by (key, id) that reach the mass."""
    order = np.argsort(key, kind="stable")
    reached = int(np.searchsorted(np.cumsum(_double(e[order])), mass))
    return order[: reached + 1]


def keep(
    x: Float32, z: Float32, e: Float32, s: int, inputs: SamplingInputs, options: Options | None
) -> Int64:
    """Ids that pass the filters of the whole distribution, ascending."""
    kept = e > 0
    top_k = int(inputs.top_k[s])
    if 0 < top_k < len(z):
        kept[best(z, len(z))[top_k:]] = False
    total = lane_sum(_double(e))
    if inputs.top_p[s] < 1.0:
        among = np.zeros(len(z), bool)
        among[_reach(-z, e, float(inputs.top_p[s]) * total)] = True
        kept &= among
    least = float(inputs.min_p[s])
    if options is not None:
        least = max(least, _least(z, e, options, total))
        if options["top_n_sigma"] > 0:
            with np.errstate(over="ignore"):
                kept &= _double(x - x.max()) >= -_sigmas(x, float(options["top_n_sigma"]))
    kept &= _double(e) >= least
    return np.flatnonzero(kept)


def _kept(values: Float32, ids: Int64) -> Float32:
    """The values of some tokens, 0 for the others."""
    found = np.zeros_like(values)
    found[ids] = values[ids]
    return found


def typical(z: Float32, e: Float32, ids: Int64, share: float) -> Int64:
    """Locally typical sampling: the tokens whose information is nearest to the entropy."""
    e = _kept(e, ids)
    total = lane_sum(_double(e))
    distance = np.abs(z[ids] - np.float32(_dot(z, e) / total))
    return np.sort(ids[_reach(distance, e[ids], share * total)])


def exclude_top(z: Float32, e: Float32, ids: Int64, options: Options, key: RandomKey) -> Int64:
    """XTC: the tokens without the most likely ones, by a coin."""
    if uniform(key, XTC) >= float(options["xtc_probability"]):
        return ids
    least = float(options["xtc_threshold"]) * lane_sum(_double(_kept(e, ids)))
    above = ids[_double(e[ids]) >= least]
    if len(above) < 2:
        return ids
    last = above[best(z[above], len(above))[-1]]
    remaining: Int64 = ids[(_double(e[ids]) < least) | (ids == last)]
    return remaining
