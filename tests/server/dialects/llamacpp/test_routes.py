"""llama.cpp's own API: completions streamed and whole, embeddings, state, errors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import EOS, ScriptedEngine

from tidemill.contract.program import Grammar

DRAWN = ("timings", "generation_settings")


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda request, choice: [*b"one\ntwo", EOS])


@pytest.fixture(scope="module")
def http(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with serving(fake_context(engine)) as url, httpx.Client(base_url=url) as client:
        yield client


@pytest.fixture(autouse=True)
def _healthy(engine: ScriptedEngine) -> Iterator[None]:
    yield
    engine.fail_after = None


def _events(http: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    answer = http.post("/completion", json={**body, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    return [json.loads(e.removeprefix("data: ")) for e in answer.text.split("\n\n") if e]


def _both(http: httpx.Client, **body: Any) -> dict[str, Any]:
    """The answer, whole and streamed, which must agree."""
    answer = http.post("/completion", json={**body, "return_tokens": True})
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    *parts, last = _events(http, **body)
    assert [part["stop"] for part in parts] == [False] * len(parts) and last["stop"] is True
    joined = {
        **last,
        "content": "".join(part["content"] for part in parts),
        "tokens": [token for part in parts for token in part["tokens"]],
    }
    if body.get("n_probs"):
        entries = [e for part in parts for e in part["completion_probabilities"]]
        joined["completion_probabilities"] = entries
    for one in (joined, drawn := dict(whole)):
        for name in DRAWN:
            one.pop(name)
    assert joined == drawn
    return whole


def test_a_completion(http: httpx.Client, engine: ScriptedEngine) -> None:
    answer = _both(http, prompt="hi", temperature=0.5, seed=7, n_probs=1)
    assert (answer["content"], answer["stop_type"]) == ("one\ntwo", "eos")
    assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (8, 3)
    assert answer["has_new_line"] and answer["prompt"] == "<|bos|>hi"
    assert answer["tokens"][:3] == [*b"one"]
    first = answer["completion_probabilities"][0]
    assert (first["id"], first["token"]) == (ord("o"), "o")
    assert first["top_logprobs"][0].keys() == {"id", "token", "bytes", "logprob"}
    settings = answer["generation_settings"]
    assert (settings["temperature"], settings["seed"], settings["n_probs"]) == (0.5, 7, 1)
    assert answer["timings"]["predicted_n"] == 8 and answer["timings"]["prompt_ms"] > 0


@pytest.mark.parametrize(
    ("body", "kind", "word"),
    [({"n_predict": 3}, "limit", ""), ({"stop": ["\n"]}, "word", "\n"), ({}, "eos", "")],
)
def test_why_it_stopped(http: httpx.Client, body: dict[str, Any], kind: str, word: str) -> None:
    answer = _both(http, prompt="hi", **body)
    assert (answer["stop_type"], answer["stopping_word"]) == (kind, word)


def test_several_prompts(http: httpx.Client) -> None:
    found = http.post("/completions", json={"prompt": ["a", [65, 66]], "n_predict": 3}).json()
    assert [(one["index"], one["content"]) for one in found] == [(0, "one"), (1, "one")]
    ends = [e for e in _events(http, prompt=["a", [65, 66]], n_predict=3) if e["stop"]]
    assert sorted(e["index"] for e in ends) == [0, 1]


def test_several_answers_of_each_prompt(http: httpx.Client, engine: ScriptedEngine) -> None:
    for name in ("n_cmpl", "n"):
        body = {"prompt": ["a", [65, 66]], "n_predict": 3, name: 2, "return_tokens": True}
        found = http.post("/completion", json=body).json()
        assert [(one["index"], one["tokens"]) for one in found] == [
            (i, [*b"one"]) for i in range(4)
        ]
        assert [one["prompt"] for one in found] == ["<|bos|>a"] * 2 + ["AB"] * 2
        assert [one["tokens_evaluated"] for one in found] == [2] * 4


def test_prompts_of_texts_and_ids(http: httpx.Client, engine: ScriptedEngine) -> None:
    for prompt, ids in (
        ([12, 34, "xy", 56], [(12, 34, *b"xy", 56)]),
        (["xy", 56], [(256, *b"xy", 56)]),
        ([["x", 5], [7], {"prompt_string": "z"}], [(256, 120, 5), (7,), (256, 122)]),
        ({"prompt_string": "z", "multimodal_data": []}, [(256, 122)]),
    ):  # fmt: skip
        assert http.post("/completion", json={"prompt": prompt, "n_predict": 1}).status_code == 200
        assert [r.prompt_token_ids for r in engine.requests[-len(ids) :]] == ids
    picture = {"prompt_string": "z", "multimodal_data": ["iVBO"]}
    for prompt in (picture, [1, [2]], ["a", 1.5], [True]):
        answer = http.post("/completion", json={"prompt": prompt})
        assert answer.status_code == 400 and "prompt" in answer.json()["error"]["message"]


def test_parameters(http: httpx.Client, engine: ScriptedEngine) -> None:
    body = {
        **{"prompt": "a", "top_k": 5, "top_p": 0.5, "min_p": 0.1, "repeat_penalty": 1.1},
        **{"repeat_last_n": -1, "logit_bias": [[5, 2.5], [6, False], ["é", 1]], "n_predict": 10**6},
        **{"ignore_eos": False, "id_slot": 3, "t_max_predict_ms": 100, "seed": -1},
        "samplers": "edkypmxt",
    }
    assert "penalties" in http.post("/completion", json=body).text  # temperature is last
    body["samplers"] = ["penalties", "dry", "temperature", "top_k", "top_p", "xtc"]
    assert http.post("/completion", json=body).status_code == 200
    sampling = engine.requests[-1].sampling
    assert (sampling.top_k, sampling.top_p, sampling.min_p) == (5, 0.5, 0.0)  # min_p is not named
    assert sampling.repetition_penalty == 1.1 and sampling.logit_bias == {
        **{0xC3: 1.0, 0xA9: 1.0},  # each token of a text
        **{5: 2.5, 6: -100.0},
    }
    assert sampling.max_tokens == 254 and sampling.xtc_probability == 0.0
    body |= {"typ_p": 0.5, "dry_multiplier": 0.8, "dry_sequence_breakers": ["é"]}
    body |= {"samplers": ["penalties", "dry", "temperature", "typ_p"], "xtc_probability": 0.5}
    assert http.post("/completion", json=body).status_code == 200
    sampling = engine.requests[-1].sampling
    assert (sampling.typical_p, sampling.xtc_probability, sampling.top_p) == (0.5, 0.0, 1.0)
    assert (sampling.dry_multiplier, sampling.dry_breaker_ids) == (0.8, (0xA9,))
    for ruled, kind in (
        ({"grammar": 'root ::= "a"'}, "gbnf"),
        ({"json_schema": {}}, "json_schema"),
    ):
        http.post("/completion", json={"prompt": "a", **ruled})
        (phase,) = engine.requests[-1].program.phases
        assert isinstance(phase, Grammar) and phase.kind == kind


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"temperature": -1}, "temperature"),
        ({"n_probs": 99}, "n_probs"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"repeat_last_n": -2, "repeat_penalty": 1.1}, "repeat_last_n"),
        ({"samplers": ["temperature", "typ_p", "top_p"], "typ_p": 0.5}, "samplers"),
        ({"dry_sequence_breakers": [1]}, "dry_sequence_breakers"),
        ({"mirostat": 2}, "mirostat"),
        ({"dry_multiplier": -0.8}, "dry_multiplier"),
        ({"samplers": ["top_p", "temperature"]}, "samplers"),
        ({"samplers": ["magic"]}, "samplers"),
        ({"logit_bias": [["", 1]]}, "logit_bias"),
        ({"logit_bias": 3}, "logit_bias"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", [1], 2]}, "prompt"),
        ({"prompt": "a" * 300}, "prompt"),
        ({"stream": True, "response_fields": ["content"]}, "response_fields"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_what_is_refused_is_named(http: httpx.Client, body: dict[str, Any], name: str) -> None:
    answer = http.post("/completion", json={"prompt": "a", **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, 400)
    assert name in error["message"] and error["type"] == "invalid_request_error"


def test_embeddings(http: httpx.Client) -> None:
    (one,) = http.post("/embedding", json={"content": "hi"}).json()
    assert math.isclose(math.hypot(*one["embedding"][0]), 1)
    found = http.post("/embeddings", json={"content": ["hi", "ho"], "embd_normalize": 1}).json()
    assert [item["index"] for item in found] == [0, 1]
    assert math.isclose(sum(map(abs, found[1]["embedding"][0])), 1)
    for body in ({}, {"content": "a", "embd_normalize": 3}, {"content": []}):
        assert http.post("/embedding", json=body).status_code == 400


def test_state_and_templates(http: httpx.Client) -> None:
    props = http.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 256
    assert props["chat_template"] and props["bos_token"] == "<|bos|>"
    slots = http.get("/slots").json()
    assert len(slots) == props["total_slots"] and not slots[0]["is_processing"]
    body = {"messages": [{"role": "user", "content": "x"}]}
    assert http.post("/apply-template", json=body).json()["prompt"].startswith("<|user|>x")
    assert http.post("/apply-template", json={"messages": [{"role": "x"}]}).status_code == 400


def test_errors_have_its_shape(http: httpx.Client, engine: ScriptedEngine) -> None:
    for answer, kind in (
        (http.get("/completion"), "invalid_request_error"),
        (http.post("/completion", content=b"{"), "invalid_request_error"),
        (http.post("/completion", json={"prompt": "a", "model": "nope"}), "not_found_error"),
    ):
        error = answer.json()["error"]
        assert (error["code"], error["type"]) == (answer.status_code, kind)
    engine.fail_after = 2
    assert _events(http, prompt="a")[-1]["error"]["code"] == 500
