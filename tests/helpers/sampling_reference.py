"""Sampling in double precision from the definitions in docs/sampling.md."""

from __future__ import annotations

import numpy as np

from tidemill.backends.base import SamplingInputs

NO_TOKEN, NOT_FINITE = -1, -2
RACE_HIGH, RACE_LOW, XTC = 0, 1, 2


def philox(seed: int, choice: int, position: int, draw: int, indices: np.ndarray) -> np.ndarray:
    """Philox4x32-10: uint64 [4, N], each a word of 32 bits."""
    u = np.uint64
    c = [np.full(len(indices), u(v)) for v in (choice, position, draw)] + [indices.astype(u)]
    k = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        a, b = u(0xD2511F53) * c[0], u(0xCD9E8D57) * c[2]
        c = [(b >> u(32)) ^ c[1] ^ u(k[0]), b & u(0xFFFFFFFF),
             (a >> u(32)) ^ c[3] ^ u(k[1]), a & u(0xFFFFFFFF)]  # fmt: skip
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c)


def coin(seed: int, choice: int, position: int, draw: int) -> float:
    """A uniform number of 53 bits."""
    a, b = (int(w) for w in philox(seed, choice, position, draw, np.zeros(1))[:2, 0])
    return ((a >> 5) * 2**26 + (b >> 6)) / 2**53


def race_times(seed: int, choice: int, position: int, vocab: int) -> np.ndarray:
    """Exponentially distributed numbers of all tokens."""
    t = np.arange(vocab)
    call, word = t // 64 * 16 + t % 16, t // 16 % 4
    words = [
        philox(seed, choice, position, draw, np.arange(call.max() + 1))[word, call].astype(float)
        for draw in (RACE_HIGH, RACE_LOW)
    ]
    # 1 - u is exact, so log1p has full precision where u is near 1.
    u = (words[0] * 2**20 + np.floor(words[1] / 2**12) + 0.5) / 2**52
    return np.where(words[0] == 2**32 - 1, 2.0**-33, -np.log1p(-(1 - u)))


def draw(p: np.ndarray, i: SamplingInputs, s: int) -> int:
    """The winner among tokens with probabilities p (times any constant)."""
    times = race_times(int(i.seed[s]), int(i.choice[s]), int(i.position[s]), len(p))
    return int(np.where(p > 0, times / np.where(p > 0, p, 1), np.inf).argmin())


def adjusted(x: np.ndarray, i: SamplingInputs, s: int, mask: np.ndarray | None) -> np.ndarray:
    """Logits after masks, biases and penalties."""
    x = x.astype(np.float32).copy()
    if mask is not None:
        x[~mask] = -np.inf
    for b in range(i.bias_start[s], i.bias_start[s + 1]):
        x[i.bias_id[b]] += i.bias_value[b]
    history = i.history[i.history_start[s] : i.history_start[s + 1]]
    output = history[i.history_prompt[s] :]
    seen = np.unique(history)
    r = i.repetition[s]
    x[seen] = np.where(x[seen] > 0, x[seen] / r, x[seen] * r)
    ids, counts = np.unique(output, return_counts=True)
    x[ids] -= i.presence[s]
    x[ids] -= i.frequency[s] * counts.astype(np.float32)
    return x


def kept(x: np.ndarray, i: SamplingInputs, s: int) -> np.ndarray:
    """Probabilities of adjusted logits, 0 for the tokens that a filter drops."""
    z = ((x - x.max()) / i.temperature[s]).astype(np.float64)
    p = np.exp(z)
    p /= p.sum()
    order = np.lexsort((np.arange(len(x)), -z))
    keep = p >= float(i.min_p[s]) * p.max()
    if i.top_k[s]:
        keep[order[i.top_k[s] :]] = False
    if i.top_p[s] < 1:
        reached = int(np.searchsorted(np.cumsum(p[order]), float(i.top_p[s])))
        keep[order[reached + 1 :]] = False
    return np.where(keep, p, 0.0)


def reference(x: np.ndarray, i: SamplingInputs, s: int, mask: np.ndarray | None) -> int:
    """The token of one row."""
    if not np.isfinite(x[x != -np.inf]).all() or not (x != -np.inf).any():
        return NOT_FINITE
    x = adjusted(x, i, s, mask)
    if (x == -np.inf).all():
        return NO_TOKEN
    if i.temperature[s] == 0:
        return int(x.argmax())
    return draw(kept(x, i, s), i, s)
