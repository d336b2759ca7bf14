"""The reference sampler: known random numbers, distributions, filters, penalties."""

from __future__ import annotations

import numpy as np
import pytest

from tidemill.backends.base import SamplingInputs
from tidemill.backends.draw import race
from tidemill.backends.draw.race import RandomKey
from tidemill.backends.torch import sampling


def inputs(rows: int = 1, **changes: object) -> SamplingInputs:
    def f(v: float) -> np.ndarray:
        return np.full(rows, v, np.float32)

    def i(v: int) -> np.ndarray:
        return np.full(rows, v, np.int32)

    fields: dict = {
        "temperature": f(1), "top_p": f(1), "min_p": f(0), "presence": f(0), "frequency": f(0),
        "repetition": f(1), "top_k": i(0), "seed": np.arange(rows, dtype=np.uint64), "choice": i(0),
        "position": i(0), "num_logprobs": i(-1), "bias_start": np.zeros(rows + 1, np.int32),
        "bias_id": i(0)[:0], "bias_value": f(0)[:0], "history_start": np.zeros(rows + 1, np.int32),
        "history": i(0)[:0], "history_prompt": i(0),
    }  # fmt: skip
    return SamplingInputs(**(fields | changes))


def draws(logits: list[float], count: int = 4000, **changes: object) -> np.ndarray:
    x = np.array(logits, np.float32)
    given = inputs(count, **{k: np.full(count, v) for k, v in changes.items()})
    tokens = [sampling.sample(x, s, given, None, None) for s in range(count)]
    return np.bincount(tokens, minlength=len(logits)) / count


def test_philox_known_answer() -> None:
    # Random123's published vector for philox4x32-10: counter and key of zeros.
    key = RandomKey(0, 0, 0)
    words = race.philox(key, 0, np.zeros(1, np.uint64))[:, 0].tolist()
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert race.uniform(key, 0) == ((words[0] >> 5) * (1 << 26) + (words[1] >> 6)) / 2**53


def test_distribution_follows_the_softmax() -> None:
    logits = [0.0, 1.0, 2.0, -1.0]
    expected = np.exp(logits) / np.exp(logits).sum()
    assert np.abs(draws(logits) - expected).max() < 0.03


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [({"top_k": 2}, {1, 2}), ({"top_p": 0.6}, {2}), ({"min_p": 0.3}, {1, 2}), ({}, {0, 1, 2, 3})],
)
def test_filters(changes: dict, allowed: set[int]) -> None:
    assert set(np.flatnonzero(draws([0.0, 1.0, 2.0, -1.0], **changes))) == allowed


def test_greedy_takes_the_lowest_of_ties() -> None:
    given = inputs(temperature=np.zeros(1, np.float32))
    x = np.array([1, 3, 3, 0], np.float32)
    assert sampling.sample(x, 0, given, None, None) == 1
    mask = np.array([True, False, True, True])
    assert sampling.sample(x, 0, given, mask, None) == 2
    assert sampling.sample(x, 0, given, np.zeros(4, bool), None) == sampling.NO_TOKEN
    assert sampling.sample(x * np.nan, 0, given, None, None) == sampling.NOT_FINITE


def test_penalties_and_bias() -> None:
    greedy = {"temperature": np.zeros(1, np.float32)}
    history = {
        "history": np.array([0, 1, 1], np.int32), "history_start": np.array([0, 3], np.int32),
        "history_prompt": np.array([1], np.int32),
    }  # fmt: skip
    x = np.array([2.0, 2.5, 1.4, -9.0], np.float32)
    frequency = inputs(**greedy, **history, frequency=np.array([0.3], np.float32))
    assert sampling.sample(x, 0, frequency, None, None) == 0  # 2.5 - 2 * 0.3 < 2
    repetition = inputs(**greedy, **history, repetition=np.array([2.0], np.float32))
    assert sampling.sample(x, 0, repetition, None, None) == 2  # 0 (prompt) and 1 are halved
    assert sampling.sample(x, 0, repetition, None, pending=2) == 1  # 1.25 against 1.0 and 0.7
    banned = inputs(
        **greedy, bias_start=np.array([0, 1], np.int32), bias_id=np.array([1], np.int32),
        bias_value=np.array([-np.inf], np.float32),
    )  # fmt: skip
    assert sampling.sample(x, 0, banned, None, None) == 0
