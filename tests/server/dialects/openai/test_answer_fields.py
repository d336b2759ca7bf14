"""What an answer shows beside its text: token ids, timings, the prompt; and what was cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import EOS, ScriptedEngine

from tidemill.server.access.limits import Limits

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK = {"messages": [{"role": "user", "content": "hi"}]}
OUTPUT = [*b"tide", EOS]
PROMPT = [256, ord("x")]
RENDERED = [259, *b"hi", 257, 260]


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda request, choice: OUTPUT, cached_tokens=1)


@pytest.fixture(scope="module")
def http(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with serving(fake_context(engine)) as url, httpx.Client(base_url=url) as client:
        yield client


def whole(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def chunks(http: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = http.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    *events, done, _ = answer.text.split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event[6:]) for event in events]


def test_token_ids_of_completions(http: httpx.Client) -> None:
    asked = {"prompt": ["x", "y"], "n": 2, "return_token_ids": True}
    choices = whole(http, TEXT, **asked)["choices"]
    assert [c["prompt_token_ids"] for c in choices] == [PROMPT] * 2 + [[256, ord("y")]] * 2
    assert all(c["token_ids"] == OUTPUT for c in choices)
    streamed: dict[int, list[int]] = {}
    prompts = {}
    for chunk in chunks(http, TEXT, **asked):
        choice = chunk["choices"][0]
        streamed.setdefault(choice["index"], []).extend(choice["token_ids"])
        if "prompt_token_ids" in choice:
            assert prompts.setdefault(choice["index"], choice["prompt_token_ids"])
    assert streamed == dict.fromkeys(range(4), OUTPUT)
    assert [prompts[i] for i in range(4)] == [c["prompt_token_ids"] for c in choices]


def test_token_ids_of_a_chat(http: httpx.Client) -> None:
    asked = {**ASK, "return_token_ids": True}
    document = whole(http, CHAT, **asked)
    assert document["prompt_token_ids"] == RENDERED
    assert document["choices"][0]["token_ids"] == OUTPUT
    first, *rest = chunks(http, CHAT, **asked)
    assert first["prompt_token_ids"] == RENDERED
    assert not any("prompt_token_ids" in chunk for chunk in rest)
    assert [t for c in rest for t in c["choices"][0].get("token_ids", [])] == OUTPUT


def test_tokens_are_named_by_their_ids_where_that_is_asked(http: httpx.Client) -> None:
    names = [f"token_id:{token}" for token in OUTPUT]
    asked = {"prompt": "x", "logprobs": 1, "echo": True, "return_tokens_as_token_ids": True}
    lists = whole(http, TEXT, **asked)["choices"][0]["logprobs"]
    assert lists["tokens"] == [f"token_id:{token}" for token in PROMPT] + names
    assert list(lists["top_logprobs"][-1]) == [names[-1]]
    asked = {**ASK, "logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True}
    entries = whole(http, CHAT, **asked)["choices"][0]["logprobs"]["content"]
    assert [e["token"] for e in entries] == names
    assert entries[0]["bytes"] == [*b"t"]
    assert [t["token"] for t in entries[0]["top_logprobs"]] == [names[0], "token_id:64"]


def check(timings: dict[str, Any], prompt: int, output: int) -> None:
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (1, prompt, output)
    assert timings["prompt_ms"] > 0 and timings["predicted_ms"] >= 0
    rate = timings["prompt_n"] / timings["prompt_ms"]
    assert timings["prompt_per_second"] == pytest.approx(1e3 * rate)
    assert timings["prompt_per_token_ms"] == pytest.approx(1 / rate)


def test_timings(http: httpx.Client) -> None:
    for path, ask, prompt in ((TEXT, {"prompt": "x"}, 1), (CHAT, ASK, 4)):
        assert "timings" not in whole(http, path, **ask)
        check(whole(http, path, **ask, include_timings=True)["timings"], prompt, len(OUTPUT))
        *before, last = chunks(http, path, **ask, include_timings=True)
        check(last["timings"], prompt, len(OUTPUT))
        assert last["choices"] == [] and not any("timings" in chunk for chunk in before)
        options = {"include_usage": True, "continuous_usage_stats": True}
        asked = {**ask, "timings_per_token": True, "stream_options": options}
        every = chunks(http, path, **asked)
        assert all(c["timings"] and c["usage"] for c in every)
        counts = [c["timings"]["predicted_n"] for c in every]
        assert counts == sorted(counts) and counts[-1] == len(OUTPUT)
        plain = chunks(http, path, **ask, timings_per_token=True)
        assert all(c["timings"] and "usage" not in c for c in plain)


def test_a_chat_repeats_the_message_that_it_continues(http: httpx.Client) -> None:
    begun = {"role": "assistant", "content": [{"type": "text", "text": "The "}]}
    asked = {"messages": [*ASK["messages"], begun], "continue_final_message": True, "echo": True}
    assert whole(http, CHAT, **asked)["choices"][0]["message"]["content"] == "The tide"
    deltas = [c["choices"][0]["delta"].get("content", "") for c in chunks(http, CHAT, **asked)]
    assert "".join(deltas) == "The tide"
    assert whole(http, CHAT, **ASK, echo=True)["choices"][0]["message"]["content"] == "tide"


def test_what_was_cut_is_said(http: httpx.Client, engine: ScriptedEngine) -> None:
    for path, body, names in (
        (TEXT, {"prompt": ["abc", "d", "efg"], "truncate_prompt_tokens": 3},
         ["prompt[0]", "prompt[2]"]),
        (CHAT, {**ASK, "truncate_prompt_tokens": 3}, ["messages"]),
    ):  # fmt: skip
        answer = http.post(path, json=body)
        assert answer.json()["truncated"] == names
        assert answer.headers["x-tidemill-truncated"] == ", ".join(names)
        assert all(chunk["truncated"] == names for chunk in chunks(http, path, **body))
        assert all(len(r.prompt_token_ids) <= 3 for r in engine.requests[-len(names) :])
    fits = http.post(CHAT, json={**ASK, "truncate_prompt_tokens": -1})
    assert "truncated" not in fits.json() and "x-tidemill-truncated" not in fits.headers


def test_fields_that_say_something_by_another_name(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    whole(http, TEXT, prompt="x", do_sample=False, add_bos_token=False, n_probs=2)
    request = engine.requests[-1]
    assert (request.sampling.temperature, request.sampling.logprobs) == (0.0, 2)
    assert request.prompt_token_ids == (ord("x"),)
    assert whole(http, TEXT, prompt="x", return_full_text=True)["choices"][0]["text"] == "xtide"
    whole(http, CHAT, **ASK, add_special_tokens=True)
    assert engine.requests[-1].prompt_token_ids == (256, *RENDERED)


def test_a_prediction_is_drafted_and_changes_nothing(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    parts = [{"type": "text", "text": "ti"}, {"type": "text", "text": "de"}]
    for content in ("tide", parts):
        prediction = {"type": "content", "content": content}
        answer = whole(http, CHAT, **ASK, prediction=prediction)
        assert answer["choices"][0]["message"]["content"] == "tide"
        assert engine.requests[-1].prediction == tuple(b"tide")
        assert answer["usage"]["completion_tokens_details"] == {
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        }
    whole(http, CHAT, **ASK)
    assert engine.requests[-1].prediction == ()


def test_speculation_of_a_request(http: httpx.Client, engine: ScriptedEngine) -> None:
    for path, ask in ((TEXT, {"prompt": "x"}), (CHAT, ASK)):
        for asked in ("off", "auto", "draft", None):
            answer = whole(http, path, **ask, speculation=asked, include_effective=True)
            assert engine.requests[-1].speculation == asked
            assert answer["tidemill"]["speculation"] is None, "the engine verifies no drafts"
        bad = http.post(path, json={**ask, "speculation": "guess"})
        assert bad.status_code == 400 and bad.json()["error"]["param"] == "speculation"


def test_biases_of_texts(http: httpx.Client, engine: ScriptedEngine) -> None:
    for bias in ({"5": 1, "ab": False}, [[5, 1], ["ab", False]]):
        for path, ask in ((TEXT, {"prompt": "x"}), (CHAT, ASK)):
            whole(http, path, **ask, logit_bias=bias)
            assert engine.requests[-1].sampling.logit_bias == {5: 1.0, 97: -100.0, 98: -100.0}


def test_the_side_and_the_length_of_what_is_kept(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    for asked, kept in (
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, [256, *b"ab"]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, [256, *b"cd"]),
        ({"truncation_length": 7, "max_tokens": 5}, [256, *b"d"]),
        ({"truncation_length": 200, "max_tokens": 5}, [256, *b"abcd"]),
    ):
        answer = whole(http, TEXT, prompt="abcd", **asked)
        assert list(engine.requests[-1].prompt_token_ids) == kept
        assert ("truncated" in answer) == (len(kept) < 5)
    for wrong in (
        {"truncation_length": 5, "max_tokens": 5},
        {"truncation_length": 50, "truncate_prompt_tokens": 5},
    ):
        answer = http.post(TEXT, json={"prompt": "abcd", **wrong})
        assert answer.json()["error"]["param"] == "truncation_length"


def test_logprobs_of_all_tokens_where_the_server_gives_so_many() -> None:
    engine = ScriptedEngine(lambda request, choice: OUTPUT)
    limits = Limits(max_logprobs=engine.info.vocab_size)
    with serving(fake_context(engine, limits=limits)) as url, httpx.Client(base_url=url) as http:
        asked = {**ASK, "logprobs": True, "top_logprobs": -1}
        entries = whole(http, CHAT, **asked)["choices"][0]["logprobs"]["content"]
        assert engine.requests[-1].sampling.logprobs == engine.info.vocab_size
        assert all(len(e["top_logprobs"]) == engine.info.vocab_size for e in entries)


def test_more_logprobs_than_the_server_gives_are_refused(http: httpx.Client) -> None:
    for path, ask, name in (
        (CHAT, {**ASK, "logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (CHAT, {**ASK, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (TEXT, {"prompt": "x", "logprobs": -1}, "logprobs"),
        (TEXT, {"prompt": "x", "prompt_logprobs": 30}, "prompt_logprobs"),
    ):
        answer = http.post(path, json=ask)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == name, answer.text
        assert "20" in answer.json()["error"]["message"]


def test_bans_of_tokens_by_text_generation_webui_s_names(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    asked = {"logit_bias": {"7": 5, "8": 1}, "ban_eos_token": True}
    for name, value in (("custom_token_bans", "5, 7"), ("banned_tokens", [5, 7])):
        whole(http, TEXT, prompt="x", **asked, **{name: value})
        bias = {5: -100.0, 7: -100.0, 8: 1.0, EOS: -100.0}
        assert engine.requests[-1].sampling.logit_bias == bias
    for wrong in ("5, x", [-1], [1.5], {}):
        answer = http.post(TEXT, json={"prompt": "x", "custom_token_bans": wrong})
        assert answer.json()["error"]["param"] == "custom_token_bans"
    ruled = {"prompt": "x", "ban_eos_token": True, "guided_regex": "a+"}
    assert http.post(TEXT, json=ruled).json()["error"]["param"] == "ban_eos_token"


def test_a_context_of_the_request(http: httpx.Client, engine: ScriptedEngine) -> None:
    for path, ask, prompt in ((TEXT, {"prompt": "x"}, 2), (CHAT, ASK, 5)):
        answer = whole(http, path, **ask, num_ctx=20, include_effective=True)
        assert answer["tidemill"]["context_length"] == 20
        assert engine.requests[-1].sampling.max_tokens == 20 - prompt
        for wrong in ({"num_ctx": 257}, {"num_ctx": 0}, {"n_ctx": 257}):
            error = http.post(path, json={**ask, **wrong}).json()["error"]
            assert error["param"] == next(iter(wrong))
        long = http.post(path, json={**ask, "num_ctx": 20, "max_tokens": 19})
        assert long.json()["error"]["code"] == "context_length_exceeded"
