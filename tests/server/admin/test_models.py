"""/admin/models over real sockets: state, load, unload, sleep, pull, copy, delete, reload."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import httpx
import pytest
from helpers.fake_source import FakeSource, managed, option
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.server.context import ServerContext
from tidemill.server.host.source import ModelChanges, OnPull, Reload
from tidemill.server.transport import stream


@pytest.fixture
def context() -> ServerContext:
    return fake_context(ScriptedEngine())


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def http(context: ServerContext, source: FakeSource) -> Iterator[httpx.Client]:
    managed(context, source)
    with serving(context) as url, httpx.Client(base_url=url, timeout=20) as client:
        yield client


def _models(http: httpx.Client) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in http.get("/admin/models").json()["models"]}


def _eventually(test: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not test():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_models_are_listed_loaded_put_to_sleep_and_unloaded(
    http: httpx.Client, context: ServerContext, source: FakeSource
) -> None:
    name = context.host.default.name
    source.looked = ModelChanges(added=(option("b", aliases=("c",)),))
    found = _models(http)
    assert found[name]["state"] == "loaded" and found["b"]["state"] == "unloaded"
    loaded = http.post("/admin/models/load", json={"model": "c", "keep_alive": "5m"}).json()
    assert (loaded["name"], loaded["state"], loaded["keep_alive"]) == ("b", "loaded", 300)
    assert 290 < _models(http)["b"]["until"] <= 300
    asleep = http.post("/admin/models/sleep", json={"model": "b"}).json()
    assert asleep["state"] == "asleep"
    answer = http.post("/v1/completions", json={"model": "b", "prompt": "a", "max_tokens": 2})
    assert answer.status_code == 200 and answer.json()["model"] == "b"
    stopped = http.post("/admin/models/unload", json={"model": "b"}).json()
    assert stopped["state"] == "unloaded" == _models(http)["b"]["state"]
    for body in ({"model": "nowhere"}, {"model": ""}, {}, {"model": "b", "keepalive": 3}):
        refused = http.post("/admin/models/load", json=body)
        assert refused.status_code in (400, 404) and refused.json()["error"]["param"]


def test_a_model_that_appears_is_served_without_a_restart(
    http: httpx.Client, source: FakeSource
) -> None:
    body = {"model": "new", "prompt": "a", "max_tokens": 2}
    assert http.post("/v1/completions", json=body).status_code == 404
    source.looked = ModelChanges(added=(option("new"),))
    assert http.post("/v1/completions", json=body).json()["model"] == "new"
    source.looked = ModelChanges(removed=("new",))
    assert "new" not in [card["id"] for card in http.get("/v1/models").json()["data"]]
    assert http.post("/v1/completions", json=body).status_code == 404


def _pull(told: OnPull, cancel: Event) -> None:
    told("downloading", 0, 100, None)
    told("downloading", 50, 100, "the hub is busy")
    told("downloading", 100, 100, None)
    told("complete", 100, 100, None)


@pytest.mark.parametrize("lines", [False, True])
def test_a_pull_tells_how_far_it_is_and_its_model_answers(
    http: httpx.Client, source: FakeSource, lines: bool
) -> None:
    source.pulling = _pull
    headers = {"Accept": "application/x-ndjson"} if lines else {}
    body = {"source": "owner/name", "as": "mine"}
    answer = http.post("/admin/models/pull", json=body, headers=headers)
    kind = "application/x-ndjson" if lines else "text/event-stream; charset=utf-8"
    assert answer.headers["content-type"] == kind
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n") if line]
    assert events[0] == {"status": "downloading", "completed": 0, "total": 100}
    assert {"message": "the hub is busy", "status": "downloading"}.items() <= events[1].items()
    assert events[-2:] == [
        {"status": "downloading", "completed": 100, "total": 100},
        {"status": "success", "model": "mine"},
    ]
    assert http.post("/v1/completions", json={"model": "mine", "prompt": "a"}).status_code == 200


def test_a_pull_that_fails_says_why_before_and_within_its_events(
    http: httpx.Client, source: FakeSource
) -> None:
    def early(told: OnPull, cancel: Event) -> None:
        raise TidemillError(ErrorKind.NOT_FOUND, "the hub has no owner/name")

    def late(told: OnPull, cancel: Event) -> None:
        told("downloading", 1, 9, None)
        raise TidemillError(ErrorKind.UNAVAILABLE, "the connection was lost")

    source.pulling = early
    refused = http.post("/admin/models/pull", json={"source": "owner/name"})
    assert refused.status_code == 404 and "no owner/name" in refused.json()["error"]["message"]
    source.pulling = late
    cut = http.post("/admin/models/pull", json={"source": "owner/name"})
    assert cut.status_code == 200 and "connection was lost" in cut.text.split("data: ")[-1]
    assert source.library == []


def test_a_client_that_leaves_ends_its_pull(http: httpx.Client, source: FakeSource) -> None:
    ended = threading.Event()

    def waits(told: OnPull, cancel: Event) -> None:
        for done in range(100):
            told("downloading", done, 1000, None)
            if cancel.wait(0.1):
                ended.set()
                break
        raise TidemillError(ErrorKind.CANCELLED, "the pull was cancelled")

    source.pulling = waits
    with http.stream("POST", "/admin/models/pull", json={"source": "a/b"}) as answer:
        assert next(answer.iter_lines()).startswith("data: ")
    assert ended.wait(10) and source.library == []


def test_models_of_the_library_are_copied_and_deleted(
    http: httpx.Client, source: FakeSource
) -> None:
    http.post("/admin/models/pull", json={"source": "mine"})
    copied = http.post("/admin/models/copy", json={"source": "mine", "target": "yours"})
    assert copied.json() == {"model": "yours"} and {"mine", "yours"} <= _models(http).keys()
    assert http.delete("/admin/models/mine").json() == {"model": "mine", "freed": 7}
    assert "mine" not in _models(http) and http.delete("/admin/models/mine").status_code == 404


def test_a_reload_is_answered_with_what_changed_or_why_nothing_did(
    http: httpx.Client, context: ServerContext, source: FakeSource
) -> None:
    committed: list[int] = []
    first = context.host.default.name
    source.reloads = Reload(
        ModelChanges(added=(option("b", pin=True),)),
        order=("b", first),
        memory=500,
        drain_timeout=3.0,
        document={"models_added": ["b"]},
        commit=lambda: committed.append(1),
    )
    assert http.post("/admin/reload").json() == {"models_added": ["b"]} and committed == [1]
    assert (context.host.budget, context.host.default.name) == (500, "b")
    _eventually(lambda: _models(http)["b"]["state"] == "loaded")
    source.reloads = config_error("server.port", "a reload cannot change server.port")
    refused = http.post("/admin/reload")
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "server.port"


def test_a_server_without_a_source_says_so() -> None:
    with serving(fake_context(ScriptedEngine())) as url:
        refused = httpx.post(f"{url}/admin/models/pull", json={"source": "a/b"})
        assert refused.status_code == 400 and "cannot be changed" in refused.text
        assert httpx.get(f"{url}/admin/models").json()["memory_budget"] is None


def test_while_a_model_loads_streams_get_comments_and_everybody_sees_how_far(
    http: httpx.Client, context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "WAITING_SECONDS", 0.05)
    assert context.manager is not None
    slow: Any = context.manager.loader(option("slow"))
    slow.seconds = 0.6
    context.host.add(option("slow").hosted, slow)
    first = context.host.default.name
    body = {"model": "slow", "prompt": "a", "max_tokens": 2, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": keep-alive"
        slow_now = _models(http)["slow"]
        assert (slow_now["state"], slow_now["progress"], slow_now["waiting"]) == (
            *("loading", 0.25, 1),
        )
        ready = http.get("/readyz").json()
        assert [one["state"] for one in ready["models"]] == ["loaded", "loading"]
        cards = {card["id"]: card for card in http.get("/v1/models").json()["data"]}
        assert (cards["slow"]["state"], cards["slow"]["progress"]) == ("loading", 0.25)
        other = http.post("/v1/completions", json={"model": first, "prompt": "a", "max_tokens": 2})
        assert other.status_code == 200, "the others answer meanwhile"
        assert _models(http)["slow"]["state"] == "loading"
        assert [line for line in lines if line.startswith("data: ")][-1] == "data: [DONE]"
