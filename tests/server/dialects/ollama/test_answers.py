"""Ollama's chat and generate: answers, streamed and whole, and what becomes of a request."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from helpers.marked_model import ASK, PARAMETERS, PARIS, TIME, TOOLS
from helpers.ollama_api import DURATIONS, Ollama

from tidemill.contract.program import Grammar


def test_a_chat_is_streamed_unless_it_says_otherwise(ollama: Ollama) -> None:
    answer = ollama.chat("Hello there", options={"temperature": 0})
    assert answer["message"] == {"role": "assistant", "content": "Hello there"}
    assert (answer["done"], answer["done_reason"], answer["eval_count"]) == (True, "stop", 12)
    assert answer["model"] == "tiny" and answer["created_at"].endswith("Z")


def test_durations_are_measured(ollama: Ollama) -> None:
    ollama.engine.step_seconds = 0.01
    try:
        began = time.monotonic_ns()
        answer = ollama.chat("twelve chars")
        took = time.monotonic_ns() - began
    finally:
        ollama.engine.step_seconds = 0.0
    assert answer["prompt_eval_count"] == len(ollama.engine.requests[-1].prompt_token_ids)
    assert all(type(answer[name]) is int for name in DURATIONS)
    assert answer["prompt_eval_duration"] >= 10 * 10**6  # a step
    assert answer["eval_duration"] >= 100 * 10**6  # the steps after the first
    parts = sum(answer[name] for name in DURATIONS[1:])
    assert parts <= answer["total_duration"] <= took


def test_calls_come_whole_with_arguments_as_objects(ollama: Ollama) -> None:
    message = ollama.chat(f"Let me see.\n{PARIS}\n{TIME}", tools=TOOLS)["message"]
    assert [call["function"] for call in message["tool_calls"]] == [
        {"index": 0, "name": "get_weather", "arguments": {"city": "Paris"}},
        {"index": 1, "name": "get_time", "arguments": {"city": "Zürich"}},
    ]
    assert message["content"].strip() == "Let me see."
    lines = ollama.lines("/api/chat", messages=ASK, tools=TOOLS)
    assert sum("tool_calls" in line["message"] for line in lines) == 2


def test_a_call_that_is_none_is_said(ollama: Ollama) -> None:
    text = '<tool_call>\n{"name": "launch", "arguments": {}}\n</tool_call>'
    message = ollama.chat(text, tools=TOOLS)["message"]
    assert "tool_calls" not in message and len(message["tool_call_errors"]) == 1


def test_thinking_is_apart(ollama: Ollama) -> None:
    message = ollama.chat("<think>\nhm\n</think>\n\nYes.", think=True)["message"]
    assert message["thinking"].strip() == "hm" and message["content"] == "Yes."
    ollama.model.text = "Yes."
    assert ollama.chat("Yes.", think=False)["message"] == {"role": "assistant", "content": "Yes."}
    leveled = ollama.chat("<think>\nhm\n</think>\n\nYes.", think="low")["message"]
    assert leveled["thinking"].strip() == "hm"


@pytest.mark.parametrize(
    ("value", "kind"), [("json", "json_object"), (PARAMETERS, "json_schema"), ("", None)]
)
def test_format_is_enforced(ollama: Ollama, value: Any, kind: str | None) -> None:
    ollama.chat('{"city": "Rome"}', format=value)
    phases = ollama.engine.requests[-1].program.phases
    assert [p.kind for p in phases if isinstance(p, Grammar)] == ([] if kind is None else [kind])


def test_options_become_parameters(ollama: Ollama) -> None:
    options = {
        **{"temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "seed": 3},
        **{"num_predict": 4, "stop": ["q", "x"], "repeat_penalty": 1.5, "repeat_last_n": -1},
        **{"presence_penalty": 0.25, "frequency_penalty": 0.75, "num_ctx": 4096, "num_keep": 4},
        **{"num_gpu": 99, "num_thread": 4, "use_mmap": True, "mirostat": 0, "typical_p": 1.0},
    }
    answer = ollama.chat("abcdefgh", options=options)
    assert (answer["message"]["content"], answer["done_reason"]) == ("abcd", "length")
    sampling = ollama.engine.requests[-1].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 7, 0.9)
    assert (sampling.min_p, sampling.seed, sampling.max_tokens) == (0.1, 3, 4)
    assert (sampling.stop, sampling.repetition_penalty) == (("q", "x"), 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.25, 0.75)
    ollama.chat("ab", options={"seed": -1, "num_predict": -1, "repeat_last_n": 0})
    sampling = ollama.engine.requests[-1].sampling
    assert sampling.seed != -1 and sampling.repetition_penalty == 1.0


def test_num_ctx_bounds_prompt_and_answer(ollama: Ollama) -> None:
    used = ollama.chat("a" * 40)["prompt_eval_count"]
    answer = ollama.chat("a" * 40, options={"num_ctx": used + 9, "num_predict": 500})
    assert (answer["eval_count"], answer["done_reason"]) == (9, "length")
    assert "context" in ollama.refused(options={"num_ctx": used - 1})
    assert "8192" in ollama.refused(options={"num_ctx": 8193})


def test_the_oldest_messages_are_left_out_when_asked(ollama: Ollama) -> None:
    old = [{"role": role, "content": "x" * 300} for role in ("user", "assistant")]
    body = {"messages": [*old, *ASK], "options": {"num_ctx": 300}}
    assert "tokens" in ollama.refused(**body)
    answer = ollama.chat("ok", truncate=True, **body)
    assert answer["dropped_messages"] == [0, 1] and answer["message"]["content"] == "ok"


def test_logprobs(ollama: Ollama) -> None:
    entries = ollama.chat("ab", logprobs=True, top_logprobs=1)["logprobs"]
    assert [entry["token"] for entry in entries[:2]] == ["a", "b"]
    assert entries[0]["top_logprobs"][0].keys() == {"token", "logprob", "bytes"}


def test_results_find_their_calls(ollama: Ollama) -> None:
    calls = [{"function": {"name": t["function"]["name"], "arguments": {}}} for t in TOOLS]
    results = [
        {"role": "tool", "tool_name": "get_time", "content": "noon"},
        {"role": "tool", "content": "rain"},
    ]
    asked = [*ASK, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    ollama.chat("Rain at noon.", messages=asked, tools=TOOLS)
    prompt = ollama.model.prompt()
    assert prompt.index("rain") < prompt.index("noon")  # in the order of the calls


def test_generate_frames_its_prompt_unless_it_is_raw(ollama: Ollama) -> None:
    ollama.model.text = "fine"
    answer = ollama.both("/api/generate", model="tiny", prompt="How?", system="Be brief.")
    assert answer["response"] == "fine"
    assert ollama.model.prompt().startswith("<|im_start|>system\nBe brief.")
    ollama.both("/api/generate", model="tiny", prompt="How?", raw=True)
    assert ollama.model.prompt() == "How?"
    thought = "<think>\nhm\n</think>\n\nYes."
    ollama.model.text = thought
    answer = ollama.both("/api/generate", model="tiny", prompt="How?", think=True)
    assert (answer["thinking"].strip(), answer["response"]) == ("hm", "Yes.")


def test_without_a_prompt_the_model_is_loaded_or_unloaded(ollama: Ollama) -> None:
    count = len(ollama.engine.requests)
    for path, empty in (("chat", {"messages": []}), ("generate", {})):
        for keep_alive, reason in ((None, "load"), (-1, "load")):
            body = {"model": "tiny", **empty, "keep_alive": keep_alive}
            answer = ollama.http.post(f"/api/{path}", json=body).json()
            assert (answer["done"], answer["done_reason"]) == (True, reason)
    assert len(ollama.engine.requests) == count


def test_a_failure_within_a_stream_is_its_last_line(ollama: Ollama) -> None:
    ollama.model.text = "Hello"
    ollama.engine.fail_after = 2
    lines = ollama.lines("/api/chat", model="tiny", messages=ASK)
    assert list(lines[-1]) == ["error"]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"options": {"temperature": 1e9}}, "options.temperature"),
        ({"options": {"repeat_penalty": 0.0}}, "options.repeat_penalty"),
        ({"options": {"mirostat": 1}}, "options.mirostat"),
        ({"options": {"tfs_z": 0.5}}, "options.tfs_z"),
        ({"options": {"typical_p": 1.5}}, "options.typical_p"),
        ({"options": {"repeat_last_n": -2, "repeat_penalty": 1.2}}, "options.repeat_last_n"),
        ({"options": {"tempurature": 1}}, "options.tempurature"),
        ({"options": {"num_predict": "4"}}, "options.num_predict"),
        (
            {"messages": [{"role": "user", "images": ["aGk="], "content": "a"}]},
            "messages[0].images",
        ),
        ({"think": "huge"}, "think"),
        ({"format": "xml"}, "format"),
        ({"format": 3}, "format"),
        ({"shift": True}, "shift"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"system": "a"}, "system"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"seed": 1}, "seed"),
    ],
)
def test_what_is_refused_is_named(ollama: Ollama, body: dict[str, Any], name: str) -> None:
    assert name in ollama.refused(**body)


@pytest.mark.parametrize("name", ["images", "context", "template"])
def test_generate_refuses_by_name(ollama: Ollama, name: str) -> None:
    value = {"images": ["aGk="], "context": [1, 2], "template": "{{ .Prompt }}"}[name]
    assert name in ollama.refused("/api/generate", **{name: value})
    ollama.model.text = "ok"
    neutral: Any = {"images": [], "context": [], "template": ""}[name]
    ollama.both("/api/generate", model="tiny", prompt="a", **{name: neutral})


FEATURES: dict[str, dict[str, Any]] = {
    "format": {"format": PARAMETERS},
    "think": {"think": True},
    "options": {"options": {"temperature": 0, "num_predict": 30, "num_ctx": 4096}},
    "stop": {"options": {"stop": ["q"]}},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "truncate": {"truncate": True},
    "keep_alive": {"keep_alive": -1},
    "tools": {"tools": TOOLS},
    "suffix": {"suffix": "b"},
    "raw": {"raw": True},
    "system": {"system": "Be brief."},
}


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_every_pair_of_parameters_works_or_is_refused_by_name(ollama: Ollama, path: str) -> None:
    ollama.model.text = '<think>\nhm\n</think>\n\n{"city": "Rome"}'
    asked: dict[str, Any] = {"messages": ASK} if path == "/api/chat" else {"prompt": "a"}
    worked = 0
    for one, other in itertools.combinations(FEATURES, 2):
        body = {"model": "tiny", **asked, **FEATURES[one], **FEATURES[other]}
        answer = ollama.http.post(path, json={**body, "stream": False})
        if answer.status_code == 200:
            ollama.both(path, **body)
            worked += 1
        else:
            error = answer.json()["error"]
            assert answer.status_code == 400 and (one in error or other in error), (body, error)
    assert worked >= 20
