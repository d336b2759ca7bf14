"""Sampling on float32 logits in numpy, in double precision: the reference of the semantics.

See contract.sampling.SamplingParams for the order of application. The filters top-k, top-p and
min-p use the same softmax of the temperature-scaled logits, and a token is kept when it passes all
three.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import SamplingInputs

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_U32 = 0xFFFFFFFF

NO_TOKEN = -1  # a mask or bans left no token
NOT_FINITE = -2  # the logits contain NaN


def philox_uniform(seed: int, choice: int, position: int, draw: int) -> float:
    """A number in [0, 1) with 53 random bits.

    Philox4x32-10 (Salmon et al. 2011) with the seed as key and (choice, position, draw, 0) as
    counter; the bits are the top 27 of word 0 and the top 26 of word 1.
    """
    key0, key1 = seed & _U32, (seed >> 32) & _U32
    c0, c1, c2, c3 = choice & _U32, position & _U32, draw & _U32, 0
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ key0, p1 & _U32, (p0 >> 32) ^ c3 ^ key1, p0 & _U32
        key0, key1 = (key0 + _W0) & _U32, (key1 + _W1) & _U32
    return ((c0 >> 5) * (1 << 26) + (c1 >> 6)) / float(1 << 53)


def log_softmax(logits: Float32) -> Float64:
    """Natural logarithm of the softmax, in double: [vocab]."""
    x = logits.astype(np.float64)
    x -= x.max()
    return np.asarray(x - np.log(np.exp(x).sum()))


def best(values: NDArray[np.floating], count: int) -> NDArray[np.int64]:
    """Indices of the `count` largest values, by (value descending, index ascending)."""
    return np.argsort(-values, kind="stable")[:count]


def _penalize(x: Float32, s: int, inputs: SamplingInputs, pending: int | None) -> None:
    start, end = inputs.history_start[s], inputs.history_start[s + 1]
    history = inputs.history[start:end]
    prompt = int(inputs.history_prompt[s])
    output = history[prompt:]
    if pending is not None:
        output = np.append(output, pending)
    repetition = inputs.repetition[s]
    if repetition != 1.0:
        seen = np.unique(np.concatenate([history[:prompt], output]))
        x[seen] = np.where(x[seen] > 0, x[seen] / repetition, x[seen] * repetition)
    ids, counts = np.unique(output, return_counts=True)
    x[ids] -= inputs.frequency[s] * counts.astype(np.float32) + inputs.presence[s]


def adjust(
    x: Float32, s: int, inputs: SamplingInputs, mask: NDArray[np.bool_] | None, pending: int | None
) -> None:
    """Apply a row's bias, penalties and mask to float32 [vocab] in place; see `sample`."""
    begin, end = inputs.bias_start[s], inputs.bias_start[s + 1]
    np.add.at(x, inputs.bias_id[begin:end], inputs.bias_value[begin:end])
    _penalize(x, s, inputs, pending)
    if mask is not None:
        x[~mask] = -np.inf


def _keep(x: Float32, s: int, inputs: SamplingInputs) -> tuple[NDArray[np.int64], Float64]:
    scaled = x.astype(np.float64) / float(inputs.temperature[s])
    probabilities = np.exp(scaled - scaled.max())
    probabilities /= probabilities.sum()
    order = best(scaled, len(scaled))
    keep = np.isfinite(scaled)
    top_k = int(inputs.top_k[s])
    if top_k > 0:
        keep[order[top_k:]] = False
    if inputs.top_p[s] < 1.0:
        before = np.cumsum(probabilities[order]) - probabilities[order]
        keep[order[before >= float(inputs.top_p[s])]] = False
    if inputs.min_p[s] > 0.0:
        keep &= probabilities >= float(inputs.min_p[s]) * probabilities.max()
    ids = np.flatnonzero(keep)
    return ids, probabilities[ids]


def sample(
    logits: Float32, s: int, inputs: SamplingInputs, mask: NDArray[np.bool_] | None,
    pending: int | None,
) -> int:  # fmt: skip
    """Choose one token from a row's logits.

    Args:
        logits: float32 [vocab]; not changed.
        s: index of the sampling row in `inputs`.
        mask: bool [vocab] of allowed tokens, or None.
        pending: a generated token that is not yet in the row's history, or None.

    Returns:
        The token id, NO_TOKEN or NOT_FINITE.
    """
    if np.isnan(logits).any():
        return NOT_FINITE
    x = logits.copy()
    adjust(x, s, inputs, mask, pending)
    if x.max() == -np.inf:
        return NO_TOKEN
    if inputs.temperature[s] == 0.0:
        return int(x.argmax())
    ids, weights = _keep(x, s, inputs)
    u = philox_uniform(int(inputs.seed[s]), int(inputs.choice[s]), int(inputs.position[s]), draw=0)
    cumulative = np.cumsum(weights)
    at = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    return int(ids[min(at, len(ids) - 1)])
