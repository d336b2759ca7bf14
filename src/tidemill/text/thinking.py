"""Resolves all request fields about thinking to one decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.base.errors import bad_request
from tidemill.text.abilities import SWITCHES, Abilities

FIELDS = (
    *("enable_thinking", "reasoning_effort", "thinking_token_budget", "thinking_budget"),
    "include_reasoning",
)
"""The request's fields that `read_thinking` reads."""

EFFORT_BUDGETS = {"low": 512, "medium": 2048, "high": 8192, "xhigh": 32768, "max": 131072}
"""Thinking tokens by `reasoning_effort`, for templates that do not use `reasoning_effort`."""

_OFF = ("none", "minimal")
EFFORTS = (*_OFF, *EFFORT_BUDGETS)


@dataclass(frozen=True, slots=True)
class Thinking:
    """One request's thinking options.

    Attributes:
        variables: for the chat template.
        wanted: True or False if the request decides whether to think; None: the model decides.
        by: the field that decided it.
        budget: maximum number of thinking tokens, marks included; None: no limit.
        budget_by: the field that set the budget.
        shown: the response includes the thinking.
    """

    variables: Mapping[str, Any] = field(default_factory=dict)
    wanted: bool | None = None
    by: str = ""
    budget: int | None = None
    budget_by: str = ""
    shown: bool = True


@dataclass(frozen=True, slots=True)
class ThinkingRequest:
    """What a request says of thinking, before a model is known; fields are named for errors.

    Attributes:
        enable: whether to think; None: not said.
        effort: one of `EFFORTS`, or None.
        budget: maximum number of thinking tokens, or None.
        shown: the response includes the thinking.
        off_by_default: a request that says nothing means no thinking, where the model's can be
            turned off.
        enable_by, effort_by, budget_by: the fields that say so, as the client knows them.
    """

    enable: bool | None = None
    effort: str | None = None
    budget: int | None = None
    shown: bool = True
    off_by_default: bool = False
    enable_by: str = "enable_thinking"
    effort_by: str = "reasoning_effort"
    budget_by: str = "thinking_token_budget"


def read_thinking(fields: Mapping[str, Any]) -> ThinkingRequest:
    """Read the fields of `FIELDS`; None for absent ones.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field, or both of two that contradict.
    """
    budget_by, budget = _budget(fields)
    effort, enable = fields.get("reasoning_effort"), fields.get("enable_thinking")
    if effort is not None and effort not in EFFORTS:
        raise bad_request(
            "reasoning_effort", f"reasoning_effort must be one of {', '.join(EFFORTS)}"
        )
    return ThinkingRequest(
        None if enable is None else bool(enable),
        effort,
        budget,
        fields.get("include_reasoning") is not False,
        budget_by=budget_by or "thinking_token_budget",
    )


def thinking_of(
    asked: ThinkingRequest,
    abilities: Abilities,
    *,
    thinks: bool,
    kwargs: Mapping[str, Any] | None = None,
) -> Thinking:
    """Resolve a request's thinking options for a model.

    Args:
        asked: the request's.
        abilities: of the chat template.
        thinks: the format's thinking delimiters are known.
        kwargs: the request's `chat_template_kwargs`.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field, or both of two that contradict.
    """
    # For a model that does not think, the switch variable is an ordinary template variable.
    switches = _switches(asked, kwargs or {} if thinks else {})
    budget, effort, effort_by = asked.budget, asked.effort, asked.effort_by
    budget_by = "" if budget is None else asked.budget_by
    variables: dict[str, Any] = {}
    if effort is not None:
        if abilities.effort:
            if effort in _OFF:
                raise bad_request(
                    effort_by,
                    f"{effort_by} {effort}: this model's thinking cannot be turned off; "
                    f"send {', '.join(EFFORT_BUDGETS)}",
                )
            variables["reasoning_effort"] = abilities.known_effort(effort)
        else:
            switches.append((effort_by, effort not in _OFF))
            if effort in EFFORT_BUDGETS:
                if budget is not None:
                    raise _both(effort_by, budget_by, "both bound the thinking")
                budget_by, budget = effort_by, EFFORT_BUDGETS[effort]
    if budget is not None:
        switches.append((budget_by, True))
    by, wanted = _agreed(switches)
    if wanted is None and asked.off_by_default and thinks and abilities.switch is not None:
        wanted = False
    if wanted and not thinks:
        raise bad_request(by, f"{by}: this model does not think before it answers")
    if wanted is False and thinks and abilities.switch is None:
        raise bad_request(by, f"{by}: this model's thinking cannot be turned off")
    # `wanted` may be False for a model that does not think, whose template may use the variable.
    if wanted is not None and abilities.switch is not None:
        variables[abilities.switch] = wanted
    return Thinking(variables, wanted, by, budget, budget_by, asked.shown)


def _switches(asked: ThinkingRequest, kwargs: Mapping[str, Any]) -> list[tuple[str, bool]]:
    found = []
    for name in SWITCHES:
        value, param = kwargs.get(name), f"chat_template_kwargs.{name}"
        if value is None:
            continue
        if not isinstance(value, bool):
            # Templates would take "false" for true.
            kind = type(value).__name__
            raise bad_request(param, f"{param} must be true or false, got a value of type {kind}")
        found.append((param, value))
    if asked.enable is not None:
        found.insert(0, (asked.enable_by, asked.enable))
    return found


def _budget(fields: Mapping[str, Any]) -> tuple[str, int | None]:
    name, alias = "thinking_token_budget", "thinking_budget"
    values = {k: fields[k] for k in (name, alias) if fields.get(k) is not None}
    if len(values) == 2 and values[name] != values[alias]:
        raise _both(name, alias, "differ")
    if not values:
        return "", None
    by, budget = next(iter(values.items()))
    if budget < 1:
        raise bad_request(
            by, f"{by} must be at least 1; to turn thinking off send enable_thinking: false"
        )
    return by, budget


def _agreed(switches: list[tuple[str, bool]]) -> tuple[str, bool | None]:
    if not switches:
        return "", None
    by, wanted = switches[0]
    for other, value in switches[1:]:
        if value != wanted:
            raise _both(by, other, "contradict each other")
    return by, wanted


def _both(one: str, other: str, why: str) -> Exception:
    return bad_request(one, f"{one} and {other} {why}; send one of them")
