"""The native sampler, token for token against a plain numpy one in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.backend_driver import sampling_inputs
from helpers.sampling_reference import NO_TOKEN, NOT_FINITE, coin, race_times, reference

from tidemill.backends.base import SamplingInputs
from tidemill.backends.native import _core


def inputs_of(rng: np.random.Generator, rows: int, vocab: int) -> SamplingInputs:
    """Every parameter, at its neutral value about half of the time."""

    def some(values: np.ndarray, neutral: float, dtype: type) -> np.ndarray:
        return np.where(rng.random(rows) < 0.5, values, neutral).astype(dtype)

    lengths = np.where(rng.random(rows) < 0.5, rng.integers(0, 40, rows), 0)
    biases = np.where(rng.random(rows) < 0.5, rng.integers(0, 9, rows), 0)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = rng.normal(0, 3, biases.sum()).astype(np.float32)
    values[rng.random(len(values)) < 0.2] = -np.inf
    return sampling_inputs(
        rows,
        temperature=np.where(rng.random(rows) < 0.2, 0, rng.uniform(0.1, 3, rows)),
        top_p=some(rng.uniform(0.05, 1, rows), 1, np.float32),
        min_p=some(rng.uniform(0, 0.3, rows), 0, np.float32),
        top_k=some(rng.integers(1, 2 * vocab, rows), 0, np.int32),
        presence=some(rng.uniform(-2, 2, rows), 0, np.float32),
        frequency=some(rng.uniform(-2, 2, rows), 0, np.float32),
        repetition=some(rng.uniform(0.5, 2, rows), 1, np.float32),
        seed=rng.integers(0, 2**63, rows, dtype=np.uint64),
        choice=rng.integers(0, 128, rows),
        position=rng.integers(0, 100000, rows),
        history_start=starts,
        history=rng.integers(0, vocab, starts[-1]).astype(np.int32),
        history_prompt=(lengths // 2).astype(np.int32),
        bias_start=np.concatenate([[0], np.cumsum(biases)]).astype(np.int32),
        bias_id=rng.integers(0, vocab, len(values)).astype(np.int32),
        bias_value=values,
    )


def masks_of(rng: np.random.Generator, rows: int, vocab: int) -> list[np.ndarray | None]:
    return [rng.random(vocab) < 0.3 if rng.random() < 0.3 else None for _ in range(rows)]


def sample(logits: np.ndarray, inputs: SamplingInputs, masks: list | None = None) -> list[int]:
    bits = [None if m is None else np.packbits(m, bitorder="little") for m in masks or []]
    return _core.sample_rows(np.ascontiguousarray(logits, np.float32), inputs, bits)


@pytest.mark.parametrize(
    ("vocab", "spread"), [(1, 1), (2, 1), (67, 0), (131, 0.01), (131, 2), (1000, 8), (33001, 3)]
)
def test_tokens_equal_the_reference(vocab: int, spread: float) -> None:
    rng = np.random.default_rng(vocab)
    rows = 60 if vocab > 10000 else 250
    logits = (rng.standard_normal((rows, vocab)) * spread).astype(np.float32)
    logits[rng.random(logits.shape) < 0.05] = 0.0  # ties
    inputs, masks = inputs_of(rng, rows, vocab), masks_of(rng, rows, vocab)
    expected = [reference(logits[s], inputs, s, masks[s]) for s in range(rows)]
    assert sample(logits, inputs, masks) == expected
    assert vocab < 3 or len(set(expected)) > 10


def test_known_random_numbers() -> None:
    # The vectors published with Random123 for philox4x32-10.
    ones = 0xFFFFFFFF
    known = {
        ((0, 0, 0, 0), (0, 0)): (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        ((ones,) * 4, (ones,) * 2): (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)): (
            0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1,
        ),
    }  # fmt: skip
    for (counter, key), words in known.items():
        assert tuple(_core.philox4x32(list(counter), list(key))) == words
    numbers = [_core.uniform(2**62 + 7, 1, position, 0) for position in range(4000)]
    assert numbers[:50] == [coin(2**62 + 7, 1, position, 0) for position in range(50)]
    assert 0 <= min(numbers) < 0.01 and 0.99 < max(numbers) < 1
    assert abs(np.mean(numbers) - 0.5) < 0.02
    times = [_core.race_time(2**62 + 7, 1, 9, token) for token in range(1000)]
    assert np.allclose(times, race_times(2**62 + 7, 1, 9, 1000), rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    "changes", [{}, {"temperature": 2.5}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}]
)
def test_frequencies_follow_the_distribution(changes: dict) -> None:
    rows, logits = 20000, np.array([2.0, 1.5, 1.5, 0.3, -1.0, 0.9, -3.0, -np.inf], np.float32)
    inputs = sampling_inputs(
        rows, **{"temperature": 1.0, "position": np.arange(rows), "seed": 99, **changes}
    )
    counts = np.bincount(sample(np.tile(logits, (rows, 1)), inputs), minlength=8) / rows
    p = np.exp(logits.astype(np.float64) / inputs.temperature[0])
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    keep = p >= inputs.min_p[0] * p.max()
    if inputs.top_k[0]:
        keep[order[inputs.top_k[0] :]] = False
    if inputs.top_p[0] < 1:
        keep[order[int(np.searchsorted(np.cumsum(p[order]), inputs.top_p[0])) + 1 :]] = False
    p = np.where(keep, p, 0)
    p /= p.sum()
    # Chi-squared with at most 7 degrees of freedom: 30 is beyond the 99.99th percentile.
    chi = sum(rows * (c - q) ** 2 / q for c, q in zip(counts, p, strict=True) if q > 0)
    assert chi < 30
    assert (counts[p == 0] == 0).all()


def test_greedy_takes_the_lowest_of_ties() -> None:
    logits = np.array([[1, 5, 5, 5], [-0.0, 0.0, -1, -1]], np.float32)
    assert sample(logits, sampling_inputs(2)) == [1, 0]


def test_rows_without_a_token_say_so() -> None:
    logits = np.zeros((5, 70), np.float32)
    logits[1, 3] = np.nan
    logits[2, 69] = np.inf
    logits[3, :] = -np.inf
    logits[4, 5:] = -np.inf
    mask = np.zeros(70, bool)
    for temperature in (0.0, 1.0):
        inputs = sampling_inputs(5, temperature=temperature)
        got = sample(logits, inputs, [mask, None, None, None, None])
        assert got[:4] == [NO_TOKEN, NOT_FINITE, NOT_FINITE, NOT_FINITE]
        assert 0 <= got[4] < 5


def test_bans_leave_the_rest_and_can_leave_nothing() -> None:
    banned = sampling_inputs(
        2,
        temperature=1.0,
        bias_start=np.array([0, 3, 7], np.int32),
        bias_id=np.array([0, 1, 3, 0, 1, 2, 3], np.int32),
        bias_value=np.full(7, -np.inf, np.float32),
    )
    assert sample(np.array([[9, 9, 0, 9], [1, 2, 3, 4]], np.float32), banned) == [2, NO_TOKEN]


@pytest.mark.parametrize("temperature", [1e-38, 1e-6, 100.0])
def test_extreme_temperatures(temperature: float) -> None:
    logits = np.tile(np.array([3e38, -3e38, 1.0, 2.0], np.float32), (50, 1))
    inputs = sampling_inputs(50, temperature=temperature, top_p=0.999, position=np.arange(50))
    assert set(sample(logits, inputs)) == {0}
    flat = sampling_inputs(200, temperature=temperature, position=np.arange(200))
    tokens = set(sample(np.tile(np.float32([0, 1]), (200, 1)), flat))
    assert tokens == ({1} if temperature < 1 else {0, 1})


def test_top_p_takes_the_token_that_reaches_the_mass() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    for top_p, kept in ((0.4, {0}), (0.55, {0, 1}), (0.81, {0, 1, 2}), (0.999, {0, 1, 2, 3})):
        inputs = sampling_inputs(400, temperature=1.0, top_p=top_p, position=np.arange(400))
        assert set(sample(np.tile(logits, (400, 1)), inputs)) == kept
    assert math.isclose(float(np.exp(logits).sum()), 1, rel_tol=1e-6)
