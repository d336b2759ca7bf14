"""Scoring: logprobs of prompts and continuations, beside transformers and with a warm cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from helpers.real_server import RealServer

from tidemill.loading import bundled_models

TEXT = (
    "<|im_start|>user\nWhat is the capital of France? Take your time, and say where the Seine is."
    "<|im_end|>\n<|im_start|>assistant\nThe capital of France is Paris."
)


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    with RealServer("--dtype", "float32") as running:
        yield running


def post(server: RealServer, path: str, status: int = 200, **body: Any) -> dict[str, Any]:
    response = server.http.post(path, json=body)
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


def reference(ids: list[int]) -> list[float]:
    """Logprob of each token but the first, by transformers in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        bundled_models()["brook"], dtype=torch.float32
    )
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    table = torch.log_softmax(logits, -1)
    return [float(table[i, token]) for i, token in enumerate(ids[1:])]


def test_prompt_logprobs_are_the_models(server: RealServer) -> None:
    ids = post(server, "/tokenize", prompt=TEXT)["tokens"]
    answer = post(server, "/v1/completions", prompt=TEXT, max_tokens=0, prompt_logprobs=3)
    (choice,) = answer["choices"]
    assert choice["text"] == "" and choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    found = choice["prompt_logprobs"]
    assert found[0] is None and len(found) == len(ids)
    for entry, token, expected in zip(found[1:], ids[1:], reference(ids), strict=True):
        assert math.isclose(entry[str(token)]["logprob"], expected, abs_tol=1e-3)
        assert len(entry) in (3, 4)
        best = max(entry.values(), key=lambda e: e["logprob"])
        assert best["rank"] == 1


def test_echo_scores_a_continuation(server: RealServer) -> None:
    body = {"prompt": TEXT, "echo": True, "logprobs": 2, "max_tokens": 0}
    (scored,) = post(server, "/v1/completions", **body)["choices"]
    assert scored["text"] == TEXT
    lists = scored["logprobs"]
    assert len({len(v) for v in lists.values()}) == 1
    assert "".join(lists["tokens"]) == TEXT and lists["token_logprobs"][0] is None
    assert [
        TEXT[a:][: len(t)] for a, t in zip(lists["text_offset"], lists["tokens"], strict=True)
    ] == [*lists["tokens"]]
    for value, top in zip(lists["token_logprobs"][1:], lists["top_logprobs"][1:], strict=True):
        assert value <= max(top.values()) + 1e-9 and len(top) in (2, 3)
    # The cache holds the prompt by now; ids instead of text are the same; so is a batch.
    ids = post(server, "/tokenize", prompt=TEXT)["tokens"]
    again = post(server, "/v1/completions", **{**body, "prompt": [ids, ids[:5], ids]})["choices"]
    assert [c["logprobs"]["token_logprobs"] for c in again] == [
        lists["token_logprobs"],
        lists["token_logprobs"][:5],
        lists["token_logprobs"],
    ]
    (one,) = post(server, "/v1/completions", **{**body, "max_tokens": 1})["choices"]
    assert one["logprobs"]["token_logprobs"][:-1] == lists["token_logprobs"]


def test_chat_prompts_are_scored_too(server: RealServer) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    answer = post(
        server, "/v1/chat/completions", messages=messages, max_tokens=2, prompt_logprobs=0
    )
    ids = post(server, "/tokenize", messages=messages)["tokens"]
    assert [list(e) for e in answer["prompt_logprobs"][1:]] == [[str(i)] for i in ids[1:]]


def test_what_does_not_go_together(server: RealServer) -> None:
    for path, more in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        error = post(server, path, 400, prompt_logprobs=1, stream=True, **more)["error"]
        assert error["param"] == "prompt_logprobs" and "stream" in error["message"]
        error = post(server, path, 400, prompt_logprobs=-1, **more)["error"]
        assert error["param"] == "prompt_logprobs"
