"""Ollama's and llama.cpp's APIs with the bundled model: the same answers as OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.real_server import RealServer

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city"}},
            "required": ["city"],
        },
    },
}
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}


@pytest.fixture(scope="module")
def http(server: RealServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def _chat(http: httpx.Client, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": "brook", "messages": messages, "tools": [TOOL], "options": {"temperature": 0}}
    answer = http.post("/api/chat", json={**body, "stream": False})
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in http.post("/api/chat", json=body).text.splitlines()]
    whole: dict[str, Any] = answer.json()["message"]
    assert "".join(line["message"]["content"] for line in lines) == whole["content"]
    calls = [call["function"] for line in lines for call in line["message"].get("tool_calls", ())]
    assert calls == [call["function"] for call in whole.get("tool_calls", ())]
    return whole


def test_a_tool_is_called_and_its_result_is_told(http: httpx.Client) -> None:
    first = _chat(http, [QUESTION])
    (call,) = first["tool_calls"]
    assert call["function"]["arguments"] == {"city": "Paris"}
    result = '{"temperature": 17, "condition": "rain"}'
    of_call = {"role": "tool", "tool_name": "get_weather", "content": result}
    last = _chat(http, [QUESTION, first, of_call])
    assert "17" in last["content"]
    # OpenAI's words for the same conversation.
    function = {"name": "get_weather", "arguments": json.dumps({"city": "Paris"})}
    asked = {"id": call["id"], "type": "function", "function": function}
    turns = [
        QUESTION,
        {"role": "assistant", "content": first["content"], "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": call["id"], "content": result},
    ]
    body = {"model": "brook", "messages": turns, "tools": [TOOL], "temperature": 0}
    same = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert same["content"] == last["content"]


def test_prompts_are_continued_alike(http: httpx.Client) -> None:
    prompt = "The weather in Paris is"
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0}
    text = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    options = {"temperature": 0, "num_predict": 12}
    raw = {"model": "brook", "prompt": prompt, "raw": True, "stream": False, "options": options}
    assert http.post("/api/generate", json=raw).json()["response"] == text
    own = http.post("/completion", json={"prompt": prompt, "n_predict": 12, "temperature": 0})
    assert own.json()["content"] == text
    shown = http.post("/api/show", json={"model": "brook"}).json()
    assert shown["model_info"]["qwen3.context_length"] and shown["details"]["parameter_size"]
