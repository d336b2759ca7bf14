"""Drafts of a smaller model: the answers of single steps, token for token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from engine.test_speculation import batch, told
from helpers.constrained import Brook

from tidemill.loading import bundled_models

DRAFT = f"draft={bundled_models()['brook'] / 'draft'}"
STORY = "Tell me a story about a fox and a bear."


@pytest.fixture(scope="module")
def plain() -> Iterator[Brook]:
    engine = Brook(prefix_caching=False)
    yield engine
    engine.close()


TIGHT = {"kv_memory": 3 * 2**19, "max_model_len": 256, "block_size": 16, "prefix_caching": False}


@pytest.mark.parametrize("how", [{}, TIGHT, {"threads": 2}])
def test_answers_are_those_of_single_steps(plain: Brook, how: dict[str, Any]) -> None:
    requests = batch(plain)
    want = [told([plain.run([one])[0]])[0] for one in requests]
    engine = Brook(speculate=DRAFT, **how)
    assert told(engine.run(requests)) == want
    assert told(engine.run(requests)) == want, "with prefixes found again"
    stats = engine.stats()
    assert stats.drafts_accepted > 300
    assert (stats.preemptions > 0) == (how is TIGHT)
    engine.close()


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_sampled_drafts_come_true(backend: str) -> None:
    options = {"speculate": DRAFT, "backend": backend}
    engine = Brook(**options)  # type: ignore[arg-type]
    for temperature, least in ((0.0, 0.5), (1.0, 0.4)):
        before = engine.stats()
        for seed in range(4):
            engine.ask(STORY, temperature=temperature, seed=seed, max_tokens=60)
        after = engine.stats()
        drafted = after.drafted_tokens - before.drafted_tokens
        # Draws that are not coupled agree half as often at temperature 1.
        assert after.drafts_accepted - before.drafts_accepted > least * drafted / 2
        assert drafted > 100
    engine.close()
