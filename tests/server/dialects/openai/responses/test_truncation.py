"""truncation: auto leaves out as little of the oldest as it must, and says what."""

from __future__ import annotations

from typing import Any

from helpers.marked_model import TOOLS, Model
from helpers.responses_api import both, refused

from tidemill.generation.dropping import cuts_of

FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
LONG = "x" * 1500


def _roles(text: str) -> list[dict[str, str]]:
    names = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": names[letter]} for letter in text]


def test_cuts_keep_instructions_and_begin_with_a_user() -> None:
    assert cuts_of(_roles("suauau")) == [(1, 2), (1, 2, 3, 4)]
    assert cuts_of(_roles("uau")) == [(0, 1)]
    assert cuts_of(_roles("duaud")) == [(1, 2)]
    # Behind the last user's message whole steps go, each with the results of its calls.
    assert cuts_of(_roles("suauatatta")) == [
        (1, 2),
        (1, 2, 4, 5),
        (1, 2, 4, 5, 6, 7, 8),
    ]
    assert cuts_of(_roles("u")) == [] and cuts_of(_roles("su")) == []
    assert cuts_of(_roles("aa")) == [(0,)]


def _history(turns: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for turn in range(turns):
        items.append({"id": f"msg_u{turn}", "role": "user", "content": f"question {turn} {LONG}"})
        items.append({"id": f"msg_a{turn}", "role": "assistant", "content": f"answer {turn}"})
    return [*items, {"id": "msg_last", "role": "user", "content": "and now?"}]


def test_what_fits_is_left_alone(model: Model) -> None:
    model.text = "Hello."
    response = both(model.http, input=_history(2), truncation="auto")
    assert response["truncation"] == "auto" and "notices" not in response


def test_the_oldest_turns_go_and_are_named(model: Model) -> None:
    model.text = "Hello."
    items = _history(8)
    assert refused(model.http, input=items)["code"] == "context_length_exceeded"
    body: dict[str, Any] = {"input": items, "instructions": "Be kind.", "truncation": "auto"}
    response = both(model.http, **body)
    (notice,) = response["notices"]
    assert notice["type"] == "input_truncated"
    dropped = len(notice["items"]) // 2
    assert notice["items"] == [item["id"] for item in items[: 2 * dropped]]
    prompt = model.prompt()
    assert "Be kind." in prompt and "and now?" in prompt
    assert f"question {dropped} " in prompt and f"question {dropped - 1} " not in prompt
    # No more than necessary: one turn more would not leave an eighth of the context.
    used = response["usage"]["input_tokens"]
    assert 8192 - 8192 // 8 - 1600 < used <= 8192 - 8192 // 8
    # A bound on the output needs its room.
    less = both(model.http, **body, max_output_tokens=5000)
    assert less["usage"]["input_tokens"] <= 8192 - 5000
    assert len(less["notices"][0]["items"]) > len(notice["items"])


def test_steps_of_an_agent_go_with_their_results(model: Model) -> None:
    model.text = "Done."
    items: list[dict[str, Any]] = [{"role": "user", "content": "do it"}]
    for step in range(8):
        call = {"type": "function_call", "call_id": f"c{step}", "name": "get_time"}
        items.append({**call, "arguments": '{"city": "x"}', "id": f"fc_{step}"})
        output = {"type": "function_call_output", "call_id": f"c{step}", "id": f"fco_{step}"}
        items.append({**output, "output": f"result {step} {LONG}"})
    response = both(model.http, input=items, tools=FLAT, truncation="auto")
    dropped = response["notices"][0]["items"]
    assert dropped[:2] == ["fc_0", "fco_0"] and len(dropped) % 2 == 0
    prompt = model.prompt()
    assert "do it" in prompt and "result 7 " in prompt and "result 0 " not in prompt


def test_what_never_fits_is_refused(model: Model) -> None:
    for body in (
        {"input": "x" * 10_000},
        {"input": [*_history(1)[:2], {"role": "user", "content": "x" * 9000}]},
        {"input": "x", "max_output_tokens": 8192},
    ):
        error = refused(model.http, truncation="auto", **body)
        assert error["code"] == "context_length_exceeded", error
