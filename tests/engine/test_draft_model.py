"""Drafts of a smaller model, of the model without some layers, of Medusa and EAGLE heads: the
answers of single steps, token for token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine.test_speculation import batch, told
from helpers.backend_driver import options
from helpers.constrained import Brook
from helpers.drive import request
from helpers.random_model import make_spec, make_tensors
from helpers.real_engine import MAX_LEN, VOCAB, real_engine

from tidemill.backends import native
from tidemill.loading import bundled_models
from tidemill.worker.speculate import opening
from tidemill.worker.speculate.layers import Found
from tidemill.worker.speculate.model import ModelDrafter

DRAFT = f"draft={bundled_models()['brook'] / 'draft'}"
MEDUSA = f"medusa={bundled_models()['brook'] / 'medusa'}"
EAGLE = f"eagle={bundled_models()['brook'] / 'eagle'}"
STORY = "Tell me a story about a fox and a bear."


@pytest.fixture(scope="module")
def plain() -> Iterator[Brook]:
    engine = Brook(prefix_caching=False)
    yield engine
    engine.close()


TIGHT = {"kv_memory": 3 * 2**19, "max_model_len": 256, "block_size": 16, "prefix_caching": False}


@pytest.mark.parametrize("how", [{}, TIGHT, {"threads": 2}])
@pytest.mark.parametrize("drafter", [DRAFT, "skip", MEDUSA, EAGLE])
def test_answers_are_those_of_single_steps(
    plain: Brook, drafter: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "search", lambda backend, starts: Found((2, 4), 0.8, 1.1))
    requests = batch(plain)
    want = [told([plain.run([one])[0]])[0] for one in requests]
    engine = Brook(speculate=drafter, packed_cache="off", **how)
    assert told(engine.run(requests)) == want
    assert told(engine.run(requests)) == want, "with prefixes found again"
    stats = engine.stats()
    assert stats.drafts_accepted > 100
    assert (stats.preemptions > 0) == (how is TIGHT)
    engine.close()


@pytest.mark.parametrize(
    ("drafter", "backend"), [(DRAFT, "native"), (DRAFT, "torch"), (EAGLE, "native")]
)
def test_sampled_drafts_come_true(drafter: str, backend: str) -> None:
    options = {"speculate": drafter, "backend": backend}
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


def test_layers_are_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([Found((1, 3), 0.5, 1.1)])
    monkeypatch.setattr(opening, "search", lambda backend, starts: next(found))
    options = {"speculate": "skip", "packed_cache": str(tmp_path)}
    for _ in range(2):
        engine = Brook(**options)  # type: ignore[arg-type]
        (answer,) = engine.ask(STORY, max_tokens=40)
        assert answer.finish == "length" and engine.stats().drafted_tokens > 20
        engine.close()
    with pytest.raises(StopIteration):
        Brook(**options, quantize="q8_0")  # type: ignore[arg-type]


@pytest.mark.parametrize("drafter", [DRAFT, MEDUSA, EAGLE])
def test_what_happens_to_the_models_memory_happens_to_drafters(drafter: str) -> None:
    engine = Brook(speculate=drafter, prefix_caching=False)  # what is emptied is not found
    (want,) = engine.ask(STORY, max_tokens=60)
    executor = engine.executor
    for change in (
        executor.empty_cache,
        executor.release_weights,
        executor.restore_weights,
        lambda: executor.limit_cache(20),
        lambda: executor.limit_cache(60),
    ):
        before = engine.stats().drafts_accepted
        change()
        if change != executor.release_weights:  # then nothing is computed
            assert engine.ask(STORY, max_tokens=60)[0].tokens == want.tokens
            assert engine.stats().drafts_accepted > before + 10
    engine.close()


@pytest.mark.parametrize("model", ["recurrent", "state alone"])
def test_a_draft_model_for_a_model_with_a_state_per_sequence(model: str) -> None:
    spec = make_spec(vocab=VOCAB, hidden=64, heads=4, kv_heads=2, head_dim=16, layers=1)
    drafting = native.load(spec, make_tensors(spec), options(max_positions=MAX_LEN))
    drafting.allocate_cache((200,))
    drafter = ModelDrafter(drafting, MAX_LEN, 200, VOCAB)
    batch = [request(f"r{i}", range(6, 20 + i), 40, seed=i, temperature=0.7) for i in range(6)]
    found = []
    for how in ({}, {"speculate": "lookup", "drafter": drafter}):
        engine = real_engine("native", model=model, **how)
        tokens: dict[str, list[int]] = {}
        for output in engine.run(batch):
            assert output.error is None, output.error
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
        found.append(tokens)
        stats = engine.stats
        engine.close()
    drafting.close()
    assert found[0] == found[1] and stats.drafted_tokens > 100
