"""Sampling on float32 logits in numpy: the same tokens as csrc/sample gives for the same logits.

See contract.sampling.SamplingParams for the order of application. Weights of tokens are float32,
computed by the same operations as there; sums are in double precision.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import SamplingInputs
from tidemill.backends.draw.portable_math import Float32, Float64
from tidemill.backends.draw.race import RandomKey, race
from tidemill.backends.torch.filters import (
    exclude_top,
    keep,
    options_of,
    typical,
    weights,
)
from tidemill.backends.torch.history import apply_dry, ban_ngrams, ban_words

NO_TOKEN = -1  # a mask or bans left no token
NOT_FINITE = -2  # the logits contain NaN


def log_softmax(logits: Float32) -> Float64:
    """Natural logarithm of the softmax, in double: [vocab]."""
    x = logits.astype(np.float64)
    x -= x.max()
    return np.asarray(x - np.log(np.exp(x).sum()))


def _penalize(x: Float32, s: int, inputs: SamplingInputs, history: list[int]) -> None:
    prompt = int(inputs.history_prompt[s])
    options = options_of(inputs, s)
    last_n = -1 if options is None else int(options["repeat_last_n"])
    first = 0 if last_n < 0 else max(0, len(history) - last_n)
    output = history[max(prompt, first) :]
    repetition = inputs.repetition[s]
    if repetition != 1.0:
        seen = np.array(sorted({*history[first:]}), np.int64)
        x[seen] = np.where(x[seen] > 0, x[seen] / repetition, x[seen] * repetition)
    ids, counts = np.unique(np.array(output, np.int64), return_counts=True)
    x[ids] -= inputs.presence[s]
    x[ids] -= inputs.frequency[s] * counts.astype(np.float32)


def adjust(
    x: Float32, s: int, inputs: SamplingInputs, mask: NDArray[np.bool_] | None, pending: int | None
) -> None:
    """Apply a row's bias, bans, penalties and masks to float32 [vocab] in place; see `sample`."""
    begin, end = inputs.bias_start[s], inputs.bias_start[s + 1]
    np.add.at(x, inputs.bias_id[begin:end], inputs.bias_value[begin:end])
    history = inputs.history[inputs.history_start[s] : inputs.history_start[s + 1]].tolist()
    if pending is not None:
        history.append(pending)
    _penalize(x, s, inputs, history)
    if mask is not None:
        x[~mask] = -np.inf
    extras, options = inputs.extras, options_of(inputs, s)
    if extras is None or options is None:
        return
    o = int(extras.row[s])
    if options["allowed"] >= 0:
        bits = np.unpackbits(extras.allowed[int(options["allowed"])], bitorder="little")[: len(x)]
        x[: len(bits)][bits == 0] = -np.inf
        x[len(bits) :] = -np.inf
    words = extras.bad_words[extras.bad_words_start[o] : extras.bad_words_start[o + 1]].tolist()
    ban_words(x, history[int(inputs.history_prompt[s]) :], words)
    if options["no_repeat_ngram_size"] > 0:
        ban_ngrams(x, history, int(options["no_repeat_ngram_size"]))
    if options["dry_multiplier"] > 0:
        breakers = extras.breakers[extras.breakers_start[o] : extras.breakers_start[o + 1]]
        apply_dry(x, history, breakers.tolist(), options)


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
    if np.isnan(logits).any() or logits.max() == np.inf:
        return NOT_FINITE
    x = logits.copy()
    adjust(x, s, inputs, mask, pending)
    if x.max() == -np.inf:
        return NO_TOKEN
    if inputs.temperature[s] == 0.0:
        return int(x.argmax())
    key = RandomKey(int(inputs.seed[s]), int(inputs.choice[s]), int(inputs.position[s]))
    ids, e = select(x, s, inputs, key)
    return race(ids, e, key)


def select(
    x: Float32, s: int, inputs: SamplingInputs, key: RandomKey
) -> tuple[NDArray[np.int64], Float32]:
    """The tokens that a row is drawn from, ascending, and their weights.

    Args:
        x: float32 [vocab], adjusted.
        s, inputs, key: of the row.
    """
    options = options_of(inputs, s)
    z, e = weights(x, inputs.temperature[s], options)
    ids = keep(x, z, e, s, inputs, options)
    if options is not None and options["typical_p"] < 1:
        ids = typical(z, e, ids, float(options["typical_p"]))
    if options is not None and options["xtc_probability"] > 0:
        ids = exclude_top(z, e, ids, options, key)
    return ids, e[ids]
