"""All request fields about thinking."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.base.errors import TidemillError
from tidemill.text.abilities import Abilities
from tidemill.text.thinking import EFFORT_BUDGETS, read_thinking, thinking_of

SWITCHED = Abilities(switch="enable_thinking")
ALWAYS = Abilities()
EFFORT = Abilities(effort=True)


@pytest.mark.parametrize(
    ("fields", "abilities", "variables", "wanted", "budget"),
    [
        ({}, SWITCHED, {}, None, None),
        ({"enable_thinking": True}, SWITCHED, {"enable_thinking": True}, True, None),
        ({"enable_thinking": False}, SWITCHED, {"enable_thinking": False}, False, None),
        ({"enable_thinking": True}, Abilities(switch="thinking"), {"thinking": True}, True, None),
        ({"enable_thinking": True}, ALWAYS, {}, True, None),
        ({"reasoning_effort": "none"}, SWITCHED, {"enable_thinking": False}, False, None),
        ({"reasoning_effort": "minimal"}, SWITCHED, {"enable_thinking": False}, False, None),
        *[
            ({"reasoning_effort": e}, SWITCHED, {"enable_thinking": True}, True, budget)
            for e, budget in EFFORT_BUDGETS.items()
        ],
        ({"reasoning_effort": "low"}, EFFORT, {"reasoning_effort": "low"}, None, None),
        ({"reasoning_effort": "xhigh"}, EFFORT, {"reasoning_effort": "high"}, None, None),
        (
            {"reasoning_effort": "xhigh"},
            Abilities(effort=True, words=frozenset({"xhigh"})),
            {"reasoning_effort": "xhigh"},
            None,
            None,
        ),
        ({"thinking_token_budget": 9}, SWITCHED, {"enable_thinking": True}, True, 9),
        ({"thinking_budget": 9}, ALWAYS, {}, True, 9),
        ({"thinking_budget": 9, "thinking_token_budget": 9}, ALWAYS, {}, True, 9),
    ],
)
def test_decisions(
    fields: dict[str, Any],
    abilities: Abilities,
    variables: dict[str, Any],
    wanted: bool | None,
    budget: int | None,
) -> None:
    found = thinking_of(read_thinking(fields), abilities, thinks=True)
    assert (found.variables, found.wanted, found.budget) == (variables, wanted, budget)
    assert found.shown


def test_off_is_what_a_model_that_does_not_think_does_anyway() -> None:
    for fields in ({"enable_thinking": False}, {"reasoning_effort": "none"}):
        assert thinking_of(read_thinking(fields), ALWAYS, thinks=False).wanted is False
    kwargs = {"enable_thinking": True}
    assert thinking_of(read_thinking({}), SWITCHED, thinks=False, kwargs=kwargs).wanted is None
    assert not thinking_of(read_thinking({"include_reasoning": False}), ALWAYS, thinks=False).shown


@pytest.mark.parametrize(
    ("fields", "abilities", "thinks", "names"),
    [
        ({"enable_thinking": True}, ALWAYS, False, ("enable_thinking",)),
        ({"reasoning_effort": "low"}, ALWAYS, False, ("reasoning_effort",)),
        ({"thinking_budget": 5}, ALWAYS, False, ("thinking_budget",)),
        ({"enable_thinking": False}, ALWAYS, True, ("enable_thinking",)),
        ({"reasoning_effort": "none"}, ALWAYS, True, ("reasoning_effort",)),
        ({"reasoning_effort": "none"}, EFFORT, True, ("reasoning_effort",)),
        ({"reasoning_effort": "most"}, SWITCHED, True, ("reasoning_effort",)),
        ({"thinking_token_budget": 0}, SWITCHED, True, ("thinking_token_budget",)),
        ({"thinking_budget": -1}, SWITCHED, True, ("thinking_budget",)),
        (
            {"thinking_budget": 1, "thinking_token_budget": 2},
            *(SWITCHED, True, ("thinking_budget", "thinking_token_budget")),
        ),
        (
            {"reasoning_effort": "low", "thinking_token_budget": 2},
            *(SWITCHED, True, ("reasoning_effort", "thinking_token_budget")),
        ),
        (
            {"enable_thinking": False, "thinking_token_budget": 2},
            *(SWITCHED, True, ("enable_thinking", "thinking_token_budget")),
        ),
        (
            {"enable_thinking": True, "reasoning_effort": "none"},
            *(SWITCHED, True, ("enable_thinking", "reasoning_effort")),
        ),
        (
            {"enable_thinking": False, "reasoning_effort": "high"},
            *(SWITCHED, True, ("enable_thinking", "reasoning_effort")),
        ),
    ],
)
def test_contradictions_name_the_fields(
    fields: dict[str, Any], abilities: Abilities, thinks: bool, names: tuple[str, ...]
) -> None:
    with pytest.raises(TidemillError) as caught:
        thinking_of(read_thinking(fields), abilities, thinks=thinks)
    assert caught.value.param in names
    assert all(name in caught.value.message for name in names)


def test_a_field_and_the_template_variable_must_agree() -> None:
    fields, kwargs = {"enable_thinking": True}, {"enable_thinking": False}
    with pytest.raises(TidemillError) as caught:
        thinking_of(read_thinking(fields), SWITCHED, thinks=True, kwargs=kwargs)
    assert "chat_template_kwargs.enable_thinking" in caught.value.message


@pytest.mark.parametrize("value", ["false", "true", 0, 1, [], 10**400])
def test_the_template_variable_is_a_boolean(value: object) -> None:
    with pytest.raises(TidemillError) as caught:
        thinking_of(read_thinking({}), SWITCHED, thinks=True, kwargs={"enable_thinking": value})
    assert caught.value.param == "chat_template_kwargs.enable_thinking"
    assert "true or false" in caught.value.message


def test_a_template_variable_that_is_null_decides_nothing() -> None:
    found = thinking_of(read_thinking({}), SWITCHED, thinks=True, kwargs={"enable_thinking": None})
    assert (found.wanted, found.variables) == (None, {})
