"""Fill in the middle in every dialect that has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.filling import MIDDLE, PAD, PREFIX, SUFFIX, filling_tokenizer
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

BOS = 256
PROMPT = (BOS, PREFIX, *b"def f(", SUFFIX, *b"): pass", MIDDLE)
OPENAI = {"prompt": "def f(", "suffix": "): pass", "max_tokens": 9}
OLLAMA = {"prompt": "def f(", "suffix": "): pass", "stream": False}


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda request, choice: [*b"a, b", PAD])


@pytest.fixture(scope="module")
def http(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    context = fake_context(engine, tokenizer=filling_tokenizer())
    with serving(context) as url, httpx.Client(base_url=url) as client:
        yield client


def test_completions(http: httpx.Client, engine: ScriptedEngine) -> None:
    (choice,) = http.post("/v1/completions", json=OPENAI).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("a, b", "stop")
    assert engine.requests[-1].prompt_token_ids == PROMPT
    ids = {**OPENAI, "prompt": [*b"def f("]}
    assert http.post("/v1/completions", json=ids).status_code == 200
    assert engine.requests[-1].prompt_token_ids == PROMPT
    none = http.post("/v1/completions", json={**OPENAI, "suffix": ""})
    assert none.status_code == 200 and MIDDLE not in engine.requests[-1].prompt_token_ids


def test_ollama(http: httpx.Client, engine: ScriptedEngine) -> None:
    answer = http.post("/api/generate", json=OLLAMA).json()
    assert (answer["response"], answer["done_reason"]) == ("a, b", "stop")
    assert engine.requests[-1].prompt_token_ids == PROMPT
    assert http.post("/api/generate", json={**OLLAMA, "prompt": ""}).json()["response"] == "a, b"
    assert "insert" in http.post("/api/show", json={"model": "tiny"}).json()["capabilities"]


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/completions", {**OPENAI, "echo": True}, "echo"),
        ("/v1/completions", {**OPENAI, "suffix": "a" * 10**5}, "suffix"),
        ("/v1/completions", {**OPENAI, "prompt": "a" * 250}, "prompt"),
        ("/api/generate", {**OLLAMA, "system": "a"}, "system"),
    ],
)
def test_what_does_not_fit_is_named(
    http: httpx.Client, path: str, body: dict[str, Any], name: str
) -> None:
    refused = http.post(path, json=body)
    assert refused.status_code == 400 and name in str(refused.json()["error"])


def test_a_model_without_marks_says_so() -> None:
    with serving(fake_context(ScriptedEngine())) as url:
        for path, body in (("/v1/completions", OPENAI), ("/api/generate", OLLAMA)):
            refused = httpx.post(url + path, json=body)
            assert refused.status_code == 400 and "fill in the middle" in refused.text
