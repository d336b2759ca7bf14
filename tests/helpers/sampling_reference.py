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


def dry_penalties(
    history: list[int], multiplier: float, base: float, allowed: int, breakers: set[int]
) -> dict[int, float]:
    """DRY by its definition: for each token, over all earlier places where it stood, the longest
    common end of what stood before it and of the history, without breakers."""
    n, longest = len(history), dict[int, int]()
    for i in range(1, n):
        length = 0
        while length < i and history[i - 1 - length] == history[n - 1 - length]:
            if history[n - 1 - length] in breakers:
                break
            length += 1
        longest[history[i]] = max(length, longest.get(history[i], 0))
    return {
        token: multiplier * base ** (length - allowed)
        for token, length in longest.items()
        if length >= allowed and token not in breakers
    }


def truncated(p: np.ndarray, x: np.ndarray, options: dict, u: float) -> np.ndarray:
    """The kept tokens of probabilities p: bool [vocab]. Filters of one distribution, then typical
    sampling and XTC on what they keep. x: logits; u: XTC's coin."""
    entropy = -sum(q * np.log(q) for q in p[p > 0])
    keep = p > 0
    if a := options.get("top_a"):
        keep &= p >= a * p.max() ** 2
    if epsilon := options.get("epsilon_cutoff"):
        keep &= (p >= epsilon) | (p == p.max())
    if eta := options.get("eta_cutoff"):
        keep &= (p >= min(eta, np.sqrt(eta) * np.exp(-entropy))) | (p == p.max())
    if n := options.get("top_n_sigma"):
        keep &= x >= x.max() - n * x[x > -np.inf].astype(np.float64).std()
    if (share := options.get("typical_p", 1.0)) < 1:
        q = np.where(keep, p, 0) / p[keep].sum()
        information = -np.log(np.where(q > 0, q, 1))
        distance = np.where(q > 0, np.abs(information - (q * information).sum()), np.inf)
        order = np.argsort(distance, kind="stable")
        reached = int(np.searchsorted(np.cumsum(q[order]), share))
        keep[order[reached + 1 :]] = False
    if (probability := options.get("xtc_probability", 0.0)) and u < probability:
        q = np.where(keep, p, 0) / p[keep].sum()
        above = [i for i in np.argsort(-q, kind="stable") if q[i] >= options["xtc_threshold"]]
        keep[above[:-1]] = False
    return keep


def tempered(x: np.ndarray, temperature: float, options: dict) -> np.ndarray:
    """Probabilities after dynamic temperature and quadratic smoothing."""
    d = x.astype(np.float64) - x.max()
    if spread := options.get("dynatemp_range"):
        p = np.exp(d) / np.exp(d).sum()
        entropy = -sum(q * np.log(q) for q in p[p > 0])
        share = entropy / np.log((x > -np.inf).sum())
        low, high = max(0.0, temperature - spread), temperature + spread
        temperature = low + (high - low) * share ** options.get("dynatemp_exponent", 1.0)
    d = d / temperature
    if factor := options.get("smoothing_factor"):
        curve = options.get("smoothing_curve", 1.0)
        k, s = (3 - curve) / 2, (curve - 1) / 2
        finite = np.where(d > -np.inf, d, -1e6)
        d = np.where(d > -np.inf, -k * factor * finite**2 + s * factor * finite**3, d)
    return np.exp(d) / np.exp(d).sum()
