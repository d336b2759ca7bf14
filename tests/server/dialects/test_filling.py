"""Fill in the middle in every dialect that has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.filling import FILE, MIDDLE, PAD, PREFIX, SUFFIX, filling_tokenizer
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


def test_infill(http: httpx.Client, engine: ScriptedEngine) -> None:
    around = {"input_prefix": "def f(", "input_suffix": "): pass"}
    answer = http.post("/infill", json=around).json()
    assert (answer["content"], answer["stop_type"]) == ("a, b", "eos")
    assert engine.requests[-1].prompt_token_ids == PROMPT
    # As llama.vim asks.
    more = {
        **{"input_extra": [{"filename": "a.py", "text": "x"}], "prompt": "a", "n_predict": 2},
        **{"samplers": ["top_k", "top_p", "infill"], "top_k": 40, "top_p": 0.9, "stop": []},
        **{"t_max_predict_ms": 1000, "t_max_prompt_ms": 500, "n_indent": 0, "cache_prompt": True},
        "response_fields": ["content", "timings/prompt_n", "nowhere"],
    }
    answer = http.post("/infill", json={**around, **more}).json()
    assert answer.pop("notices")[0].startswith("samplers: infill")
    assert answer == {"content": "a,", "timings/prompt_n": len(PROMPT) + 9}
    asked = engine.requests[-1]
    assert asked.prompt_token_ids == (BOS, FILE, *b"a.py\nx\n", *PROMPT[1:], ord("a"))
    assert (asked.sampling.temperature, asked.sampling.top_k) == (1.0, 40)
    warm = http.post("/infill", json={**around, "n_predict": 0, "samplers": []}).json()
    assert (warm["content"], warm["tokens_predicted"]) == ("", 0)


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/completions", {**OPENAI, "echo": True}, "echo"),
        ("/v1/completions", {**OPENAI, "suffix": "a" * 10**5}, "suffix"),
        ("/v1/completions", {**OPENAI, "prompt": "a" * 250}, "prompt"),
        ("/api/generate", {**OLLAMA, "system": "a"}, "system"),
        ("/infill", {"input_prefix": "a" * 300}, "input_prefix"),
        ("/infill", {"input_suffix": "a" * 10**5}, "input_suffix"),
        ("/infill", {"input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
    ],
)
def test_what_does_not_fit_is_named(
    http: httpx.Client, path: str, body: dict[str, Any], name: str
) -> None:
    refused = http.post(path, json=body)
    assert refused.status_code == 400 and name in str(refused.json()["error"])


def test_a_model_without_marks_says_so() -> None:
    with serving(fake_context(ScriptedEngine())) as url:
        for path, body in (("/v1/completions", OPENAI), ("/api/generate", OLLAMA), ("/infill", {})):
            refused = httpx.post(url + path, json=body)
            assert refused.status_code == 400 and "fill in the middle" in refused.text
