"""Every request parameter of structure, tools and thinking with every other parameter: it works in
stream and not alike, or it is a 400 that names both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.assembled import agree
from helpers.marked_model import ASK, PARAMETERS, TOOLS, Model, marked_model, tool

from tidemill.contract.program import FreeText, Grammar

NAMED = {"type": "function", "function": {"name": "get_time"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
TAGS = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": PARAMETERS, "end": "</f>"}],
    "triggers": ["<f>"],
}

# label -> the fields it sets. The first word of a label is the field that errors name.
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "response_format json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"schema": PARAMETERS}}
    },
    "response_format json_object": {"response_format": {"type": "json_object"}},
    "response_format structural_tag": {"response_format": TAGS},
    "guided_json": {"guided_json": PARAMETERS},
    "guided_regex": {"guided_regex": "a+"},
    "guided_choice": {"guided_choice": ["a", "b"]},
    "guided_grammar": {"guided_grammar": 'start: "a"'},
    "structured_outputs": {"structured_outputs": {"json": PARAMETERS}},
    "json_schema": {"json_schema": PARAMETERS},
    "grammar": {"grammar": 'root ::= "a"'},
}
FREE_TOOLS: dict[str, dict[str, Any]] = {
    "tools": {"tools": TOOLS},
    "tool_choice none": {"tools": TOOLS, "tool_choice": "none"},
}
RULED_TOOLS: dict[str, dict[str, Any]] = {
    "tools strict": {"tools": [tool("get_time", strict=True)]},
    "tool_choice allowed": {"tools": TOOLS, "tool_choice": ALLOWED},
    "parallel_tool_calls": {"tools": TOOLS, "parallel_tool_calls": False},
}
REQUIRED_TOOLS: dict[str, dict[str, Any]] = {
    "tool_choice required": {"tools": TOOLS, "tool_choice": "required"},
    "tool_choice named": {"tools": TOOLS, "tool_choice": NAMED},
}
THINKING_ON: dict[str, dict[str, Any]] = {
    "enable_thinking": {"enable_thinking": True},
    "chat_template_kwargs.enable_thinking": {"chat_template_kwargs": {"enable_thinking": True}},
    "reasoning_effort low": {"reasoning_effort": "low"},
    "thinking_token_budget": {"thinking_token_budget": 30},
    "thinking_budget": {"thinking_budget": 30},
}
THINKING_OFF: dict[str, dict[str, Any]] = {
    "enable_thinking off": {"enable_thinking": False},
    "reasoning_effort none": {"reasoning_effort": "none"},
}
CUTS: dict[str, dict[str, Any]] = {
    "stop": {"stop": "zzz"},
    "stop_token_ids": {"stop_token_ids": [7]},
    "ignore_eos": {"ignore_eos": True, "max_tokens": 90},
    "min_tokens": {"min_tokens": 2},
}
ENDS = CUTS.keys() - {"stop"}  # a stop string may cut a document
GOING_ON = {
    "continue_final_message": {
        "messages": [*ASK, {"role": "assistant", "content": "It"}],
        "continue_final_message": True,
    }
}
OTHERS: dict[str, dict[str, Any]] = {
    "include_reasoning": {"include_reasoning": False},
    "add_generation_prompt": {"add_generation_prompt": False},
    "n": {"n": 2},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "logit_bias": {"logit_bias": {"97": 5}},
    "temperature": {"temperature": 0},
    "frequency_penalty": {"frequency_penalty": 1.0},
    "seed": {"seed": 5},
    "max_tokens": {"max_tokens": 20},
    "include_effective": {"include_effective": True},
    "include_stop_str_in_output": {"include_stop_str_in_output": True, "stop": "zzz"},
    "skip_special_tokens": {"skip_special_tokens": False},
    "repetition_detection": {"repetition_detection": {"max_pattern_size": 9, "min_count": 9}},
    "return_token_ids": {"return_token_ids": True, "timings_per_token": True},
    "truncate_prompt_tokens": {"truncate_prompt_tokens": 5000},
}
ALL = {
    **CONSTRAINTS, **FREE_TOOLS, **RULED_TOOLS, **REQUIRED_TOOLS, **THINKING_ON, **THINKING_OFF,
    **CUTS, **GOING_ON, **OTHERS,
}  # fmt: skip
BUDGETS = ("reasoning_effort low", "thinking_token_budget", "thinking_budget")
# Languages of which a tool call cannot be an alternative.
ALONE = ("response_format structural_tag", "guided_grammar", "grammar")


def excluded(one: str, other: str) -> bool:
    """What docs/api.md says about a pair."""

    def among(first: Any, second: Any) -> bool:
        return (one in first and other in second) or (other in first and one in second)

    tools = {"tools", *RULED_TOOLS}
    return (
        among(CONSTRAINTS, CONSTRAINTS)
        or among(CONSTRAINTS, ENDS)
        or among(CONSTRAINTS, GOING_ON)
        or among({**RULED_TOOLS, **REQUIRED_TOOLS}, {*ENDS, *GOING_ON})
        or among(ALONE, tools)
        or among(THINKING_ON, THINKING_OFF)
        or among(THINKING_ON, GOING_ON)
        or among({"reasoning_effort low"}, {"thinking_token_budget", "thinking_budget"})
    )


def fields_of(one: str, other: str) -> dict[str, Any] | None:
    """The request of a pair; None where both set one field to different values."""
    first, second = ALL[one], ALL[other]
    if any(first[name] != second[name] for name in first.keys() & second.keys()):
        return None
    return {"messages": ASK, **first, **second}


PAIRS = [(one, other) for one, other in itertools.combinations(ALL, 2) if fields_of(one, other)]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with marked_model() as made:
        made.text = "<think>\nSo.\n</think>\n\nNo, nothing of that is true."
        yield made


@pytest.mark.parametrize("one", ALL)
def test_every_pair(model: Model, one: str) -> None:
    for first, other in PAIRS:
        if first != one:
            continue
        body = fields_of(one, other)
        assert body is not None
        if excluded(one, other):
            message = model.refusal(**body)["message"]
            for label in (one, other):
                name = label.split()[0]
                # What rules the calls may be said by the member that does.
                assert name in message or "tool" in name, (one, other, message)
        else:
            answer = agree(model.http, body)
            assert len(answer["choices"]) == body.get("n", 1), (one, other)
            check_program(model, {one, other})


def check_program(model: Model, labels: set[str]) -> None:
    """What should rule the output does."""
    phases = model.engine.requests[-1].program.phases
    ruled = labels & {*CONSTRAINTS, *RULED_TOOLS, *REQUIRED_TOOLS}
    if "tool_choice none" in labels:
        ruled -= RULED_TOOLS.keys()
    assert any(isinstance(p, Grammar) for p in phases) == bool(ruled), labels
    budget = labels & set(BUDGETS)
    bounded = [p for p in phases if isinstance(p, FreeText) and p.budget is not None]
    assert bool(bounded) == bool(budget), labels


def test_there_are_many_pairs() -> None:
    assert len(PAIRS) > 500 and sum(excluded(*pair) for pair in PAIRS) > 100
