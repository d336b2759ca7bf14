"""Probes, metrics, tokenization, OpenAPI, and clients that leave."""

from __future__ import annotations

import json
import shlex
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.server.app import DIALECTS
from tidemill.server.banner import first_steps


@pytest.fixture(scope="module")
def http(base_url: str) -> httpx.Client:
    return httpx.Client(base_url=base_url, timeout=10)


def _eventually(test: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_several_names() -> None:
    context = fake_context(ScriptedEngine(), aliases=("gpt-4o", "org/other"))
    with serving(context) as url:
        listed = [card["id"] for card in httpx.get(f"{url}/v1/models").json()["data"]]
        assert listed == [context.host.models[0].info.model, "gpt-4o", "org/other"]
        for name in listed:
            assert httpx.get(f"{url}/v1/models/{name}").json()["id"] == name
            answer = httpx.post(f"{url}/v1/completions", json={"prompt": "a", "model": name})
            assert answer.status_code == 200 and answer.json()["model"] == listed[0]
        unknown = httpx.get(f"{url}/v1/models/gpt-5")
        assert unknown.status_code == 404 and "'gpt-4o'" in unknown.json()["error"]["message"]


def test_what_is_printed_at_the_start_is_a_request_that_works() -> None:
    context = fake_context(ScriptedEngine())
    with serving(context) as url:
        line = first_steps(context.host.models[0], url, closed=False)[0]
        assert line.startswith("try: curl ")
        _, _, target, _, header, _, body = shlex.split(line)
        name, _, value = header.partition(": ")
        assert httpx.post(target, content=body, headers={name: value}).status_code == 200
    anywhere = first_steps(context.host.models[0], "http://0.0.0.0:8000", closed=True)
    assert "http://127.0.0.1:8000/v1" in anywhere[0] and "Bearer YOUR_KEY" in anywhere[0]


def test_probes_follow_the_engine() -> None:
    engine = ScriptedEngine()
    with serving(fake_context(engine)) as url:
        ready = httpx.get(f"{url}/readyz")
        assert ready.status_code == 200 and ready.json()["engine"]["max_model_len"] == 256
        engine.dead = True
        assert httpx.get(f"{url}/healthz").status_code == 200
        unready = httpx.get(f"{url}/readyz")
        assert unready.status_code == 503 and "engine process" in unready.json()["reason"]
        assert httpx.get(f"{url}/metrics").status_code == 200
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "a"})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_unavailable"


def test_metrics_count_what_clients_got() -> None:
    with serving(fake_context(ScriptedEngine(cached_tokens=2))) as url:
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "abc", "n": 2}).json()
        httpx.post(f"{url}/v1/completions", json={"prompt": ""})
        text = httpx.get(f"{url}/metrics").text
    text = text.replace('{model="tiny"}', "").replace('model="tiny",', "")
    samples = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")
    )
    generated = answer["usage"]["completion_tokens"]
    assert float(samples["tidemill_generation_tokens_total"]) == generated
    assert float(samples["tidemill_prompt_tokens_total"]) == 4
    assert float(samples["tidemill_prompt_tokens_cached_total"]) == 2
    assert float(samples['tidemill_requests_total{reason="stop"}']) == 1
    assert float(samples['tidemill_requests_total{model="",reason="invalid_value"}']) == 1
    assert float(samples["tidemill_requests_active"]) == 0
    assert float(samples["tidemill_ttft_seconds_count"]) == 1
    assert float(samples["tidemill_itl_seconds_count"]) == generated - 2
    assert float(samples["tidemill_kv_blocks"]) == 64


def test_tokenize_and_back(http: httpx.Client) -> None:
    answer = http.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    assert answer["tokens"] == [256, 104, 0xC3, 0xA9] and answer["count"] == 4
    assert answer["token_strs"][:2] == ["<|bos|>", "h"]
    bare = http.post("/tokenize", json={"prompt": "h", "add_special_tokens": False}).json()
    assert bare["tokens"] == [104]
    chat = http.post("/tokenize", json={"messages": [{"role": "user", "content": "x"}]}).json()
    assert chat["tokens"] == [259, 120, 257, 260]
    text = http.post("/detokenize", json={"tokens": answer["tokens"]}).json()["prompt"]
    assert text == "<|bos|>hé"
    for path, body, param in (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ("/detokenize", {"tokens": [320]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {}, "tokens"),
    ):
        answer = http.post(path, json=body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param


def test_openapi_describes_the_bodies(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    chat = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    name = chat["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[-1]
    assert "temperature" in document["components"]["schemas"][name]["properties"]
    assert document["components"]["schemas"][name]["additionalProperties"] is False
    assert http.get("/docs").status_code == 404


def test_routes_that_people_probe(http: httpx.Client) -> None:
    for path in ("/health", "/ping", "/readyz/"):
        assert http.get(path).json()["status"] == "ready"
    assert http.get("/version").json() == {"version": "test"}
    for path in ("/", "/v1", "/v1/"):
        about = http.get(path).json()
        assert (about["server"], about["model"]) == ("tidemill", "tiny")
    assert http.get("/v1/models/").json() == http.get("/v1/models").json()
    body = {"prompt": "a", "seed": 1}
    one, other = (http.post(p, json=body) for p in ("/v1/completions", "/v1/completions/"))
    assert one.json()["choices"] == other.json()["choices"]


def test_a_body_without_a_type_is_json_unless_a_browser_sends_it(http: httpx.Client) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    for headers in ({}, form):
        answer = http.post("/tokenize", content=b'{"prompt": "h"}', headers=headers)
        assert answer.status_code == 200 and answer.json()["count"] == 2
        refused = http.post("/v1/completions", content=b'{"prompt": "h"}', headers=headers)
        assert refused.status_code == 415
    for browser in ({"origin": "null"}, {"sec-fetch-site": "cross-site"}, {"referer": "http://x"}):
        answer = http.post("/tokenize", content=b'{"prompt": "h"}', headers={**form, **browser})
        assert answer.status_code == 415
    plain = {"content-type": "text/plain"}
    assert http.post("/tokenize", content=b'{"prompt": "h"}', headers=plain).status_code == 415


def test_every_chunk_can_say_the_usage(http: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}
    for path, body in (
        ("/v1/completions", {"prompt": "a", "n": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        asked = {**body, "stream": True, "stream_options": options}
        lines = [x[6:] for x in http.post(path, json=asked).text.splitlines() if x]
        chunks = [json.loads(x) for x in lines[:-1]]
        counts = [c["usage"]["completion_tokens"] for c in chunks]
        assert counts == sorted(counts) and counts[-1] > 1
        assert counts[-2] == counts[-1] and not chunks[-1]["choices"]
    for wrong, param in (
        ({"continuous_usage_stats": True}, "stream_options.continuous_usage_stats"),
        ({"include_obfuscation": True}, "stream_options.include_obfuscation"),
    ):
        asked = {"prompt": "a", "stream": True, "stream_options": wrong}
        assert http.post("/v1/completions", json=asked).json()["error"]["param"] == param
    idle = {"prompt": "a", "stream_options": {"include_usage": False}}
    assert http.post("/v1/completions", json=idle).status_code == 200


def _leave_mid_request(url: str, body: dict[str, object], *, read: bool) -> None:
    parts = urlsplit(url)
    data = json.dumps(body).encode()
    with socket.create_connection((parts.hostname, parts.port), timeout=5) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(data) + data
        )
        if read:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        else:
            time.sleep(0.1)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_cancels(stream: bool, n: int) -> None:
    engine = ScriptedEngine(lambda request, choice: [97] * 200, step_seconds=0.02)
    context = fake_context(engine)
    with serving(context) as url:
        body = {"prompt": ["a", "b"], "n": n, "stream": stream}
        _leave_mid_request(url, body, read=stream)
        _eventually(lambda: len(engine.cancelled) == 2)
        ids = {request.request_id for request in engine.requests}
        assert {c[0] for c in engine.cancelled} == ids
        assert {c[1:] for c in engine.cancelled} == {(None, "cancelled")}
        _eventually(lambda: context.host.models[0].admission.active == 0)
        text = httpx.get(f"{url}/metrics").text
        assert 'tidemill_requests_total{model="tiny",reason="cancelled"} 1.0' in text
        assert 'tidemill_kv_blocks_used{model="tiny"} 0.0' in text


def test_a_client_that_leaves_before_the_first_token_cancels() -> None:
    engine = ScriptedEngine(step_seconds=30)
    context = fake_context(engine)
    with serving(context) as url:
        _leave_mid_request(url, {"prompt": "a", "stream": True}, read=False)
        _eventually(lambda: len(engine.cancelled) == 1)


def test_one_write_per_step() -> None:
    writes: list[bytes] = []

    async def run() -> None:
        from tidemill.server.app import build_app

        app = build_app(fake_context(ScriptedEngine(lambda r, c: [*b"abc", 257])))
        body = json.dumps({"messages": [{"role": "user", "content": "x"}], "stream": True, "n": 4})
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "http_version": "1.1",
        }
        sent = False

        async def receive() -> dict[str, object]:
            nonlocal sent
            if sent:
                await asyncio.sleep(60)
            sent = True
            return {"type": "http.request", "body": body.encode(), "more_body": False}

        async def send(message: dict[str, object]) -> None:
            if message["type"] == "http.response.body":
                writes.append(message["body"])  # type: ignore[arg-type]

        await app(scope, receive, send)  # type: ignore[arg-type]

    import asyncio

    asyncio.run(run())
    assert len(writes) == 4, "three tokens and the end token, for four choices together"
    assert writes[-1].endswith(b"data: [DONE]\n\n")


def test_many_streams_at_once() -> None:
    engine = ScriptedEngine(step_seconds=0.001)
    results: list[str] = []

    with serving(fake_context(engine)) as url:

        def one(i: int) -> None:
            body = {"prompt": f"p{i % 4}", "seed": 1, "stream": True}
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=20) as response:
                lines = [x[6:] for x in response.iter_lines() if x.startswith("data: {")]
            texts = [json.loads(x)["choices"][0]["text"] for x in lines]
            results.append(f"{i % 4}:" + "".join(texts))

        threads = [threading.Thread(target=one, args=(i,)) for i in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 32 and len(set(results)) == 4


def test_what_is_served_is_not_among_what_is_not() -> None:
    served = {endpoint.path for dialect in DIALECTS for endpoint in dialect.endpoints}
    named = {path for dialect in DIALECTS for path in dialect.not_served}
    assert not served & named
