"""The candidates of beams, on both executors, against a plain reference in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, options, sampling_inputs
from helpers.random_model import make_spec, make_tensors

from tidemill.backends import native, torch
from tidemill.backends.base import Backend, CandidateArrays, SamplingInputs

SPEC = make_spec()
VOCAB = SPEC.vocab_size
ROWS = 4


@pytest.fixture(params=[native, torch], ids=["native", "torch"])
def backend(request: pytest.FixtureRequest) -> Backend:
    made = request.param.load(SPEC, make_tensors(SPEC), options())
    yield made
    made.close()


def inputs() -> SamplingInputs:
    """A plain beam, a beam with everything, a row that samples, a beam with one token left."""
    history = np.array([5, 6, 7, 7, 9], np.int32)  # of row 1: two of the prompt, three generated
    banned = np.array([t for t in range(VOCAB) if t != 3], np.int32)
    return sampling_inputs(
        ROWS,
        candidates=np.array([6, 5, 0, 6], np.int32),
        num_logprobs=np.array([2, -1, -1, -1], np.int32),
        repetition=[1, 1.5, 1, 1],
        presence=[0, 0.5, 0, 0],
        frequency=[0, 0.25, 0, 0],
        bias_start=np.array([0, 0, 2, 2, 2 + len(banned)], np.int32),
        bias_id=np.concatenate([[11, 12], banned]).astype(np.int32),
        bias_value=np.array([4, -np.inf, *[-np.inf] * len(banned)], np.float32),
        history_start=np.array([0, 0, 5, 5, 5], np.int32),
        history=history,
        history_prompt=np.array([0, 2, 0, 0], np.int32),
        position=np.full(ROWS, 8, np.int32),
    )


def run(backend: Backend) -> tuple[np.ndarray, np.ndarray, CandidateArrays, np.ndarray]:
    driver = BackendDriver(backend)
    rows = [(driver.sequence(range(r, r + 8)), 8) for r in range(ROWS)]
    out = driver.run(rows, sample=True, sampling=inputs())
    assert out.candidates is not None and out.logits is not None and out.logprobs is not None
    return out.logits.astype(np.float64), out.sampled, out.candidates, out.logprobs.top_ids


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


def test_candidates_equal_the_reference(backend: Backend) -> None:
    logits, sampled, found, top = run(backend)
    raw = np.stack([log_softmax(x) for x in logits])
    scores = raw.copy()
    # As transformers' processors do: on the log-softmax, which is not normalized again.
    scores[1, 11] += 4
    scores[1, 12] = -np.inf
    scores[1, [5, 6, 7, 9]] *= 1.5
    scores[1, [7, 9]] -= 0.5 + 0.25 * np.array([2, 1])
    for row, count in ((0, 6), (1, 5)):
        expected = np.argsort(-scores[row], kind="stable")[:count]
        assert found.ids[row, :count].tolist() == expected.tolist()
        assert np.allclose(found.scores[row, :count], scores[row, expected], atol=2e-6)
        assert np.allclose(found.logprobs[row, :count], raw[row, expected], atol=2e-6)
        assert sampled[row] == expected[0]
    assert found.ids[1, 5] == -1
    assert top[0].tolist() == found.ids[0, :2].tolist()


def test_rows_that_sample_and_beams_without_choice(backend: Backend) -> None:
    logits, sampled, found, _ = run(backend)
    assert sampled[2] == logits[2].argmax() and (found.ids[2] == -1).all()
    assert found.ids[3].tolist() == [3, -1, -1, -1, -1, -1]


def test_a_beam_without_any_token_left(backend: Backend) -> None:
    driver = BackendDriver(backend)
    every = np.arange(VOCAB, dtype=np.int32)
    sampling = sampling_inputs(
        1,
        candidates=np.array([4], np.int32),
        bias_start=np.array([0, VOCAB], np.int32),
        bias_id=every,
        bias_value=np.full(VOCAB, -np.inf, np.float32),
        position=np.array([8], np.int32),
    )
    out = driver.run([(driver.sequence(range(8)), 8)], sample=True, sampling=sampling)
    assert out.sampled.tolist() == [-1]
    assert out.candidates is not None and (out.candidates.ids == -1).all()
