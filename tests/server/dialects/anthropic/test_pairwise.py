"""Every parameter of a message with every other one: it works in stream and not alike, or it is a
400 that names one of the two."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.anthropic_client import PATH, agree
from helpers.marked_model import ASK, PARAMETERS, Model, marked_model

TOOL = {"name": "f", "input_schema": PARAMETERS}
SCHEMA = {"format": {"type": "json_schema", "schema": PARAMETERS}}
PREFILL = [*ASK, {"role": "assistant", "content": "So"}]

# label -> the fields it sets; its first word is what errors name
ALL: dict[str, dict[str, Any]] = {
    "tools": {"tools": [TOOL]},
    "tools strict": {"tools": [{**TOOL, "strict": True}]},
    "tool_choice any": {"tools": [TOOL], "tool_choice": {"type": "any"}},
    "tool_choice tool": {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}},
    "tool_choice one": {
        "tools": [TOOL],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    },
    "tool_choice none": {"tools": [TOOL], "tool_choice": {"type": "none"}},
    "thinking enabled": {"thinking": {"type": "enabled", "budget_tokens": 9}},
    "thinking adaptive": {"thinking": {"type": "adaptive", "display": "omitted"}},
    "thinking disabled": {"thinking": {"type": "disabled"}},
    "output_config.effort": {"output_config": {"effort": "low"}},
    "output_config.format": {"output_config": SCHEMA},
    "messages": {"messages": PREFILL},
    "max_tokens": {"max_tokens": 7},
    "stop_sequences": {"stop_sequences": ["zzz"]},
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.5},
    "top_k": {"top_k": 3},
    "system": {"system": "Be short."},
    "metadata": {"metadata": {"user_id": "a"}},
}
# Pairs of which each asks for what the other excludes; all others work.
EXCLUDED = {
    frozenset(pair)
    for pair in (
        ("thinking enabled", "output_config.effort"),  # both bound it
        ("thinking disabled", "output_config.effort"),
        ("thinking enabled", "max_tokens"),  # the budget is more
        *(("messages", other) for other in (
            "thinking enabled", "output_config.effort", "output_config.format", "tools strict",
            "tool_choice any", "tool_choice tool", "tool_choice one")),
    )
}  # fmt: skip
TEXT = '{"city": "x"}'
CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "x"}}\n</tool_call>'


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with marked_model() as made:
        yield made


@pytest.mark.parametrize("one", ALL)
def test_pairs(model: Model, one: str) -> None:
    for other in ALL:
        pair = {**ALL[one], **ALL[other]}
        both = [ALL[one], ALL[other]]
        shared = both[0].keys() & both[1].keys()
        if any(both[0][key] != both[1][key] for key in shared):
            continue  # two values of one field
        body = {"messages": ASK, "max_tokens": 200, **pair}
        if frozenset((one, other)) in EXCLUDED:
            answer = model.http.post(PATH, json=body)
            assert answer.status_code == 400, (one, other)
            message = answer.json()["error"]["message"]
            assert any(name.split()[0] in message for name in (one, other)), message
            continue
        for text in ("some words", TEXT, CALL, f"<think>\nhm\n</think>\n\n{TEXT}"):
            model.text = text
            agree(model.http, body)


def test_each_pair_is_either() -> None:
    assert all(len(pair) == 2 and pair <= ALL.keys() for pair in EXCLUDED)
    assert len(list(itertools.combinations(ALL, 2))) > 10 * len(EXCLUDED)
