"""Sampling on float32 logits in numpy: the same tokens as csrc/sample gives for the same logits.

See contract.sampling.SamplingParams for the order of application. Weights of tokens are float32,
computed by the same operations as there; sums are in double precision.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import SamplingInputs
from tidemill.backends.torch.portable_math import Float32, Float64, scaled_exp
from tidemill.backends.torch.race import RandomKey, race

NO_TOKEN = -1  # a mask or bans left no token
NOT_FINITE = -2  # the logits contain NaN


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


def _keep(z: Float32, e: Float32, s: int, inputs: SamplingInputs) -> NDArray[np.int64]:
    """Ids of the tokens that all filters keep, ascending. z: scaled logits; e: their exp."""
    order = best(z, len(z))
    keep = e > 0
    top_k = int(inputs.top_k[s])
    if top_k > 0:
        keep[order[top_k:]] = False
    if inputs.top_p[s] < 1.0:
        mass = float(inputs.top_p[s]) * e.sum(dtype=np.float64)
        reached = np.searchsorted(np.cumsum(e[order], dtype=np.float64), mass)
        keep[order[int(reached) + 1 :]] = False
    keep &= e >= inputs.min_p[s]
    return np.flatnonzero(keep)


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
    z, e = scaled_exp(x, x.max(), inputs.temperature[s])
    ids = _keep(z, e, s, inputs)
    key = RandomKey(int(inputs.seed[s]), int(inputs.choice[s]), int(inputs.position[s]))
    return race(ids, e[ids], key)
