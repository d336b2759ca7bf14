"""Thinking over HTTP, streamed and not: split, counted, bounded, ended, sent back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.assembled import agree, events, joined, whole
from helpers.marked_model import ASK, Model, marked_model

from tidemill.contract.program import Forced, FreeText, Grammar, Phase
from tidemill.text.template import ChatTemplate

THOUGHT = "<think>\nHm, so.\n</think>\n\nIt rains."
# Opens the thinking itself, as DeepSeek R1's does; it has no switch.
OPENED = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}{% endfor %}"
    "{% if add_generation_prompt %}<think>\n{% endif %}"
)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with marked_model() as made:
        yield made


@pytest.fixture(scope="module")
def opened() -> Iterator[Model]:
    with marked_model(template=ChatTemplate(OPENED)) as made:
        yield made


def phases(model: Model) -> tuple[Phase, ...]:
    return model.engine.requests[-1].program.phases


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def test_split_under_both_names(model: Model) -> None:
    message = model.ask(THOUGHT, enable_thinking=True)["message"]
    assert message["reasoning_content"] == message["reasoning"] == "Hm, so."
    assert message["content"] == "It rains."
    assert model.engine.requests[-1].program.free
    assert model.prompt().endswith("assistant\n")


def test_off_is_the_prompts_business(model: Model) -> None:
    for body in (
        {"enable_thinking": False},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {},
    ):
        message = model.ask("It rains.", **body)["message"]
        assert message["content"] == "It rains." and "reasoning" not in message
        assert model.prompt().endswith("</think>\n\n")


def test_tokens_are_counted(model: Model) -> None:
    for body in ({}, {"n": 2}):
        model.text = THOUGHT
        asked = {"messages": ASK, "enable_thinking": True, **body}
        usage = whole(model.http, asked)["usage"]
        marked = len("<think>\nHm, so.\n</think>")
        # Every byte is a token here; the mark's first six cannot be known for one before the last.
        each = marked - (len("<think>") - 1)
        assert usage["completion_tokens_details"]["reasoning_tokens"] == each * body.get("n", 1)
        last = events(model.http, {**asked, "stream_options": {"include_usage": True}})[-1]
        assert last["usage"] == usage


def test_a_template_that_opens_the_thinking(opened: Model) -> None:
    choice = opened.ask("Hm.\n</think>\n\nIt rains.")
    assert choice["message"]["reasoning_content"] == "Hm."
    assert choice["message"]["content"] == "It rains."
    opened.ask("x</think>y", thinking_token_budget=7, guided_regex="a")
    first, gap, ruled = phases(opened)
    assert isinstance(first, FreeText) and not first.opened_by
    assert first.until == (ids("</think>"),) and first.budget == 7
    assert first.then == ids("\n</think>") and gap == Forced(ids("\n\n"))
    assert isinstance(ruled, Grammar)
    for body in ({"enable_thinking": False}, {"reasoning_effort": "none"}):
        assert "cannot be turned off" in opened.refusal(**body)["message"]


def test_thinking_that_never_ends(model: Model) -> None:
    for text, reasoning in (("<think>\nround and", "round and"), ("<think>\n", None)):
        choice = model.ask(text + "!" * 300, enable_thinking=True, max_tokens=len(text))
        assert choice["finish_reason"] == "length" and choice["message"]["content"] == ""
        assert choice["message"].get("reasoning_content") == reasoning


def test_budgets(model: Model) -> None:
    for body, budget in (
        ({"thinking_token_budget": 20}, 20),
        ({"thinking_budget": 20}, 20),
        ({"reasoning_effort": "low"}, 512),
        ({"reasoning_effort": "high"}, 8192),
    ):
        model.ask(THOUGHT, **body)
        begin, thinking, gap, rest = phases(model)
        assert begin == Forced(ids("<think>")) and rest == FreeText()
        assert isinstance(thinking, FreeText) and thinking.budget == budget - len("<think>")
        assert thinking.then == ids("\n</think>") and gap == Forced(ids("\n\n"))
    model.text = THOUGHT
    body = {"messages": ASK, "thinking_budget": 20, "include_effective": True}
    applied = whole(model.http, body)["tidemill"]
    assert applied["thinking_token_budget"] == 20 and applied["reasoning_format"] == "</think>"


def test_a_constraint_starts_behind_the_thinking(model: Model) -> None:
    model.ask('<think>\nx\n</think>\n\n{"a": 1}', enable_thinking=True, guided_json={})
    assert [type(p) for p in phases(model)] == [Forced, FreeText, Forced, Grammar]
    model.ask('{"a": 1}', guided_json={})
    assert [type(p) for p in phases(model)] == [Grammar], "the prompt closes the thinking"


def test_where_nothing_says_whether_it_thinks() -> None:
    template = OPENED.replace("<think>\n{% endif %}", "{% endif %}")
    with marked_model(template=ChatTemplate(template)) as model:
        model.ask('{"a": 1}', guided_json={})
        first, ruled = phases(model)
        assert isinstance(first, FreeText) and first.opened_by == (ord("<"),)
        assert isinstance(ruled, Grammar)


def test_it_can_be_left_out(model: Model) -> None:
    choice = model.ask(THOUGHT, enable_thinking=True, include_reasoning=False)
    assert "reasoning" not in choice["message"] and choice["message"]["content"] == "It rains."
    chunks = events(model.http, {"messages": ASK, "include_reasoning": False})
    assert "reasoning" not in joined(chunks)[0]["message"]


def test_stop_strings_and_logprobs(model: Model) -> None:
    choice = model.ask(THOUGHT, enable_thinking=True, stop=["so", "ain"])
    assert choice["message"]["content"] == "It r" and choice["finish_reason"] == "stop"
    assert choice["message"]["reasoning"] == "Hm, so."
    model.text = THOUGHT
    body: dict[str, Any] = {"messages": ASK, "enable_thinking": True, "logprobs": True}
    entries = agree(model.http, body)["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(e["bytes"]) for e in entries).startswith(THOUGHT.encode())


def test_history(model: Model) -> None:
    said = {"role": "assistant", "content": "It rains.", "reasoning_content": "Hm, so."}
    model.ask("x", messages=[*ASK, said, *ASK])
    assert "Hm, so." not in model.prompt(), "the template shows no thinking of earlier turns"
    for name in ("reasoning_content", "reasoning"):
        now = {"role": "assistant", "content": "It rains.", name: "Hm, so."}
        model.ask("x", messages=[*ASK, now])
        assert "<think>\nHm, so.\n</think>" in model.prompt()


def test_litellms_history(model: Model) -> None:
    said = {"role": "assistant", "content": "It rains."}
    kept = {"refusal": None, "reasoning": "Hm, so."}
    model.ask("x", messages=[*ASK, said | {"provider_specific_fields": kept}])
    assert "<think>\nHm, so.\n</think>" in model.prompt()
    for wrong, named in (
        (said | {"provider_specific_fields": {"citations": []}}, "citations"),
        (said | {"reasoning": "No.", "provider_specific_fields": kept}, "reasoning"),
        (said | {"reasoning_content": "No.", "provider_specific_fields": kept}, "reasoning"),
        (ASK[0] | {"provider_specific_fields": kept}, "reasoning"),
    ):
        error = model.refusal(messages=[*ASK, wrong])
        assert error["param"].startswith("messages[1]") and named in error["message"], error


def test_contradictions(model: Model) -> None:
    for body, names in (
        ({"enable_thinking": False, "thinking_budget": 5}, ("enable_thinking", "thinking_budget")),
        ({"enable_thinking": True, "reasoning_effort": "none"},
         ("enable_thinking", "reasoning_effort")),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
         ("enable_thinking", "chat_template_kwargs.enable_thinking")),
        ({"reasoning_effort": "low", "thinking_budget": 5},
         ("reasoning_effort", "thinking_budget")),
    ):  # fmt: skip
        message = model.refusal(**body)["message"]
        assert all(name in message for name in names)
    going_on = {
        "messages": [*ASK, {"role": "assistant", "content": "It"}],
        "continue_final_message": True,
    }
    for body in ({"thinking_budget": 5}, {"enable_thinking": True}):
        error = model.refusal(**going_on, **body)
        assert "continue_final_message" in error["message"] and error["param"] in body
    assert model.ask(" rains.", **going_on)["message"]["content"] == " rains."


def test_documents_are_returned_as_they_are_written(model: Model) -> None:
    for written in (" \n[1] ", '"<think>"', '"<tool_call>{}</tool_call></think>"', "  ", "x < "):
        assert model.ask(written, guided_json={})["message"]["content"] == written
        assert model.ask("<think>", guided_regex="<.*")["message"]["content"] == "<think>"
        thought = f"<think>\nHm.\n</think>\n\n{written}"
        message = model.ask(thought, guided_json={}, enable_thinking=True)["message"]
        assert message["content"] == written and message["reasoning"] == "Hm."


def test_an_answer_may_speak_of_the_marks(model: Model) -> None:
    text = "Write <think> and </think> around it."
    assert model.ask(text)["message"]["content"] == text
