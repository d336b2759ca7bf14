"""Beam searches on real models: a preemption, forks of recurrent states and failing steps change
nothing."""

from __future__ import annotations

import random

import pytest
from helpers.drive import request
from helpers.random_model import MODELS
from helpers.real_engine import VOCAB, real_engine

from tidemill.contract.request import ChoiceOutput, EngineRequest
from tidemill.engine.offline import InprocEngine

RNG = random.Random(2)
PROMPT = [RNG.randrange(VOCAB) for _ in range(21)]


def search(name: str, **options: object) -> EngineRequest:
    ends = tuple(range(0, VOCAB, 16))
    return request(
        name, PROMPT, 24, beam_width=3, n=3, stop_token_ids=ends, logprobs=1, min_tokens=15,
        length_penalty=0.6, **options,  # type: ignore[arg-type]
    )  # fmt: skip


def outputs(engine: InprocEngine, requests: list[EngineRequest]) -> dict[str, list[ChoiceOutput]]:
    found: dict[str, list[ChoiceOutput]] = {}
    for output in engine.run(requests):
        assert output.error is None, output.error
        found.setdefault(output.request_id, []).append(output)
    return {name: sorted(some, key=lambda o: o.choice) for name, some in found.items()}


def answer(found: list[ChoiceOutput]) -> list[object]:
    return [(o.token_ids, o.logprobs, o.finish_reason) for o in found]


@pytest.mark.parametrize("model", sorted(MODELS))
def test_a_preemption_changes_nothing(model: str) -> None:
    engine = real_engine("native", model=model)
    want = answer(outputs(engine, [search("calm")])["calm"])
    engine.close()
    assert len({tokens for tokens, *_ in want}) == 3  # type: ignore[misc]
    engine = real_engine("native", model=model, num_blocks=11, prefix_caching=False)
    older = [request(f"older{i}", PROMPT[i : i + 9], 60) for i in range(4)]
    found = outputs(engine, [*older, search("pressed")])
    engine.close()
    last = found["pressed"][0]
    assert last.timings is not None and last.timings.preemptions > 0
    assert answer(found["pressed"]) == want


@pytest.mark.parametrize("model", ["plain", "recurrent"])
def test_beams_of_many_searches_share_steps(model: str) -> None:
    engine = real_engine("native", model=model)
    alone = answer(outputs(engine, [search("alone")])["alone"])
    before = engine.stats.steps
    found = outputs(engine, [search(f"s{i}") for i in range(8)])
    steps = engine.stats.steps - before
    engine.close()
    assert all(answer(some) == alone for some in found.values())
    assert steps < 60, "searches did not share steps"
