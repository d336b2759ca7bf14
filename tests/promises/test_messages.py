"""Anthropic's messages with the bundled model, as Claude Code sends them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.anthropic_client import agree, joined, parsed, plain
from helpers.real_server import RealServer

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
ADVICE = "Answer in few words. Use a tool where one fits, and say what it found."
RULES = "\n".join(f"{i}. Keep to the files of the project, and read one before it is edited."
                  for i in range(40))  # fmt: skip


@pytest.fixture(scope="module")
def http(server: RealServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def _request(number: int, turns: list[dict[str, Any]]) -> dict[str, Any]:
    """The parts of a request of Claude Code 2.1, the accounting line new in each."""
    cached = {"cache_control": {"type": "ephemeral"}}
    line = f"x-anthropic-billing-header: cc_version=2.1.{number}.1c{number}; cc_entrypoint=cli;"
    return {
        "model": "brook",
        "max_tokens": 64000,
        "system": [
            {"type": "text", "text": line},
            {"type": "text", "text": ADVICE, **cached},
            {"type": "text", "text": f"\n{RULES}", **cached},
        ],
        "tools": [
            {
                "name": "get_weather",
                "description": "Get the current weather of a city.",
                "input_schema": SCHEMA,
            }
        ],
        "messages": turns,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": json.dumps({"session_id": "a"})},
        "tool_choice": {"type": "any" if number == 1 else "auto"},
        "temperature": 0,
        "stream": True,
    }


def _ask(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = http.post("/v1/messages?beta=true", json=body)
    assert answer.status_code == 200, answer.text
    return joined(parsed(answer.text))


def test_a_second_turn_of_claude_code_is_in_the_cache(http: httpx.Client) -> None:
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "What is the weather in Paris?"}]},
        {"role": "system", "content": "Agents: none."},
    ]
    first = _ask(http, _request(1, turns))
    (call,) = first["content"]
    assert first["stop_reason"] == "tool_use" and call["name"] == "get_weather"
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "17 degrees and rain"}
    turns += [
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [result]},
    ]
    usage = _ask(http, _request(2, turns))["usage"]
    total = (
        usage["input_tokens"]
        + usage["cache_creation_input_tokens"]
        + usage["cache_read_input_tokens"]
    )
    assert usage["cache_read_input_tokens"] >= 0.95 * total > 1000, usage


def test_structure_and_thinking_are_enforced(http: httpx.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    ask = "Extract name and age as JSON. Meet Dora. The age is 43."
    body: dict[str, Any] = {
        "max_tokens": 300,
        "messages": [{"role": "user", "content": ask}],
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
        "temperature": 0,
    }
    answer = agree(http, body)
    assert json.loads(answer["content"][0]["text"]) == {"name": "Dora", "age": 43}
    thinks = agree(http, {**body, "thinking": {"type": "enabled", "budget_tokens": 20}})
    thought, text = thinks["content"]
    assert thought["type"] == "thinking" and json.loads(text["text"])["age"] == 43
    assert 0 < thinks["usage"]["output_tokens_details"]["thinking_tokens"] <= 20 + 2
    turns = [*body["messages"], {"role": "assistant", "content": thinks["content"]}]
    assert plain(agree(http, {**body, "messages": [*turns, *body["messages"]]}))["content"]
