"""Every field's bad values: a 400 in OpenAI's shape that names the field; the server lives on."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
TEXT = {"prompt": "hello"}
HUGE = 10**30

# field -> values that must be refused, on both endpoints
COMMON: dict[str, list[Any]] = {
    "model": [1, True, ["tiny"], {}],
    "stream": [1, "true", [], 0.5],
    "stream_options": [True, "x", {"include_usage": 1}, {"include_usage": True}],
    "temperature": ["0.5", True, [], -0.1, 100.1, 1e400, HUGE],
    "top_p": ["1", True, -1, 1.0001, {}],
    "top_k": [1.5, "1", True, -2, HUGE],
    "min_p": ["0", True, -0.1, 1.1],
    "presence_penalty": ["0", True, -2.1, 2.1],
    "frequency_penalty": ["0", True, -2.1, 2.1],
    "repetition_penalty": ["1", True, 0, -1, 101, 1e-320],
    "seed": ["1", 1.5, True, -(2**63) - 1, 2**63, HUGE],
    "stop": [1, True, [1], ["a", None], ["a"] * 17, "x" * 1025, {}],
    "stop_token_ids": ["1", [True], ["1"], [-1], [320], [1.5], [0] * 257, 3],
    "max_tokens": ["1", 1.5, True, -2, 2**31, HUGE],
    "min_tokens": ["1", 1.5, True, -1, 257, HUGE],
    "ignore_eos": [1, "true", []],
    "n": ["1", 1.5, True, 0, -1, 129, HUGE],
    "logit_bias": [
        *("x", {"": 1}, {"-1": 1}, {"x" * 1025: 1}, {" 1": 1}, {"٣": 1}, {"320": 1}),
        *([1], [[1]], [[-1, 1]], [["", 1]], [[1, True]], {"a": 101}),
        *({"1": "1"}, {"1": True}, {"1": 101}, {"1": None}, {str(HUGE): 1}),
    ],
    "include_effective": [1, "yes"],
    "echo": [1, "true"],
    "add_special_tokens": [1, "true"],
    "truncate_prompt_tokens": [0, -2, "1", True],
    "return_token_ids": [1],
    "timings_per_token": ["yes"],
    "cache_salt": [1, "", "x" * 257, []],
    "user": [1, {}],
    "metadata": ["x", []],
    "safety_identifier": [1],
    "prompt_cache_key": [1],
    "store": [True, 0, "false"],
    "service_tier": ["scale", 1],
    "priority": [1.5, "1", 2**31, True],
    "tools_": [1],
    "temprature": [0.5],
    "best_off": [False, 0, "", [], {}],
    "response_format": [
        *("text", {}, {"type": "xml"}, {"type": "text", "x": 1}, {"type": "json_schema"}),
        {"type": "json_schema", "json_schema": {"name": "x"}},
    ],
    "guided_json": [5, "{", "[1]", []],
    "guided_regex": [5, "", {}],
    "guided_choice": ["a", [], [1], {}],
    "guided_grammar": [5, " ", []],
    "structured_outputs": ["x", {}, {"regex": "a", "choice": ["a"]}, {"backend": "x"}],
    "json_schema": [5, "{"],
    "grammar": [5, " "],
    "reasoning_effort": ["low"],
    "enable_thinking": [True, 1],
    "thinking_token_budget": [5, 0, "5"],
    "thinking_budget": [5],
}
CHAT_ONLY: dict[str, list[Any]] = {
    "max_tokens": [0],  # completions take it: the prompt's logprobs alone
    "messages": [None, [], "x", {}, [1], ["hello"], [[]], [{}]],
    "max_completion_tokens": ["1", 1.5, True, 0, -2, HUGE],
    "logprobs": [1, 0, "true"],
    "top_logprobs": [1, -1, 21, "1", True, 1.5],
    "chat_template_kwargs": ["x", [], {"messages": []}, {"unused_by_the_template": 1}, {"a b": 1}],
    "add_generation_prompt": [1, "x"],
    "documents": ["x", {}, ["x"], [{"text": "unread"}]],
    "continue_final_message": [1, "x", True],
    "tools": [[{"type": "function", "function": {"name": "f"}}], {}, "x"],
    "tool_choice": ["required", {"type": "function"}, "all", 1],
    "reasoning_effort": ["high", "most", 1],
    "include_reasoning": [1, "yes"],
    "parallel_tool_calls": [1, "no"],
    "functions": [[{"name": "f"}]],
    "function_call": ["auto", {"name": "f"}],
    "modalities": [["audio"], "text"],
    "audio": [{}],
    "prediction": [{}, {"type": "content"}, {"type": "x", "content": "y"}, "x"],
    "web_search_options": [{}],
    "prompt": ["x"],
}
TEXT_ONLY: dict[str, list[Any]] = {
    "prompt": [
        *(None, "", [], 1, True, {}, [""], [[]], [[], [1]], ["a", 1], [1, "a"], [1.5], [True]),
        *([[1], "a"], [["a"]], [-1], [320], [HUGE], [[1], [320]], ["a"] * 257, "x" * 300),
    ],
    "logprobs": [True, -1, 21, "1", 1.5],
    "suffix": ["x", 1],
    "best_of": [-1, 0, "1", True],
    "messages": [[{"role": "user", "content": "x"}]],
    "max_completion_tokens": [5],
    "top_logprobs": [1],
    "tools": [[{"type": "function"}], {}],
}


def _cases() -> list[Any]:
    cases = []
    for path, base, tables in (
        ("/v1/chat/completions", CHAT, (COMMON, CHAT_ONLY)),
        ("/v1/completions", TEXT, (COMMON, TEXT_ONLY)),
    ):
        for table in tables:
            for field, values in table.items():
                for i, value in enumerate(values):
                    name = f"{path.rsplit('/', 2)[-2]}-{field}-{i}"
                    cases.append(pytest.param(path, base, field, value, id=name))
    return cases


def _is_error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and "Traceback" not in error["message"]
    assert len(error["message"]) < 1000
    return error


@pytest.fixture(scope="module")
def http(base_url: str) -> httpx.Client:
    return httpx.Client(base_url=base_url, timeout=10)


@pytest.mark.parametrize(("path", "base", "field", "value"), _cases())
def test_bad_value(
    http: httpx.Client, path: str, base: dict[str, Any], field: str, value: Any
) -> None:
    body = json.dumps({**base, field: value}).replace("Infinity", "1e400")
    response = http.post(path, content=body, headers={"content-type": "application/json"})
    error = _is_error(response, 400)
    assert error["param"] is not None and error["param"].startswith(field), error
    assert field in error["message"], error


NESTED = [
    ({"role": "user"}, "messages[0].content"),
    ({"role": "user", "content": None}, "messages[0].content"),
    ({"role": "user", "content": 5}, "messages[0].content"),
    ({"role": "user", "content": [5]}, "messages[0].content"),
    ({"role": "user", "content": [{"text": "x"}]}, "messages[0].content"),
    ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content"),
    ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content"),
    ({"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]}, "messages[0].content"),
    ({"role": "robot", "content": "x"}, "messages[0].role"),
    ({"content": "x"}, "messages[0].role"),
    ({"role": "user", "content": "x", "surprise": 1}, "messages[0].surprise"),
    ({"role": "user", "content": "x", "name": 5}, "messages[0].name"),
    ({"role": "user", "content": "x", "refusal": "no"}, "messages[0]"),
    ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls"),
]


@pytest.mark.parametrize(("message", "param"), NESTED)
def test_bad_message(http: httpx.Client, message: dict[str, Any], param: str) -> None:
    error = _is_error(http.post("/v1/chat/completions", json={"messages": [message]}), 400)
    assert error["param"] == param


@pytest.mark.parametrize("rules", ["rules", "hi"], ids=["plainly", "as the user says it too"])
def test_dropped_messages_are_refused(rules: str) -> None:
    from helpers.live_server import fake_context, serving
    from helpers.scripted_engine import ScriptedEngine

    from tidemill.text.template import ChatTemplate

    only_users = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}"
    context = fake_context(ScriptedEngine(), template=ChatTemplate(only_users + "{% endfor %}"))
    with serving(context) as url:
        messages = [{"role": "system", "content": rules}, {"role": "user", "content": "hi"}]
        response = httpx.post(f"{url}/v1/chat/completions", json={"messages": messages})
    error = _is_error(response, 400)
    assert error["param"] == "messages[0]" and "drops" in error["message"]


def test_null_means_absent_and_the_documented_exceptions(http: httpx.Client) -> None:
    harmless = {
        "user": "me",
        "metadata": {"a": "b", "n": 1, "of": {"a": "trace"}},
        "safety_identifier": "x",
        "prompt_cache_key": "y",
        "store": False,
        "service_tier": "auto",
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "tools": [],
        "modalities": ["text"],
        "temperature": 1,
        "top_k": -1,
        "seed": 2**63 - 1,
    }
    response = http.post("/v1/chat/completions", json={**CHAT, **harmless})
    assert response.status_code == 200, response.text
    nulls = {k: None for k in (*COMMON, *CHAT_ONLY) if k not in ("messages",)}
    response = http.post("/v1/chat/completions", json={**CHAT, **nulls, "never_heard_of": None})
    assert response.status_code == 200, response.text
    nulls = {k: None for k in (*COMMON, *TEXT_ONLY) if k != "prompt"}
    assert http.post("/v1/completions", json={**TEXT, **nulls}).status_code == 200


def test_contradictions(http: httpx.Client) -> None:
    for body, param in (
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ):
        error = _is_error(http.post("/v1/chat/completions", json={**CHAT, **body}), 400)
        assert error["param"] == param


MALFORMED = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"1",
    b'"x"',
    b'{"prompt": "a",}',
    b'{"prompt": "a"} x',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "\xff\xfe"}',
    b'{"prompt": ' + b"[" * 100_000,
    b'{"prompt": "a", "temperature": NaN}',
    b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
]


@pytest.mark.parametrize("body", MALFORMED, ids=[str(b[:24]) for b in MALFORMED])
def test_malformed_json(http: httpx.Client, body: bytes) -> None:
    response = http.post(
        "/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    _is_error(response, 400)


def test_a_byte_order_mark_is_passed_over(http: httpx.Client) -> None:
    body = b"\xef\xbb\xbf" + b'{"prompt": "a", "max_tokens": 1}'
    response = http.post(
        "/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 200, response.text


def test_unknown_model(http: httpx.Client) -> None:
    for path, base in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        error = _is_error(http.post(path, json={**base, "model": "gpt-5"}), 404)
        assert error["param"] == "model" and error["code"] == "model_not_found"
        assert "tiny" in error["message"]


def test_routes_methods_and_media_types(http: httpx.Client) -> None:
    assert _is_error(http.get("/v1/nothing"), 404)["code"] == "not_found"
    response = http.get("/v1/chat/completions/")
    assert "takes POST" in _is_error(response, 405)["message"]
    response = http.get("/v1/chat/completions")
    assert _is_error(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"
    response = http.post("/v1/completions", content=b"a=b")
    assert _is_error(response, 415)


def test_request_ids(http: httpx.Client) -> None:
    ask = {"headers": {"x-request-id": "trace-1.a"}}
    assert http.get("/healthz", **ask).headers["x-request-id"] == "trace-1.a"
    assert http.get("/nothing", **ask).headers["x-request-id"] == "trace-1.a"
    strange = http.get("/healthz", headers={"x-request-id": "a b\"'" + "x" * 200})
    assert strange.headers["x-request-id"].startswith("req-")


def test_body_bounds(base_url: str, http: httpx.Client) -> None:
    body = json.dumps({"prompt": "x" * (17 * 2**20)}).encode()
    kind = {"content-type": "application/json"}
    _is_error(http.post("/v1/completions", content=body, headers=kind), 413)

    def endless():
        while True:
            yield b"x" * 65536

    try:
        response = httpx.post(
            f"{base_url}/v1/completions", content=endless(), headers=kind, timeout=10
        )
        _is_error(response, 413)
    except httpx.TransportError:
        pass  # the server closed while we were still sending: refused all the same


def test_a_body_that_does_not_come_is_408() -> None:
    from helpers.live_server import fake_context, serving
    from helpers.scripted_engine import ScriptedEngine

    from tidemill.server.access.limits import Limits

    context = fake_context(ScriptedEngine(), limits=Limits(body_timeout=0.2))
    with serving(context) as url:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port), timeout=5) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n"
                b"Content-Type: application/json\r\n\r\n{"
            )
            assert connection.recv(65536).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 200_000,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 200_000,
        b"GET /healthz HTTP/1.1\r\n" + b"X-A: b\r\n" * 20_000,
        b"\x16\x03\x01 this is no HTTP\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["url", "header", "headers", "tls", "path"],
)
def test_heads_are_bounded(base_url: str, head: bytes) -> None:
    parts = urlsplit(base_url)
    with socket.create_connection((parts.hostname, parts.port), timeout=5) as connection:
        received = b""
        try:
            connection.sendall(head)
            while part := connection.recv(65536):
                received += part
        except ConnectionError:
            pass  # closed while we were still sending: refused all the same
        assert not received or received.startswith(b"HTTP/1.1 4")


def test_slow_heads_are_cut_off() -> None:
    from helpers.live_server import fake_context, serving
    from helpers.scripted_engine import ScriptedEngine

    from tidemill.server.access.limits import Limits

    context = fake_context(ScriptedEngine(step_seconds=0.05), limits=Limits(head_timeout=0.3))
    with serving(context) as url:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port), timeout=5) as silent:
            with socket.create_connection((parts.hostname, parts.port), timeout=5) as slow:
                slow.sendall(b"GET /healthz HTTP/1.1\r\n")
                assert slow.recv(100).startswith(b"HTTP/1.1 408")
            assert silent.recv(100) == b""
        # A request that takes longer than a head may is not touched, nor is the one after it.
        with httpx.Client(base_url=url) as http:
            for _ in range(2):
                assert http.post("/v1/completions", json=TEXT).status_code == 200


def test_a_defect_is_a_500_without_details(caplog: pytest.LogCaptureFixture) -> None:
    from helpers.live_server import fake_context, serving
    from helpers.scripted_engine import ScriptedEngine

    engine = ScriptedEngine()
    engine.submit = lambda request: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    context = fake_context(engine)
    with serving(context) as url:
        for stream in (False, True):
            response = httpx.post(f"{url}/v1/completions", json={**TEXT, "stream": stream})
            error = _is_error(response, 500)
            assert "division" not in error["message"]
            assert response.headers["x-request-id"] in error["message"]
        assert context.host.models[0].admission.active == 0
        context.host.models[0].template = None  # type: ignore[assignment]
        error = _is_error(httpx.post(f"{url}/v1/chat/completions", json=CHAT), 500)
        assert httpx.get(f"{url}/healthz").status_code == 200


def test_the_server_still_answers(http: httpx.Client) -> None:
    assert http.post("/v1/completions", json=TEXT).status_code == 200
