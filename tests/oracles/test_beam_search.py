"""Beam search against transformers: outputs, scores and order, on five families and both executors.

All searches of a model run at once, so that their beams share steps, next to sampled requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers.drive import request
from helpers.family_cases import CASES, VOCAB, make_case

from tidemill.contract.config import EngineConfig
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason
from tidemill.engine.offline import InprocEngine

FAMILIES = ("Llama 1 to 3", "Qwen3", "Gemma 1", "GPT-2", "Falcon-H1")
PROMPT = [5, 90, 17, 301, 44, 5, 90, 260, 8, 133, 402]
MAX_TOKENS = 12
ENDS = tuple(range(3, VOCAB, 9))


class Search(NamedTuple):
    """Parameters, as both sides take them."""

    width: int = 3
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    ends: tuple[int, ...] = ENDS
    repetition: float = 1.0
    min_tokens: int = 0
    ngram: int = 0
    bad: tuple[tuple[int, ...], ...] = ()


SEARCHES = [
    *(Search(3, penalty, early) for penalty, early in product((0.0, 0.6, 1.0, 2.0), (False, True))),
    *(Search(3, penalty, "never") for penalty in (-0.5, 0.0, 1.0, 2.0)),
    Search(4, ends=()),
    Search(2, 0.6, True),
    Search(7, 0.6, min_tokens=4),
    Search(4, 2.0, "never", repetition=1.7),
    Search(4, 0.6, ngram=2, bad=(*((t,) for t in range(0, VOCAB, 5)), (90, 17), (5, 90))),
]


class Model(NamedTuple):
    """A checkpoint, and what transformers makes of every search: (tokens, score) best first."""

    folder: Path
    expected: list[list[tuple[list[int], float]]]


def by_transformers(model: Any, search: Search) -> list[tuple[list[int], float]]:
    import torch

    out = model.generate(
        torch.tensor([PROMPT]),
        num_beams=search.width,
        num_return_sequences=search.width,
        do_sample=False,
        max_new_tokens=MAX_TOKENS,
        min_new_tokens=search.min_tokens or None,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
        repetition_penalty=search.repetition,
        no_repeat_ngram_size=search.ngram or None,
        bad_words_ids=[list(words) for words in search.bad] or None,
        eos_token_id=list(search.ends) or None,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
    )
    lengths = (out.beam_indices >= 0).sum(1).tolist()
    start = len(PROMPT)
    return [
        (tokens[start : start + length], score)
        for tokens, length, score in zip(
            out.sequences.tolist(), lengths, out.sequences_scores.tolist(), strict=True
        )
    ]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    case = next(c for c in CASES if c.family == request.param)
    folder = tmp_path_factory.mktemp("model")
    made = make_case(case, folder)
    made.generation_config.eos_token_id = None
    return Model(folder, [by_transformers(made, search) for search in SEARCHES])


@pytest.fixture(params=["native", "torch"])
def engine(model: Model, request: pytest.FixtureRequest) -> Iterator[InprocEngine]:
    config = EngineConfig(
        model=str(model.folder),
        served_name="m",
        backend=request.param,
        dtype="float32",
        max_model_len=64,
        max_num_seqs=128,
        kv_memory=2**24,
        packed_cache="off",
        threads=1,
    )
    opened = InprocEngine.open(config)
    yield opened
    opened.close()


def requested(name: str, search: Search) -> EngineRequest:
    return request(
        name,
        PROMPT,
        MAX_TOKENS,
        n=search.width,
        beam_width=search.width,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
        stop_token_ids=search.ends,
        repetition_penalty=search.repetition,
        min_tokens=search.min_tokens,
        no_repeat_ngram_size=search.ngram,
        bad_words_ids=search.bad,
        logprobs=1,
    )


def outputs(engine: InprocEngine, requests: list[EngineRequest]) -> dict[str, list[ChoiceOutput]]:
    found: dict[str, list[ChoiceOutput]] = {}
    for output in engine.run(requests):
        found.setdefault(output.request_id, []).append(output)
    return {name: sorted(some, key=lambda o: o.choice) for name, some in found.items()}


def test_beams_scores_and_order_equal_transformers(model: Model, engine: InprocEngine) -> None:
    searches = {f"beam-{i}": search for i, search in enumerate(SEARCHES)}
    requests = [requested(name, search) for name, search in searches.items()]
    others = [request(f"other-{i}", PROMPT[i:], 9, temperature=1.0, seed=i) for i in range(5)]
    found = outputs(engine, requests + others)
    ended = set()
    for (name, search), expected in zip(searches.items(), model.expected, strict=True):
        got = found[name]
        assert [list(o.token_ids) for o in got] == [tokens for tokens, _ in expected], name
        for output, (tokens, score) in zip(got, expected, strict=True):
            reason = FinishReason.STOP if tokens[-1] in search.ends else FinishReason.LENGTH
            assert output.finish_reason is reason, name
            ended.add(reason)
            assert output.logprobs is not None
            assert [lp.token_id for lp in output.logprobs] == tokens
            if search.repetition == 1.0:  # else scores are not sums of logprobs
                total = sum(lp.logprob for lp in output.logprobs)
                assert abs(total / len(tokens) ** search.length_penalty - score) < 2e-4, name
    assert ended == {FinishReason.STOP, FinishReason.LENGTH}
