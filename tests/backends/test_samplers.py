"""Every further sampler on both executors, against double-precision definitions."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.backend_driver import sampling_inputs
from helpers.sampling_reference import XTC, coin, draw, dry_penalties, tempered, truncated

from tidemill.backends.base import SamplingInputs
from tidemill.backends.draw.race import RandomKey
from tidemill.backends.native import _core
from tidemill.backends.torch import sampling
from tidemill.contract.sampling import SamplingParams
from tidemill.worker.sampler_options import gather_extras, row_options

OPTIONS: list[dict] = [
    {"typical_p": 0.5}, {"typical_p": 0.95}, {"typical_p": 0.0}, {"top_a": 0.2}, {"top_a": 1.0},
    {"epsilon_cutoff": 0.01}, {"epsilon_cutoff": 0.9}, {"eta_cutoff": 0.02}, {"eta_cutoff": 0.3},
    {"top_n_sigma": 1.0}, {"top_n_sigma": 0.1}, {"xtc_probability": 1.0, "xtc_threshold": 0.05},
    {"xtc_probability": 0.5, "xtc_threshold": 0.1}, {"dynatemp_range": 0.7},
    {"dynatemp_range": 3.0, "dynatemp_exponent": 0.5}, {"smoothing_factor": 0.3},
    {"smoothing_factor": 0.2, "smoothing_curve": 2.5},
    {"typical_p": 0.8, "top_a": 0.1, "top_n_sigma": 2.1, "xtc_probability": 0.7},
    {"dynatemp_range": 0.5, "smoothing_factor": 0.1, "eta_cutoff": 0.01, "typical_p": 0.9},
]  # fmt: skip


def inputs_of(rows: int, options: dict, **changes: object) -> SamplingInputs:
    inputs = sampling_inputs(rows, **{"temperature": 1.0, "position": np.arange(rows)} | changes)
    made = row_options(SamplingParams(**options))
    assert made is not None
    inputs.extras = gather_extras({0: made}, np.zeros(rows, np.int32))
    return inputs


def key_of(inputs: SamplingInputs, s: int) -> RandomKey:
    return RandomKey(int(inputs.seed[s]), int(inputs.choice[s]), int(inputs.position[s]))


def torch_kept(logits: np.ndarray, inputs: SamplingInputs) -> list[list[int]]:
    found = []
    for s, row in enumerate(logits):
        x = row.copy()
        sampling.adjust(x, s, inputs, None, None)
        found.append(sampling.select(x, s, inputs, key_of(inputs, s))[0].tolist())
    return found


def logits_of(rng: np.random.Generator, rows: int, vocab: int) -> np.ndarray:
    spread = rng.choice([0.1, 1.0, 3.0, 8.0], (rows, 1))
    logits = (rng.standard_normal((rows, vocab)) * spread).astype(np.float32)
    logits[:, ::7] = -np.inf
    return logits


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_kept_sets_and_tokens_equal_the_definitions(options: dict) -> None:
    for vocab, rows in ((3, 20), (200, 60), (3000, 8)):
        rng = np.random.default_rng(vocab)
        logits = logits_of(rng, rows, vocab)
        inputs = inputs_of(rows, options, temperature=rng.choice([0.5, 1.0, 2.0], rows), seed=7)
        made = SamplingParams(**options)
        values = {f: getattr(made, f) for f in made.__struct_fields__}
        native = _core.drawn_from(logits, inputs)
        assert native == torch_kept(logits, inputs)
        for s in range(rows):
            p = tempered(logits[s], float(inputs.temperature[s]), values)
            keep = truncated(p, logits[s], values, coin(7, 0, s, XTC))
            # Weights below exp(-87) of the largest are none: they would never be drawn.
            expected = np.flatnonzero(keep & (p > p.max() * np.exp(-87.0))).tolist()
            assert native[s] == expected, (vocab, s)
        tokens = _core.sample_rows(logits, inputs, [])
        assert tokens == [sampling.sample(logits[s], s, inputs, None, None) for s in range(rows)]


@pytest.mark.parametrize("options", [o for o in OPTIONS if o.get("typical_p", 1) > 0], ids=str)
def test_frequencies_follow_the_definition(options: dict) -> None:
    rows = 20000
    logits = np.array([2.0, 1.5, 1.5, 0.3, -1.0, 0.9, -3.0, -np.inf], np.float32)
    made = SamplingParams(**options)
    values = {f: getattr(made, f) for f in made.__struct_fields__}
    p = tempered(logits, 1.0, values)
    expected = np.zeros(8)
    probability = values["xtc_probability"]
    for u, share in ((0.0, probability), (1.0, 1.0 - probability)):
        kept = np.where(truncated(p, logits, values, u), p, 0.0)
        expected += share * kept / kept.sum()
    tokens = _core.sample_rows(np.tile(logits, (rows, 1)), inputs_of(rows, options, seed=3), [])
    counts = np.bincount(tokens, minlength=8)
    # 35 is beyond the 99.99th percentile of a chi-squared with 7 degrees of freedom.
    chi = sum((c - rows * q) ** 2 / (rows * q) for c, q in zip(counts, expected, strict=True) if q)
    assert chi < 35
    assert (counts[expected == 0] == 0).all()
    assert tokens == _core.sample_rows(
        np.tile(logits, (rows, 1)), inputs_of(rows, options, seed=3), []
    )


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("temperature", [1e-30, 100.0])
def test_ties_lone_tokens_and_extreme_temperatures(options: dict, temperature: float) -> None:
    vocab = 150
    lone, flat = np.full(vocab, -np.inf, np.float32), np.zeros(vocab, np.float32)
    lone[31] = 4.0
    steep = flat.copy()
    steep[9], steep[10] = 3e38, -3e38
    logits = np.stack([lone, flat, steep])
    inputs = inputs_of(3, options, temperature=temperature, top_k=2 * vocab)
    tokens = _core.sample_rows(logits, inputs, [])
    assert tokens == [sampling.sample(logits[s], s, inputs, None, None) for s in range(3)]
    assert tokens[0] == 31 and 0 <= tokens[1] < vocab and tokens[2] == 9


def with_history(options: dict, histories: list[list[int]], prompt: int, **more: object):
    starts = np.concatenate([[0], np.cumsum([len(h) for h in histories])]).astype(np.int32)
    return inputs_of(
        len(histories), options, history_start=starts,
        history=np.concatenate(histories).astype(np.int32),
        history_prompt=np.full(len(histories), prompt, np.int32), **more,
    )  # fmt: skip


def adjusted(logits: np.ndarray, inputs: SamplingInputs) -> list[np.ndarray]:
    rows = []
    for s, row in enumerate(logits):
        x = row.copy()
        sampling.adjust(x, s, inputs, None, None)
        rows.append(x)
    return rows


def check_executors_agree(logits: np.ndarray, inputs: SamplingInputs) -> None:
    assert _core.drawn_from(logits, inputs) == torch_kept(logits, inputs)
    assert _core.sample_rows(logits, inputs, []) == [
        sampling.sample(logits[s], s, inputs, None, None) for s in range(len(logits))
    ]


def test_dry_equals_its_definition() -> None:
    rng = np.random.default_rng(1)
    histories = [rng.integers(0, 4, n).tolist() for n in (0, 1, 2, 9, 40, 200)] + [[5] * 90]
    options = {
        "dry_multiplier": 0.8, "dry_base": 1.5, "dry_allowed_length": 3, "dry_breaker_ids": (3,),
    }  # fmt: skip
    logits = rng.standard_normal((len(histories), 8)).astype(np.float32)
    inputs = with_history(options, histories, 0)
    for row, x, history in zip(logits, adjusted(logits, inputs), histories, strict=True):
        expected = row.astype(np.float64)
        # The options are float32.
        multiplier, base = float(np.float32(0.8)), 1.5
        for token, penalty in dry_penalties(history, multiplier, base, 3, {3}).items():
            expected[token] -= penalty
        assert np.allclose(x, expected, rtol=1e-6)
    check_executors_agree(logits, inputs)
    window = with_history({**options, "dry_penalty_last_n": 12}, histories, 0)
    cut = with_history(options, [h[-12:] for h in histories], 0)
    assert np.array_equal(adjusted(logits, window), adjusted(logits, cut))
    check_executors_agree(logits, window)


def test_no_sequence_of_n_tokens_occurs_twice() -> None:
    logits = np.zeros((1, 6), np.float32)
    for n, banned in ((1, {1, 2, 3}), (2, {2, 3}), (3, {3}), (4, set()), (9, set())):
        inputs = with_history({"no_repeat_ngram_size": n}, [[1, 2, 1, 3, 2, 1]], 2)
        x = adjusted(logits, inputs)[0]
        assert set(np.flatnonzero(x == -np.inf).tolist()) == banned
        check_executors_agree(logits, inputs)


def test_bad_words_are_sequences_of_generated_tokens() -> None:
    words = ((4,), (1, 5), (2, 1, 3), (2, 2))
    logits = np.zeros((3, 6), np.float32)
    # In the second row, `2` belongs to the prompt: the output has no part of (2, 1, 3) yet.
    inputs = with_history({"bad_words_ids": words}, [[0, 0, 2, 1], [0, 2], [0, 2, 2]], 2)
    found = [set(np.flatnonzero(x == -np.inf).tolist()) for x in adjusted(logits, inputs)]
    assert found == [{3, 4, 5}, {4}, {4, 2}]
    check_executors_agree(logits, inputs)


def test_only_allowed_tokens_are_sampled() -> None:
    logits = np.random.default_rng(2).standard_normal((300, 100)).astype(np.float32)
    inputs = inputs_of(300, {"allowed_token_ids": (0, 8, 63)}, temperature=5.0)
    assert set(_core.sample_rows(logits, inputs, [])) == {0, 8, 63}
    check_executors_agree(logits[:20], inputs_of(20, {"allowed_token_ids": (7,)}))


def test_penalties_look_at_the_last_tokens_only() -> None:
    logits = np.full((1, 6), 2.0, np.float32)
    for last_n, halved in ((-1, {1, 2, 3}), (0, set()), (1, {1}), (3, {1, 3}), (99, {1, 2, 3})):
        options = {"repeat_last_n": last_n, "top_a": 1e-9, "repetition_penalty": 2.0}
        inputs = with_history(options, [[2, 3, 1, 1]], 1, repetition=2.0)
        x = adjusted(logits, inputs)[0]
        assert set(np.flatnonzero(x == 1.0).tolist()) == halved
        check_executors_agree(logits, inputs)


def test_the_winner_of_a_reference_race_is_drawn() -> None:
    rng = np.random.default_rng(9)
    logits = logits_of(rng, 40, 500)
    options = {"typical_p": 0.9, "xtc_probability": 0.5, "xtc_threshold": 0.02}
    inputs = inputs_of(40, options, seed=12)
    made = SamplingParams(**options)
    values = {f: getattr(made, f) for f in made.__struct_fields__}
    for s, token in enumerate(_core.sample_rows(logits, inputs, [])):
        p = tempered(logits[s], 1.0, values)
        keep = truncated(p, logits[s], values, coin(12, 0, s, XTC))
        assert token == draw(np.where(keep, p, 0.0), inputs, s)
