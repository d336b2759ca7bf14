"""Promise 6 at the engine: tokens and logprobs do not depend on what else runs, or how.

The answers of requests served one at a time are compared with those of all of them together, over
caching, chunk sizes, forced preemption, order of arrival, depth of the pipeline and threads.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest
from helpers.drafting import ReplayDrafter
from helpers.drive import request
from helpers.random_model import MODELS
from helpers.real_engine import VOCAB, real_engine

from tidemill.contract.request import EngineRequest, FinishReason, TokenLogprob
from tidemill.engine.offline import InprocEngine

Answer = tuple[tuple[int, ...], tuple[TokenLogprob, ...], FinishReason | None]


@dataclass(frozen=True)
class Numbers:
    """What computes: the options of `real_engine` that may change the answers."""

    name: str
    options: dict[str, object]


NUMBERS = [
    Numbers("f32", {}),
    Numbers("bf16", {"dtype": "bfloat16", "kv_dtype": "bfloat16", "stored": "BF16"}),
    Numbers(
        "q8-int8kv",
        {"dtype": "bfloat16", "kv_dtype": "int8", "stored": "BF16", "quantize": "q8_0"},
    ),
    Numbers(
        "q8-int4kv",
        {"dtype": "bfloat16", "kv_dtype": "int4", "stored": "BF16", "quantize": "q8_0"},
    ),
    *(Numbers(model, {"model": model}) for model in MODELS if model != "plain"),
]


_STATES = ("recurrent", "state alone", "mixers beside")  # that sequences hold


def requests() -> list[EngineRequest]:
    """68 requests: shared prefixes, greedy and seeded, penalties, biases, several choices;
    and beam searches."""
    rng = random.Random(6)
    system = [rng.randrange(VOCAB) for _ in range(37)]
    made = []
    for i in range(64):
        tail = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 60))]
        options: dict[str, object] = {"logprobs": 2}
        if i % 4 == 1:
            options |= {"temperature": 0.9, "top_p": 0.95, "top_k": 40}
        if i % 4 == 2:
            options |= {"temperature": 1.3, "min_p": 0.02, "frequency_penalty": 0.4, "n": 2}
        if i % 4 == 3:
            options |= {"repetition_penalty": 1.2, "logit_bias": {7: 3.0, 9: -100.0}}
        if i % 7 == 2:
            options |= {"dry_multiplier": 0.8, "repeat_last_n": 9, "bad_words_ids": ((5, 6), (8,))}
        if i % 7 == 4:
            options |= {"typical_p": 0.9, "xtc_probability": 0.5, "no_repeat_ngram_size": 2}
        if i % 5 == 0:
            options |= {"min_tokens": 9, "stop_token_ids": (1, 2, 3, 4)}
        prompt = (system if i % 3 else []) + tail
        made.append(request(f"r{i}", prompt, 24, seed=i, ignore_eos=False, **options))
    for i, early in enumerate((False, True, "never", False)):
        prompt = system[: 9 * i] + [rng.randrange(VOCAB) for _ in range(11)]
        options = {"beam_width": 4, "n": 2, "early_stopping": early, "logprobs": 2}
        options |= {"stop_token_ids": tuple(range(0, VOCAB, 9)), "repetition_penalty": 1 + i / 9}
        made.append(request(f"beam{i}", prompt, 20, **options))
    return made


def answers(engine: InprocEngine, batch: list[EngineRequest]) -> dict[tuple[str, int], Answer]:
    tokens: dict[tuple[str, int], list[int]] = {}
    logprobs: dict[tuple[str, int], list[TokenLogprob]] = {}
    ends: dict[tuple[str, int], FinishReason | None] = {}
    for output in engine.run(batch):
        key = output.request_id, output.choice
        assert output.error is None, output.error
        tokens.setdefault(key, []).extend(output.token_ids)
        logprobs.setdefault(key, []).extend(output.logprobs or ())
        if output.finish_reason is not None:
            assert key not in ends
            ends[key] = output.finish_reason
    return {k: (tuple(tokens[k]), tuple(logprobs[k]), ends[k]) for k in ends}


@pytest.fixture(scope="module", params=NUMBERS, ids=lambda n: n.name)
def alone(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[Numbers, dict[tuple[str, int], Answer]]]:
    """Each request's answer when nothing else runs."""
    engine = real_engine("native", prefix_caching=False, **request.param.options)
    found: dict[tuple[str, int], Answer] = {}
    for one in requests():
        found |= answers(engine, [one])
    engine.close()
    texts = [answer[0] for answer in found.values()]
    assert len(texts) == 88 and len(set(texts)) > 70 and sum(map(len, texts)) > 1000
    assert {answer[2] for answer in found.values()} == {FinishReason.STOP, FinishReason.LENGTH}
    yield request.param, found


CONDITIONS: dict[str, dict[str, object]] = {
    "together": {},
    "no-cache": {"prefix_caching": False},
    "chunk-16": {"max_step_tokens": 16},
    "chunk-64": {"max_step_tokens": 64},
    "preempted": {"num_blocks": 24},
    "few-snapshots": {"snapshots": 2, "max_step_tokens": 64},
    "chunk-64-preempted": {"num_blocks": 24, "max_step_tokens": 64},
    "one-in-flight": {"depth": 1},
    "one-in-flight-preempted": {"depth": 1, "num_blocks": 24, "max_step_tokens": 64},
    "two-threads": {"threads": 2},
    "layer-by-layer": {},
    "speculating": {"speculate": "lookup"},
    "speculating-few-states": {"speculate": "lookup", "draft_states": 3},
    "speculating-preempted": {"speculate": "lookup", "num_blocks": 24, "max_step_tokens": 64},
    "well-speculating": {"speculate": "lookup"},
    "well-speculating-preempted": {"speculate": "lookup", "num_blocks": 18, "threads": 2},
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_native(
    alone: tuple[Numbers, dict[tuple[str, int], Answer]],
    condition: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers, want = alone
    if "layer" in condition:  # no time is left beside streams
        monkeypatch.setattr("tidemill.sched.step_budget.step_seconds", lambda *args, **options: 0.0)
    options = {**numbers.options, **CONDITIONS[condition]}
    if "well" in condition:
        options["drafter"] = ReplayDrafter({key: answer[0] for key, answer in want.items()})
    engine = real_engine("native", **options)
    batch = requests()
    random.Random(condition).shuffle(batch)
    got = answers(engine, batch)
    stats = engine.stats
    again = answers(engine, batch[:8])
    engine.close()
    assert got == want
    assert all(want[key] == answer for key, answer in again.items())
    if "preempted" in condition:
        assert stats.preemptions > 0
    if "layer" in condition and numbers.name not in _STATES:  # with states they are not parted
        assert stats.steps > 300, "no prompt was computed a layer a step"
    if "speculating" in condition:
        assert stats.drafted_tokens > stats.drafts_accepted > 0
    if "well" in condition:
        assert stats.drafts_accepted > 500, "most of some 1500 tokens"
    if condition == "together":
        assert stats.cached_tokens > 0
        assert stats.steps < 24 * 8, "requests did not share steps"


def test_torch_serves_the_same_engine() -> None:
    """Torch promises less, so only that in float32 greedy tokens agree with one at a time."""
    pytest.importorskip("torch")
    batch = [r for r in requests() if r.sampling.temperature == 0][:12]
    engine = real_engine("torch")
    together = answers(engine, batch)
    alone: dict[tuple[str, int], Answer] = {}
    for one in batch:
        alone |= answers(engine, [msgspec.structs.replace(one, cache_salt="alone")])
    engine.close()
    assert {k: v[0] for k, v in together.items()} == {k: v[0] for k, v in alone.items()}


@pytest.mark.parametrize("model", sorted(MODELS))
def test_torch_and_native_agree(model: str) -> None:
    """The two executors are two implementations of one definition."""
    pytest.importorskip("torch")
    batch = [r for r in requests() if r.sampling.temperature == 0][:12]
    found = []
    for backend in ("torch", "native"):
        engine = real_engine(backend, model=model)
        found.append({k: v[0] for k, v in answers(engine, batch).items()})
        engine.close()
    assert found[0] == found[1]
