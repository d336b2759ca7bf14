"""Requests for vectors go through the scheduler like any other: under pressure, and again."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.drive import request
from helpers.real_engine import MAX_LEN, VOCAB, real_engine

from tidemill.contract.request import EngineRequest, FinishReason, Pooling
from tidemill.contract.sampling import SamplingParams
from tidemill.engine.streams import Journal

RNG = np.random.default_rng(5)
PROMPTS = [tuple(RNG.integers(0, VOCAB, n).tolist()) for n in (1, 40, 7, 90, 33, 64, MAX_LEN)]


def vector_request(name: str, prompt: tuple[int, ...], kind: str, **more: object) -> EngineRequest:
    sampling = SamplingParams(max_tokens=1, seed=0)
    return EngineRequest(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=sampling,
        pooling=Pooling(kind),
        **more,  # type: ignore[arg-type]
    )


def vectors(kind: str, *, streams: int = 0, **settings: object) -> tuple[list[bytes], int]:
    """Vectors of all prompts, beside streams; and how often somebody was preempted."""
    asked = [vector_request(f"v{i}", p, kind) for i, p in enumerate(PROMPTS)]
    beside = [request(f"s{i}", PROMPTS[2], 90, seed=i) for i in range(streams)]
    engine = real_engine("native", **settings)  # type: ignore[arg-type]
    try:
        found: dict[str, bytes] = {}
        for output in engine.run([*beside, *asked]):
            if output.request_id.startswith("v"):
                assert output.finish_reason is FinishReason.STOP, output
                assert not output.token_ids and output.request_id not in found
                found[output.request_id] = output.pooled
        return [found[f"v{i}"] for i in range(len(PROMPTS))], engine.stats.preemptions
    finally:
        engine.close()


@pytest.mark.parametrize("kind", ["last", "mean", "cls"])
def test_the_same_vector_however_crowded_it_is(kind: str) -> None:
    alone, _ = vectors(kind, max_num_seqs=1, max_step_tokens=512)
    assert len({*alone}) == len(PROMPTS)
    crowded, preemptions = vectors(
        kind, streams=6, num_blocks=22, max_step_tokens=24, block_size=16, threads=2
    )
    assert preemptions > 0 and crowded == alone


def test_a_cached_prefix_gives_the_last_token_and_no_mean() -> None:
    engine = real_engine("native")
    try:
        cached = {}
        for name, kind in (("a", "last"), ("b", "last"), ("c", "mean")):
            [output] = engine.run([vector_request(name, PROMPTS[3], kind)])
            cached[name] = (output.cached_tokens, output.pooled)
    finally:
        engine.close()
    assert cached["a"][0] == 0 and cached["b"][0] == 80 and cached["c"][0] == 0
    assert cached["a"][1] == cached["b"][1] != cached["c"][1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt_token_ids": (1,) * (MAX_LEN + 1)}, "at most"),
        ({"pooling": Pooling("max")}, "one of last, mean, cls"),
        ({"sampling": SamplingParams(n=2, seed=0, max_tokens=1)}, "generates nothing"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], words: str) -> None:
    import msgspec

    engine = real_engine("native")
    asked = msgspec.structs.replace(vector_request("x", PROMPTS[1], "last"), **changes)
    try:
        output = next(iter(engine.run([asked])))
    finally:
        engine.close()
    assert output.error is not None and words in output.error.message


def test_a_replay_asks_for_the_vector_again() -> None:
    asked = vector_request("x", PROMPTS[1], "mean", deadline=9.0)
    journal = Journal(asked)
    journal.lives = 2
    again = journal.replay()
    assert again.pooling == asked.pooling and again.deadline == 9.0 and again.resume == ()
