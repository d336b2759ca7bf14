"""Beam search and best_of over HTTP: names, choices, streams, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="module")
def http(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with serving(fake_context(engine)) as url, httpx.Client(base_url=f"{url}/v1") as client:
        yield client


def complete(http: httpx.Client, **body: Any) -> httpx.Response:
    return http.post("/completions", json={"prompt": "hi", "max_tokens": 9, **body})


@pytest.mark.parametrize(
    ("body", "width", "n"),
    [
        ({"use_beam_search": True, "n": 4}, 4, 4),
        ({"use_beam_search": True, "best_of": 5, "n": 2}, 5, 2),
        ({"use_beam_search": True, "best_of": 5, "temperature": 0}, 5, 1),
        ({"beam_width": 3}, 3, 1),
        ({"num_beams": 3, "num_return_sequences": 2}, 3, 2),
        ({"num_beams": 1, "n": 2}, 1, 2),
        ({"use_beam_search": False, "n": 2}, 1, 2),
    ],
)
def test_names_of_a_search(
    http: httpx.Client, engine: ScriptedEngine, body: dict[str, Any], width: int, n: int
) -> None:
    for stream in (False, True):
        answer = complete(http, **body, stream=stream)
        assert answer.status_code == 200, answer.text
        sampling = engine.requests[-1].sampling
        assert (sampling.beam_width, sampling.n) == (width, n)


def test_a_search_with_one_beam_is_greedy(http: httpx.Client, engine: ScriptedEngine) -> None:
    assert complete(http, use_beam_search=True).status_code == 200
    sampling = engine.requests[-1].sampling
    assert sampling.temperature == 0.0 and not sampling.beam_search


def test_without_max_tokens_beams_get_what_the_cache_holds(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    for width, most in ((2, 256), (32, 64)):  # 64 blocks of 32 tokens, a context of 256
        message = {"role": "user", "content": "hi"}
        body = {"messages": [message], "beam_width": width}
        assert http.post("/chat/completions", json=body).status_code == 200
        request = engine.requests[-1]
        assert request.sampling.max_tokens == most - len(request.prompt_token_ids)


def test_stop_strings_go_to_the_engine(http: httpx.Client, engine: ScriptedEngine) -> None:
    complete(http, beam_width=3, stop=["x", "yz"], min_tokens=2)
    stops = engine.requests[-1].program.stops
    assert stops is not None and (stops.texts, stops.min_tokens) == (("x", "yz"), 2)
    complete(http, n=3, stop=["x", "yz"])
    assert engine.requests[-1].program.free


def test_best_of_returns_the_likeliest(http: httpx.Client, engine: ScriptedEngine) -> None:
    every = complete(http, n=6, logprobs=0, seed=1).json()
    means = [sum(p := c["logprobs"]["token_logprobs"]) / len(p) for c in every["choices"]]
    order = sorted(range(6), key=lambda i: (-means[i], i))
    for logprobs in (None, 0):
        best = complete(http, n=2, best_of=6, logprobs=logprobs, seed=1).json()
        texts = [choice["text"] for choice in best["choices"]]
        assert texts == [every["choices"][i]["text"] for i in order[:2]]
        assert [choice["index"] for choice in best["choices"]] == [0, 1]
        assert (best["choices"][0]["logprobs"] is None) == (logprobs is None)
        assert best["usage"] == every["usage"]  # all that was sampled
    assert engine.requests[-1].sampling.n == 6


def test_several_prompts_each_have_their_best(http: httpx.Client) -> None:
    prompts = ["hi", "ho"]
    both = complete(http, prompt=prompts, best_of=3, seed=1).json()["choices"]
    each = [complete(http, prompt=p, best_of=3, seed=1).json()["choices"][0] for p in prompts]
    assert [c["text"] for c in both] == [c["text"] for c in each]
    assert [c["index"] for c in both] == [0, 1]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"beam_width": 3, "n": 4}, "beam_width"),
        ({"beam_width": 3, "top_p": 0.5}, "top_p"),
        ({"use_beam_search": True, "n": 2, "temperature": 0.7}, "temperature"),
        ({"use_beam_search": True, "temperature": 0.7}, "temperature"),
        ({"beam_width": 3, "early_stopping": "always"}, "early_stopping"),
        ({"num_beams": 4, "num_beam_groups": 2}, "num_beam_groups"),
        ({"beam_width": 33}, "beam_width"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    http: httpx.Client, body: dict[str, Any], param: str
) -> None:
    refused = complete(http, **body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param, refused.text
