"""Every option of a response with every other: it works in stream and whole alike, or is refused by
the name of one of the two."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from helpers.marked_model import PARAMETERS, TOOLS, Model
from helpers.responses_api import stream, without_ids

FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
SCHEMA = {"type": "json_schema", "name": "x", "schema": PARAMETERS}
GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}

# label -> fields; an error names the first word, or one of the fields
OPTIONS: dict[str, dict[str, Any]] = {
    "several": {
        "instructions": "Be kind.",
        "truncation": "auto",
        "store": False,
        "metadata": {"a": "b"},
        "service_tier": "flex",
        "timeout": 60,
        "cache_salt": "s",
        "presence_penalty": 1.0,
        "logit_bias": {"5": -100},
    },
    "text json_schema": {"text": {"format": SCHEMA}},
    "text json_object": {"text": {"format": {"type": "json_object"}}},
    "guided_regex": {"guided_regex": "[a-z ]+"},
    "tools": {"tools": FLAT},
    "tools strict": {"tools": [{**FLAT[0], "strict": True}]},
    "tools custom": {"tools": [{"type": "custom", "name": "sh"}]},
    "tools grammar": {"tools": [{"type": "custom", "name": "sh", "format": GRAMMAR}]},
    "tools hosted": {"tools": [{"type": "web_search"}]},
    "tool_choice none": {"tools": FLAT, "tool_choice": "none"},
    "tool_choice required": {"tools": FLAT, "tool_choice": "required"},
    "tool_choice named": {
        "tools": FLAT,
        "tool_choice": {"type": "function", "name": "get_time"},
    },
    "parallel_tool_calls": {"tools": FLAT, "parallel_tool_calls": False},
    "reasoning low": {"reasoning": {"effort": "low"}},
    "reasoning none": {"reasoning": {"effort": "none"}},
    "reasoning summary": {"reasoning": {"summary": "auto"}},
    "thinking_token_budget": {"thinking_token_budget": 30},
    "enable_thinking": {"enable_thinking": False},
    "include": {"include": ["message.output_text.logprobs", "reasoning.encrypted_content"]},
    "include_reasoning": {"include_reasoning": False},
    "top_logprobs": {"top_logprobs": 2},
    "max_output_tokens": {"max_output_tokens": 9},
    "temperature": {"temperature": 0, "top_p": 0.5, "top_k": 4, "seed": 1},
    "stop": {"stop": ["o y"]},
    "stop_token_ids": {"stop_token_ids": [33]},
    "min_tokens": {"min_tokens": 3},
    "ignore_eos": {"ignore_eos": True, "max_output_tokens": 30},
    "include_effective": {"include_effective": True, "seed": 5},
}


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any] | None:
    """Both; None where they set one field to different values."""
    for name in set(one) & set(other):
        if isinstance(one[name], dict) and isinstance(other[name], dict):
            if set(one[name]) & set(other[name]):
                return None
        elif one[name] != other[name]:
            return None
    nested = {n: {**one[n], **other[n]} for n in set(one) & set(other) if isinstance(one[n], dict)}
    return {**one, **other, **nested}


@pytest.mark.parametrize("label", OPTIONS)
def test_with_every_other(model: Model, label: str) -> None:
    model.text = "<think>\nHm.\n</think>\n\nHello you."
    others = list(OPTIONS)[list(OPTIONS).index(label) :]
    worked = 0
    for other in others:
        body = _merged(OPTIONS[label], OPTIONS[other])
        if body is None:
            continue
        body = {"input": "Hi", "seed": 3, **body}
        answer = model.http.post("/v1/responses", json=body)
        assert answer.status_code in (200, 400), (label, other, answer.text)
        if answer.status_code == 200:
            streamed = stream(model.http, **body)[-1]["response"]
            assert without_ids(streamed) == without_ids(answer.json()), (label, other)
            worked += 1
            continue
        error = answer.json()["error"]
        assert other != label, (label, error)
        names = {*body, label.split()[0], other.split()[0], "stop_token_ids"}
        assert error["param"].split(".")[0].split("[")[0] in names, (label, other, error)
    assert worked or len(others) < 3


def test_options_are_many() -> None:
    assert len(list(itertools.combinations(OPTIONS, 2))) > 300
