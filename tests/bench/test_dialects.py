"""Each API's stream, in the form of its own documentation, read as the same trace."""

from __future__ import annotations

import json

import pytest

from tidemill.bench.client import HttpFailure, Target
from tidemill.bench.dialects import DIALECTS, Prompt, Sampling
from tidemill.bench.load import target_of
from tidemill.bench.options import BenchOptions
from tidemill.bench.results import RequestTrace

STREAMS: dict[str, list[dict]] = {
    "completions": [
        {"choices": [{"text": "a", "finish_reason": None}]},
        {"choices": [{"text": "b", "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2,
                                  "prompt_tokens_details": {"cached_tokens": 4}}},
    ],
    "responses": [
        {"type": "response.created", "response": {"status": "in_progress"}},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": "response.output_text.delta", "delta": "b"},
        {"type": "response.output_text.done", "text": "ab"},
        {"type": "response.completed", "response": {"status": "completed", "usage": {
            "input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}}},
    ],
    "anthropic": [
        {"type": "message_start", "message": {"usage": {
            "input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "b"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"},
         "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ],
    "ollama": [
        {"message": {"role": "assistant", "content": "a"}, "done": False},
        {"message": {"role": "assistant", "content": "b"}, "done": False},
        {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop",
         "prompt_eval_count": 9, "eval_count": 2},
    ],
    "ollama-generate": [
        {"response": "a", "done": False},
        {"response": "b", "done": False},
        {"response": "", "done": True, "done_reason": "stop", "prompt_eval_count": 9,
         "eval_count": 2},
    ],
    "tgi": [
        {"token": {"id": 1, "text": "a", "special": False}, "details": None},
        {"token": {"id": 2, "text": "b", "special": False}, "generated_text": "ab",
         "details": {"finish_reason": "length", "generated_tokens": 2, "input_length": 9}},
    ],
}  # fmt: skip
STREAMS["chat"] = [
    {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
    {"choices": [{"delta": {"content": "a"}, "finish_reason": None}]},
    {"choices": [{"delta": {"content": "b"}, "finish_reason": None}]},
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    STREAMS["completions"][-1],
]


@pytest.mark.parametrize("name", DIALECTS)
def test_a_stream_is_read(name: str) -> None:
    trace = RequestTrace(start=0.0)
    texts = [DIALECTS[name].add(json.dumps(event).encode(), trace) for event in STREAMS[name]]
    assert [t for t in texts if t] == ["a", "b"]
    assert (trace.input_tokens, trace.output_tokens) == (9, 2)
    assert trace.finish_reason is not None
    assert trace.cached_tokens == (4 if "ollama" not in name and name != "tgi" else 0)


@pytest.mark.parametrize("name", DIALECTS)
def test_a_body_says_what_is_wanted(name: str) -> None:
    prompt = Prompt([{"role": "user", "content": "hello"}], None, 33)
    sampling = Sampling("some-model", 0.5, False, {"top_k": 7})
    body = json.loads(DIALECTS[name].encode(prompt, sampling))
    assert "hello" in json.dumps(body) and "33" in json.dumps(body) and body["top_k"] == 7
    assert body["stream"] is True and "ignore_eos" not in body


def test_an_error_within_a_stream() -> None:
    for name in DIALECTS:
        with pytest.raises(HttpFailure, match="overloaded"):
            DIALECTS[name].add(b'{"error": "overloaded"}', RequestTrace(start=0.0))


@pytest.mark.parametrize(
    ("url", "endpoint", "path"),
    [
        ("http://h:1", "chat", "/v1"),
        ("http://h:1/v1/", "chat", "/v1"),
        ("http://h:1/openai/x", "chat", "/openai/x"),
        ("http://h:1", "anthropic", "/v1"),
        ("http://h:1/v1", "ollama", ""),
        ("h:1", "tgi", ""),
    ],
)
def test_a_url_may_or_may_not_have_the_root(url: str, endpoint: str, path: str) -> None:
    assert target_of(BenchOptions(url, endpoint=endpoint)).path == path


def test_keys_go_where_the_dialect_wants_them() -> None:
    options = BenchOptions("http://h", api_key="k", endpoint="anthropic", headers=("X-A: b",))
    assert target_of(options).headers == ("x-api-key: k", "anthropic-version: 2023-06-01", "X-A: b")
    assert Target.parse("http://h", "k").headers == ("Authorization: Bearer k",)
