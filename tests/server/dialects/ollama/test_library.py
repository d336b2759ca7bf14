"""Pull, copy and delete in Ollama's words, and what is not done over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from threading import Event

import httpx
import pytest
from helpers.fake_source import FakeSource, managed, option
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.base.errors import config_error
from tidemill.server.host.source import ModelChanges, OnPull


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def http(source: FakeSource) -> Iterator[httpx.Client]:
    context = fake_context(ScriptedEngine())
    managed(context, source)
    with serving(context) as url, httpx.Client(base_url=url, timeout=20) as client:
        yield client


def _pull(told: OnPull, cancel: Event) -> None:
    told("downloading", 0, 100, None)
    told("downloading", 100, 100, None)


def _refuse(told: OnPull, cancel: Event) -> None:
    raise config_error("source", "'llama' is no model's name on the hub")


def test_a_pull_tells_how_far_it_is(http: httpx.Client, source: FakeSource) -> None:
    source.pulling = _pull
    answer = http.post("/api/pull", json={"model": "owner/name", "insecure": False})
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert {"status": "downloading", "completed": 100, "total": 100} in lines
    assert lines[-1] == {"status": "success"}
    whole = http.post("/api/pull", json={"name": "owner/other", "stream": False})
    assert whole.json() == {"status": "success"}


@pytest.mark.parametrize("stream", [True, False])
def test_a_pull_that_cannot_begin_is_refused(
    http: httpx.Client, source: FakeSource, stream: bool
) -> None:
    source.pulling = _refuse
    refused = http.post("/api/pull", json={"model": "llama", "stream": stream})
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("model: ")


def test_models_are_listed_and_shown_before_and_after_they_are_loaded(
    http: httpx.Client, source: FakeSource
) -> None:
    source.looked = ModelChanges(added=(option("new", aliases=("other",)),))
    tags = {tag["name"]: tag for tag in http.get("/api/tags").json()["models"]}
    assert {"new", "other"} <= tags.keys() and tags["new"]["digest"] == tags["other"]["digest"]
    assert "new" not in [one["name"] for one in http.get("/api/ps").json()["models"]]
    unload = {"model": "new", "keep_alive": 0}
    assert http.post("/api/generate", json=unload).json()["done_reason"] == "unload"
    shown = http.post("/api/show", json={"model": "new"}).json()
    assert shown["capabilities"][0] == "completion"
    assert "new" in [one["name"] for one in http.get("/api/ps").json()["models"]]


def test_copy_and_delete(http: httpx.Client, source: FakeSource) -> None:
    assert http.post("/api/copy", json={"source": "a", "destination": "b"}).status_code == 404
    source.library.append("a")
    assert http.post("/api/copy", json={"source": "a", "destination": "b"}).status_code == 200
    assert "b" in [tag["name"] for tag in http.get("/api/tags").json()["models"]]
    gone = http.request("DELETE", "/api/delete", json={"name": "b"})
    assert gone.status_code == 200 and gone.content == b""


@pytest.mark.parametrize("path", ["create", "push", "blobs/sha256:00"])
def test_what_is_not_done_over_http_says_so(http: httpx.Client, path: str) -> None:
    refused = http.post(f"/api/{path}", json={"model": "a"})
    assert refused.status_code == 501 and list(refused.json()) == ["error"]
