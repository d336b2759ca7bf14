"""Streams that clients may leave and resume, by a header; all others end with their clients."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import EOS, ScriptedEngine

from tidemill.server.access.keys import StaticKeys
from tidemill.server.access.security import Security
from tidemill.server.dialects import resumable

TEXT = "abcdefghijklmnopqrstuvwxyz" * 2
ON = {"X-Resumable-Stream": "true"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100},
    "/generate_stream": {"inputs": "Hi", "parameters": {"seed": 1, "max_new_tokens": 100}},
    "/v2/models/tiny/generate_stream": {"text_input": "Hi"},
    "/completion": {"prompt": "Hi"},
}
_NO_STREAM = ("/generate_stream", "/v2/models/tiny/generate_stream")
"""Routes that stream without being asked, and take no seed at this place."""
KEYS = ["first-key-0123456789", "second-key-0123456789"]


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda request, choice: [*TEXT.encode(), EOS], step_seconds=0.01)


@pytest.fixture
def http(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with serving(fake_context(engine)) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


def _events(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """The ids and data of events."""
    found: dict[str, str] = {}
    for line in lines:
        if not line and "data" in found:
            yield found["id"], found["data"]
            found = {}
        elif line:
            name, _, value = line.partition(": ")
            found[name] = value


def _eventually(test: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not test():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def _body(path: str) -> dict[str, Any]:
    streamed = {} if path in _NO_STREAM else {"stream": True}
    return {**BODIES[path], **streamed}


def _begun(http: httpx.Client, path: str, count: int) -> list[tuple[str, str]]:
    """The first events of a stream whose client then leaves."""
    seen = []
    body = _body(path)
    with http.stream("POST", path, json=body, headers=ON) as answer:
        assert answer.status_code == 200
        for event in _events(answer.iter_lines()):
            seen.append(event)
            if len(seen) == count:
                break
    return seen


def _resume(http: httpx.Client, path: str, last: str, **how: Any) -> httpx.Response:
    headers = {"Last-Event-ID": last, **how.pop("headers", {})}
    return http.post(path, json=_body(path), headers=headers, **how)


@pytest.mark.parametrize("path", BODIES)
def test_what_was_missed_and_the_rest(
    http: httpx.Client, engine: ScriptedEngine, path: str
) -> None:
    seen = _begun(http, path, 7)
    rest = _resume(http, path, seen[-1][0])
    assert rest.status_code == 200 and len(engine.requests) == 1 and not engine.cancelled
    whole = [*seen, *_events(iter(rest.text.split("\n")))]
    ids = [identity.rpartition(":") for identity, _ in whole]
    assert [int(number) for _, _, number in ids] == list(range(len(whole)))
    assert len({stream for stream, _, _ in ids}) == 1
    plain = http.post(path, json=_body(path))
    assert "\nid:" not in plain.text
    assert (
        _texts(data for _, data in whole)
        == _texts(line[6:] for line in plain.text.splitlines() if line.startswith("data: "))
        == TEXT
    )
    # The end, once more.
    again = _resume(http, path, whole[-2][0])
    assert [data for _, data in _events(iter(again.text.split("\n")))] == [whole[-1][1]]


def _texts(datas: Any) -> str:
    found = []
    for data in datas:
        if data == "[DONE]":
            continue
        event = json.loads(data)
        if event.get("type") == "response.output_text.delta":
            found.append(event["delta"])
        if event.get("type") == "content_block_delta":
            found.append(event["delta"].get("text", ""))
        found.append(event.get("text_output", "") + event.get("content", ""))
        token = event.get("token", {})
        found.append("" if token.get("special") else token.get("text", ""))
        choices = event.get("choices", ())
        found += [c.get("text") or c.get("delta", {}).get("content") or "" for c in choices]
    return "".join(found)


def test_without_the_header_it_ends_with_its_client(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.step_seconds = 0.2
    body = {**BODIES["/v1/completions"], "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    _eventually(lambda: bool(engine.cancelled))


def test_who_does_not_come_back_frees_it(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable, "RESUME_SECONDS", 0.3)
    engine.step_seconds = 0.2
    with serving(fake_context(engine)) as url, httpx.Client(base_url=url) as http:
        seen = _begun(http, "/v1/completions", 1)
        assert not engine.cancelled
        _eventually(lambda: bool(engine.cancelled))
        time.sleep(0.35)
        gone = _resume(http, "/v1/completions", seen[0][0])
        assert gone.status_code == 404 and gone.json()["error"]["code"] == "stream_not_found"
        assert len(engine.requests) == 1


def test_others_do_not_find_it(engine: ScriptedEngine) -> None:
    context = fake_context(engine)
    with serving(context, Security(keys=StaticKeys(KEYS))) as url:
        mine, other = (
            httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}) for key in KEYS
        )
        seen = _begun(mine, "/v1/completions", 2)
        assert _resume(other, "/v1/completions", seen[-1][0]).status_code == 404
        assert _resume(mine, "/v1/completions", seen[-1][0]).status_code == 200


def test_another_request_does_not_get_it(http: httpx.Client, engine: ScriptedEngine) -> None:
    last = _begun(http, "/v1/completions", 3)[-1][0]
    other = http.post(
        "/v1/completions",
        json={**_body("/v1/completions"), "prompt": "Another"},
        headers={"Last-Event-ID": last},
    )
    route = _resume(http, "/completion", last)
    for answer in (other, route):
        assert answer.status_code == 400 and "another request" in answer.text, answer.text
    assert _resume(http, "/v1/completions", last).status_code == 200
    assert len(engine.requests) == 1


def test_errors_keep_their_status(http: httpx.Client, engine: ScriptedEngine) -> None:
    body = {"prompt": "x" * 10**4, "stream": True}
    refused = http.post("/v1/completions", json=body, headers=ON)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    engine.fail_after = 0
    failed = http.post("/v1/completions", json={"prompt": "x", "stream": True}, headers=ON)
    assert failed.status_code == 500 and "error" in failed.json()
    engine.fail_after = None
    for headers, param in (
        ({"X-Resumable-Stream": "maybe"}, "X-Resumable-Stream"),
        ({"Last-Event-ID": "7"}, "Last-Event-ID"),
        ({"Last-Event-ID": "cmpl-none:x"}, "Last-Event-ID"),
        ({"Last-Event-ID": "cmpl-none:1"}, "Last-Event-ID"),
    ):
        answer = http.post("/v1/completions", json={"prompt": "x", "stream": True}, headers=headers)
        assert answer.status_code in (400, 404), headers
        assert answer.json()["error"]["param"] == param


def test_a_clients_streams_are_bounded(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable, "MAX_STREAMS", 2)
    engine.step_seconds = 0.1  # seconds in all: none ends meanwhile
    with serving(fake_context(engine)) as url, httpx.Client(base_url=url, timeout=30) as http:
        for _ in range(2):
            _begun(http, "/v1/completions", 1)
        answer = http.post("/v1/completions", json={"prompt": "x", "stream": True}, headers=ON)
        assert answer.status_code == 429
        engine.step_seconds = 0
        assert answer.headers["retry-after"] and answer.json()["error"]["code"] == "overloaded"
        assert http.post("/v1/completions", json={"prompt": "x", "stream": True}).status_code == 200


def test_lines_have_no_ids(http: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": "Hi"}
    refused = http.post("/api/generate", json=body, headers=ON)
    assert refused.status_code == 400 and "X-Resumable-Stream" in refused.json()["error"]
    whole = http.post("/api/generate", json={**body, "stream": False}, headers=ON)
    assert whole.status_code == 200


def test_a_server_may_want_it_for_every_stream(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable, "MAX_STREAMS", 1)
    context = fake_context(engine)
    context.resumable = True
    path = "/v1/chat/completions"
    with serving(context) as url, httpx.Client(base_url=url, timeout=30) as http:
        with http.stream("POST", path, json=_body(path)) as answer:
            first = next(_events(answer.iter_lines()))
        rest = _resume(http, path, first[0])
        assert _texts(data for _, data in _events(iter(rest.text.split("\n")))) == TEXT
        assert len(engine.requests) == 1
        # Where there is no place for more, a stream ends with its client as usual.
        engine.step_seconds = 0.1
        with http.stream("POST", path, json=_body(path)) as answer:
            next(_events(answer.iter_lines()))
        engine.step_seconds = 0
        plain = http.post(path, json=_body(path))
        assert plain.status_code == 200 and "\nid:" not in plain.text
        assert http.post("/api/generate", json={"model": "tiny", "prompt": "Hi"}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_stream_is_ended_by_the_id_of_any_of_its_events(
    http: httpx.Client, engine: ScriptedEngine, path: str
) -> None:
    [(first, _)] = _begun(http, path, 1)
    assert engine.cancelled == []
    assert http.delete(f"/v1/streams/{first}").status_code == 204
    _eventually(lambda: len(engine.cancelled) == 1)
    assert http.delete(f"/v1/streams/{first}").status_code == 204  # it has ended


def test_only_its_own_client_ends_a_stream(engine: ScriptedEngine) -> None:
    security = Security(keys=StaticKeys(KEYS))
    first, second = ({"Authorization": f"Bearer {key}"} for key in KEYS)
    with (
        serving(fake_context(engine), security) as url,
        httpx.Client(base_url=url, headers=first) as http,
    ):
        [(event, _)] = _begun(http, "/v1/chat/completions", 1)
        assert http.delete(f"/v1/streams/{event}", headers=second).status_code == 404
        assert http.delete("/v1/streams/nothing").status_code == 400
        assert engine.cancelled == []
        assert http.delete(f"/v1/streams/{event}").status_code == 204


def test_streams_that_have_ended_make_place(
    http: httpx.Client, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable, "MAX_STREAMS", 2)
    path = "/v1/completions"
    lasts = []
    for _ in range(3):
        answer = http.post(path, json=_body(path) | {"max_tokens": 2}, headers=ON)
        assert answer.status_code == 200
        lasts.append(next(_events(iter(answer.text.splitlines())))[0])
    kept = [
        http.post(path, json=_body(path) | {"max_tokens": 2}, headers={"Last-Event-ID": last})
        for last in lasts
    ]
    assert [answer.status_code for answer in kept] == [404, 200, 200]
