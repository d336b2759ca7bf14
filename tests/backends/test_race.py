"""The draw: both executors' tokens are equal, its distribution exact, and two models coupled by it
agree nearly as often as any coupling allows."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.backend_driver import sampling_inputs
from helpers.sampling_reference import race_times

from tidemill.backends.draw.portable_math import portable_exp, portable_log
from tidemill.backends.draw.race import RandomKey
from tidemill.backends.draw.race import race_times as torch_times
from tidemill.backends.native import _core
from tidemill.backends.torch import sampling


def test_portable_functions_are_as_good_as_the_librarys() -> None:
    rng = np.random.default_rng(5)
    x = np.concatenate([np.exp(rng.uniform(-40, 40, 20000)), 1 - rng.uniform(1e-12, 2**-30, 2000)])
    assert np.abs(portable_log(x) / np.log(x) - 1).max() < 5e-16
    assert portable_log(np.ones(1))[0] == 0
    for y in rng.uniform(-690, 690, 500).tolist():
        assert abs(portable_exp(y) / np.exp(y) - 1) < 5e-16
    assert portable_exp(-701.0) == 0


def test_both_executors_have_the_same_numbers_to_the_last_bit() -> None:
    tokens = np.arange(0, 200000, 37)
    times = torch_times(RandomKey(2**63 + 5, 3, 77), tokens)
    assert times.tolist() == [_core.race_time(2**63 + 5, 3, 77, t) for t in tokens.tolist()]


@pytest.mark.parametrize("vocab", [1, 63, 64, 65, 1000, 70001])
@pytest.mark.parametrize("spread", [0.0, 1.0, 12.0])
def test_both_executors_draw_the_same_tokens(vocab: int, spread: float) -> None:
    rows = 12 if vocab > 10000 else 100
    rng = np.random.default_rng(vocab)
    logits = (rng.standard_normal((rows, vocab)) * spread).astype(np.float32)
    logits[0, : vocab - 1] = -np.inf  # one token only
    inputs = sampling_inputs(
        rows,
        temperature=rng.choice([0.3, 1.0, 5.0], rows),
        top_p=rng.choice([1.0, 1.0, 0.99], rows),
        seed=rng.integers(0, 2**63, rows, dtype=np.uint64),
        position=rng.integers(0, 10**6, rows),
    )
    native = _core.sample_rows(logits, inputs, [])
    assert native == [sampling.sample(logits[s], s, inputs, None, None) for s in range(rows)]
    assert native[0] == vocab - 1


def test_the_distribution_of_a_large_vocabulary() -> None:
    # Half of the mass is on 20 tokens, the rest on 5000 others: 20,000 draws, chi-squared over 40
    # classes of tokens. Its 99.99th percentile with 39 degrees of freedom is 82.
    draws, vocab = 20000, 5020
    p = np.concatenate([np.full(20, 0.5 / 20), np.full(5000, 0.5 / 5000)])
    logits = np.log(p).astype(np.float32)
    inputs = sampling_inputs(draws, temperature=1.0, position=np.arange(draws), seed=1)
    tokens = np.array(_core.sample_rows(np.tile(logits, (draws, 1)), inputs, []))
    counts = np.bincount(tokens, minlength=vocab)
    classes = np.concatenate([counts[:20], counts[20:].reshape(20, 250).sum(1)])
    expected = draws * np.concatenate([p[:20], p[20:].reshape(20, 250).sum(1)])
    assert ((classes - expected) ** 2 / expected).sum() < 82


def agreement(p: np.ndarray, q: np.ndarray, draws: int) -> float:
    """How often the races of p and q with the same numbers have the same winner."""
    same = 0
    for position in range(draws):
        times = race_times(11, 0, position, len(p))
        same += int((times / p).argmin() == (times / q).argmin())
    return same / draws


@pytest.mark.parametrize("noise", [0.1, 0.5, 1.5])
def test_coupled_draws_agree_nearly_as_often_as_any_could(noise: float) -> None:
    # A target's distribution and a drafter's that errs by `noise` nats a token. No coupling agrees
    # more often than 1 - TV; this one at least (1 - TV) / (1 + TV) (Daliri et al. 2024).
    rng = np.random.default_rng(3)
    logits = rng.standard_normal(400) * 2.5
    p, q = np.exp(logits), np.exp(logits + rng.standard_normal(400) * noise)
    p, q = p / p.sum(), q / q.sum()
    tv = np.abs(p - q).sum() / 2
    found = agreement(p, q, 4000)
    assert (1 - tv) / (1 + tv) - 0.03 < found < 1 - tv + 0.03
    assert found > 0.9 * (1 - tv) - 0.03
