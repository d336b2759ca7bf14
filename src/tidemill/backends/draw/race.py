"""The draw, an exponential race by counted random numbers: csrc/sample/race.h, bit for bit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.draw.portable_math import Float32, Float64, portable_log

UInt32 = NDArray[np.uint32]
Int64 = NDArray[np.int64]

RACE_HIGH, RACE_LOW, XTC = 0, 1, 2  # purposes of random numbers: the key's draw
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_U32 = 0xFFFFFFFF
_LOW, _HALF = np.uint64(_U32), np.uint64(32)
_LEAST_TIME = 2.0**-33
_SLACK = 1.0 + 1e-5


class RandomKey(NamedTuple):
    """What a row's random numbers depend on."""

    seed: int
    choice: int
    position: int


def philox(key: RandomKey, draw: int, indices: NDArray[np.uint64]) -> UInt32:
    """Words of Philox4x32-10 (Salmon et al. 2011): uint32 [4, N].

    The key is the seed, the counter (choice, position, draw, index).
    """
    k0, k1 = key.seed & _U32, (key.seed >> 32) & _U32
    c0, c1, c2 = (np.full_like(indices, value & _U32) for value in (key.choice, key.position, draw))
    c3 = indices & _LOW
    for _ in range(10):
        a, b = _M0 * c0, _M1 * c2
        c0, c1 = (b >> _HALF) ^ c1 ^ np.uint64(k0), b & _LOW
        c2, c3 = (a >> _HALF) ^ c3 ^ np.uint64(k1), a & _LOW
        k0, k1 = (k0 + _W0) & _U32, (k1 + _W1) & _U32
    return np.stack([c0, c1, c2, c3]).astype(np.uint32)


def uniform(key: RandomKey, draw: int) -> float:
    """A number in [0, 1) with 53 random bits: the top 27 of word 0 and the top 26 of word 1."""
    words = philox(key, draw, np.zeros(1, np.uint64))[:, 0].tolist()
    return float((words[0] >> 5) * (1 << 26) + (words[1] >> 6)) / float(1 << 53)


def _words(key: RandomKey, draw: int, tokens: Int64) -> NDArray[np.uint64]:
    """One word a token: token 64 g + 16 w + l has word w of index 16 g + l."""
    calls, place = np.unique(tokens // 64 * 16 + tokens % 16, return_inverse=True)
    words = philox(key, draw, calls.astype(np.uint64))
    return words[tokens // 16 % 4, place].astype(np.uint64)


def race_times(key: RandomKey, tokens: Int64, high: NDArray[np.uint64] | None = None) -> Float64:
    """-log(u) of tokens: u has 32 high bits and 20 low ones; never below 2^-33."""
    high = _words(key, RACE_HIGH, tokens) if high is None else high
    low = _words(key, RACE_LOW, tokens) >> np.uint64(12)
    u = (((high << np.uint64(20)) | low).astype(np.float64) + 0.5) * 2.0**-52
    return np.asarray(np.where(high == _U32, _LEAST_TIME, -portable_log(u)))


def race(ids: Int64, weights: Float32, key: RandomKey) -> int:
    """The token with the least time / weight, ties to the lowest id; -1 if no weight is positive.

    Args:
        ids: int64 [N], ascending.
        weights: probabilities times any constant.
        key: of the row.
    """
    ids, positive = ids[weights > 0], weights[weights > 0].astype(np.float64)
    if len(ids) == 0:
        return -1
    top = int(positive.argmax())
    bound = float(race_times(key, ids[[top]])[0]) / float(positive[top])
    # -log(u) >= 1 - u, of which the high bits give a lower bound: few need a logarithm.
    high = _words(key, RACE_HIGH, ids)
    near = (_U32 - high).astype(np.float64) * 2.0**-32 <= positive * (bound * _SLACK)
    times = race_times(key, ids[near], high[near]) / positive[near]
    return int(ids[near][int(times.argmin())])
