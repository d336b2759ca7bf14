"""Responses in the background: polled, followed, left and resumed, cancelled, refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.responses_api import check_order, create, events_of, refused, text_of, without_ids
from helpers.scripted_engine import EOS, ScriptedEngine, fake_info

from tidemill.server.access.limits import Limits
from tidemill.server.dialects.openai.responses import service
from tidemill.server.dialects.openai.responses.service import Service
from tidemill.server.dialects.openai.responses.store import MemoryStore

TEXT = "abcdefghijklmnopqrstuvwxyz" * 4


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda request, choice: [*TEXT.encode(), EOS])


@pytest.fixture(scope="module")
def http(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with serving(fake_context(engine)) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.fixture
def slowly(engine: ScriptedEngine) -> Iterator[None]:
    engine.step_seconds = 0.005
    yield
    engine.step_seconds = 0.0


@pytest.fixture
def endlessly(engine: ScriptedEngine) -> Iterator[None]:
    """Long enough to be cancelled on any machine."""
    engine.step_seconds = 0.2
    yield
    engine.step_seconds = 0.0


def _ended(http: httpx.Client, identity: str) -> dict[str, Any]:
    deadline = time.monotonic() + 20
    while True:
        response: dict[str, Any] = http.get(f"/v1/responses/{identity}").json()
        if response["status"] not in ("queued", "in_progress"):
            return response
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _follow(http: httpx.Client, identity: str, **how: Any) -> list[dict[str, Any]]:
    headers = how.pop("headers", {})
    path = f"/v1/responses/{identity}"
    answer = http.get(path, params={"stream": "true", **how}, headers=headers)
    assert answer.status_code == 200, answer.text
    return events_of(answer.text)


def test_it_is_answered_at_once_and_polled(http: httpx.Client, slowly: None) -> None:
    first = create(http, input="Hi", background=True)
    assert first["status"] in ("queued", "in_progress") and first["background"] is True
    last = _ended(http, first["id"])
    assert last["status"] == "completed" and text_of(last) == TEXT
    foreground = create(http, input="Hi")
    same = {**without_ids(foreground), "background": True}
    assert without_ids(last) == same


def test_a_stream_can_be_left_and_resumed(
    http: httpx.Client, engine: ScriptedEngine, slowly: None
) -> None:
    count = len(engine.requests)
    seen: list[dict[str, Any]] = []
    body = {"input": "Hi", "background": True, "stream": True}
    with http.stream("POST", "/v1/responses", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))
            if len(seen) == 9:
                break  # the client leaves
    identity = seen[0]["response"]["id"]
    rest = _follow(http, identity, starting_after=seen[-1]["sequence_number"])
    check_order([*seen, *rest])
    assert text_of(rest[-1]["response"]) == TEXT
    assert len(engine.requests) == count + 1  # no second generation
    # Again and from the beginning, and as browsers resume.
    assert _follow(http, identity) == [*seen, *rest]
    assert _follow(http, identity, headers={"Last-Event-ID": "8"}) == rest
    assert http.get(f"/v1/responses/{identity}").json() == rest[-1]["response"]


def test_two_readers_follow_one_stream(http: httpx.Client, slowly: None) -> None:
    identity = create(http, input="Hi", background=True)["id"]
    with http.stream("GET", f"/v1/responses/{identity}", params={"stream": "true"}) as one:
        other = _follow(http, identity)
        one.read()
        assert events_of(one.text) == other
    check_order(other)


def test_it_can_be_cancelled(http: httpx.Client, engine: ScriptedEngine, endlessly: None) -> None:
    identity = create(http, input="Hi", background=True)["id"]
    with http.stream("GET", f"/v1/responses/{identity}", params={"stream": "true"}) as reader:
        cancelled = http.post(f"/v1/responses/{identity}/cancel").json()
        reader.read()
    assert cancelled["status"] == "cancelled"
    assert engine.cancelled[-1][0] == identity
    events = events_of(reader.text)
    assert events[-1]["response"]["status"] == "cancelled"
    assert http.post(f"/v1/responses/{identity}/cancel").json() == cancelled  # again
    assert http.get(f"/v1/responses/{identity}").json() == cancelled


def test_deleting_it_ends_it(http: httpx.Client, engine: ScriptedEngine, endlessly: None) -> None:
    identity = create(http, input="Hi", background=True)["id"]
    assert http.delete(f"/v1/responses/{identity}").json()["deleted"]
    assert engine.cancelled[-1][0] == identity
    assert http.get(f"/v1/responses/{identity}").status_code == 404


def test_a_foreground_stream_ends_with_its_client(
    http: httpx.Client, engine: ScriptedEngine, endlessly: None
) -> None:
    with http.stream("POST", "/v1/responses", json={"input": "Hi", "stream": True}) as answer:
        first = next(line for line in answer.iter_lines() if line.startswith("data: "))
    identity = json.loads(first.removeprefix("data: "))["response"]["id"]
    deadline = time.monotonic() + 10
    while not any(request == identity for request, _, _ in engine.cancelled):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_cannot_be_generated_is_refused_at_once(http: httpx.Client) -> None:
    error = refused(http, input="x" * 10**4, background=True)
    assert error["param"] == "input" and error["code"] == "context_length_exceeded"


def test_what_fails_later_is_a_failed_response(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.fail_after = 3
    try:
        identity = create(http, input="Hi", background=True)["id"]
        failed = _ended(http, identity)
    finally:
        engine.fail_after = None
    assert failed["status"] == "failed" and failed["error"]["code"] == "server_error"
    assert _follow(http, identity)[-1]["type"] == "response.failed"


def test_only_background_responses_are_followed_and_cancelled(http: httpx.Client) -> None:
    identity = create(http, input="Hi")["id"]
    path = f"/v1/responses/{identity}"
    for query, param in (
        ({"stream": "true"}, "stream"),
        ({"stream": "maybe"}, "stream"),
        ({"starting_after": "3"}, "starting_after"),
        ({"stream": "true", "starting_after": "x"}, "starting_after"),
        ({"include_obfuscation": "true"}, "include_obfuscation"),
        ({"verbose": "true"}, "verbose"),
    ):
        answer = http.get(path, params=query)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param, query
    refusal = http.post(f"{path}/cancel")
    assert refusal.status_code == 400 and "background" in refusal.json()["error"]["message"]
    running = create(http, input="Hi", background=True)["id"]
    _ended(http, running)


def test_events_count_in_the_memory_of_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is forgotten for the memory of others while it runs has no readers: it ends."""
    monkeypatch.setattr(service, "COUNTED_BYTES", 2000)
    engine = ScriptedEngine(
        lambda request, choice: [*b"x" * 10**5], info=fake_info(max_model_len=200_000)
    )
    context = fake_context(engine, limits=Limits(max_stored_bytes=400_000))
    with serving(context) as url, httpx.Client(base_url=url, timeout=30) as http:
        store = context.kept(Service).store
        assert isinstance(store, MemoryStore)
        engine.step_seconds = 0.002
        identity = create(http, input="Hi", background=True)["id"]
        before, deadline = store.total, time.monotonic() + 20
        while store.total < before + 20_000:  # its events are counted as they come
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for _ in range(5):
            create(http, input="x" * 90_000, max_output_tokens=1)
        assert store.total <= 400_000
        assert http.get(f"/v1/responses/{identity}").status_code == 404
        while not any(request == identity for request, _, _ in engine.cancelled):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert http.get(f"/v1/responses/{identity}").status_code == 404


def test_running_responses_are_bounded(
    http: httpx.Client, endlessly: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_RUNNING", 2)
    running = [create(http, input="Hi", background=True)["id"] for _ in range(2)]
    answer = http.post("/v1/responses", json={"input": "Hi", "background": True})
    assert answer.status_code == 429 and answer.headers["retry-after"]
    for identity in running:
        http.post(f"/v1/responses/{identity}/cancel")
    again = create(http, input="Hi", background=True)["id"]
    http.delete(f"/v1/responses/{again}")
