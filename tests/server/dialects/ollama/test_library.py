"""Models of the library in Ollama's words: pull, create, files, copy, delete, show."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from threading import Event

import httpx
import pytest
from helpers.fake_source import FakeSource, managed, option
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.base.errors import config_error
from tidemill.base.vector_data import VectorData
from tidemill.contract.needs import ModelFacts
from tidemill.generation.preset import Preset
from tidemill.server.access.limits import Limits
from tidemill.server.host.engine_loader import Described, TextSide
from tidemill.server.host.made import Made
from tidemill.server.host.source import Creation, ModelChanges, OnPull


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


def test_a_push_says_why_not(http: httpx.Client) -> None:
    refused = http.post("/api/push", json={"model": "tiny"})
    assert refused.status_code == 400 and "registry" in refused.json()["error"]
    assert http.post("/api/push", json={"model": "dodo"}).status_code == 404


DIGEST = "sha256:" + "0" * 64


def test_a_model_is_created_and_served(http: httpx.Client, source: FakeSource) -> None:
    source.pulling = _pull
    body = {
        "model": "pirate",
        "from": "tiny:latest",
        "system": "Arr.",
        "template": "{{ messages }}",
        "license": ["MIT", "and more"],
        "parameters": {"temperature": 0.5, "stop": ["a", "b"]},
        "messages": [{"role": "user", "content": "Ahoy"}],
        "quantize": "q8_0",
        "adapters": {"lora.gguf": DIGEST},
        "files": None,
    }
    lines = [json.loads(line) for line in http.post("/api/create", json=body).text.splitlines()]
    assert lines[-1] == {"status": "success"} and lines[0]["status"] == "downloading"
    assert source.created == [
        Creation(
            name="pirate",
            base="tiny",
            system="Arr.",
            template="{{ messages }}",
            messages=[{"role": "user", "content": "Ahoy"}],
            parameters={"temperature": 0.5, "stop": ["a", "b"]},
            licence="MIT\n\nand more",
            quantize="q8_0",
            adapter={"lora.gguf": DIGEST},
        )
    ]
    assert "pirate" in [tag["name"] for tag in http.get("/api/tags").json()["models"]]
    whole = http.post("/api/create", json={"name": "b", "from": "tiny", "stream": False})
    assert whole.json() == {"status": "success"}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"model": "a"}, "from"),
        ({"model": "a", "from": "tiny", "files": {"x": "y"}}, "from"),
        ({"from": "tiny"}, "model"),
        ({"model": "a", "from": "tiny", "adapters": ["x"]}, "adapters"),
        ({"model": "a", "from": "tiny", "modelfile": "FROM x"}, "modelfile"),
        ({"model": "a", "from": "tiny", "renderer": "x"}, "renderer"),
        ({"model": "a", "from": "tiny", "systm": "x"}, "systm"),
    ],
)
def test_what_cannot_be_created(http: httpx.Client, body: dict[str, object], named: str) -> None:
    refused = http.post("/api/create", json=body)
    assert refused.status_code == 400 and named in refused.json()["error"]


def test_files_are_received_once(http: httpx.Client, source: FakeSource) -> None:
    content = b"tide" * 2**19
    assert http.head(f"/api/blobs/{DIGEST}").status_code == 404
    pieces = (content[i : i + 2**15] for i in range(0, len(content), 2**15))
    assert http.post(f"/api/blobs/{DIGEST}", content=pieces).status_code == 201
    assert source.files == {DIGEST: content} and source.closed == 1
    assert http.head(f"/api/blobs/{DIGEST}").status_code == 200
    assert http.post(f"/api/blobs/{DIGEST}", content=b"again").status_code == 201
    assert source.files == {DIGEST: content} and source.closed == 1
    assert http.post("/api/blobs/md5:00", content=b"x").status_code == 400
    coded = http.post("/api/blobs/sha256:1", content=b"x", headers={"content-encoding": "gzip"})
    assert coded.status_code == 415


def test_a_file_may_take_longer_than_a_body_but_not_stop(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.server.transport.http.BODY_GRACE_SECONDS", 0.0)
    context = fake_context(
        ScriptedEngine(), limits=Limits(body_timeout=0.2, body_idle_timeout=1.5, max_body_bytes=8)
    )
    managed(context, source)

    def slowly() -> Iterator[bytes]:
        for _ in range(4):
            time.sleep(0.15)
            yield b"tide"

    def stopping() -> Iterator[bytes]:
        yield b"tide"
        time.sleep(4)
        yield b"late"

    with serving(context) as url, httpx.Client(base_url=url, timeout=20) as http:
        assert http.post(f"/api/blobs/{DIGEST}", content=slowly()).status_code == 201
        other = DIGEST.replace("0", "1")
        assert http.post(f"/api/blobs/{other}", content=stopping()).status_code == 408
    assert source.files == {DIGEST: b"tide" * 4} and source.closed == 2


def test_a_model_that_is_not_loaded_is_described_from_its_files(source: FakeSource) -> None:
    context = fake_context(ScriptedEngine())
    loaders = managed(context, source)
    with serving(context) as url, httpx.Client(base_url=url, timeout=20) as http:
        source.looked = ModelChanges(added=(option("new"),))
        http.get("/api/tags")
        loader = loaders["new"]
        served = loader.served
        preset = Preset("Arr.", [{"role": "user", "content": "Ahoy"}], {"stop": ["a", "b"]})
        defaults = {"temperature": 0.5}
        text = TextSide(served.tokenizer, served.template, served.chat, defaults, preset)
        facts = ModelFacts(
            family="qwen2",
            parameters=494_032_768,
            hidden_size=896,
            vocab_size=320,
            generates=True,
            dtype="bfloat16",
            quantization="none",
            vectors=VectorData(),
        )
        made = Made("tiny", "MIT", ("/secret/place/lora-verse",), 4096)
        loader.described = Described(text, facts, 4096, gguf=True, file_bytes=7, made=made)
        shown = http.post("/api/show", json={"model": "new"}).json()
        assert shown["details"]["parameter_size"] == "494.03M"
        assert (shown["details"]["format"], shown["details"]["quantization_level"]) == (
            "gguf",
            "BF16",
        )
        assert shown["model_info"]["qwen2.context_length"] == 4096
        settings = ["temperature 0.5", 'stop "a"', 'stop "b"', "num_ctx 4096"]
        assert shown["parameters"].splitlines() == settings
        assert (shown["license"], shown["details"]["parent_model"]) == ("MIT", "tiny")
        assert shown["modelfile"].splitlines() == [
            "FROM tiny",
            "ADAPTER lora-verse",
            'SYSTEM """Arr."""',
            *(f"PARAMETER {line}" for line in settings),
            'MESSAGE user """Ahoy"""',
            'LICENSE """MIT"""',
        ]
        assert loader.loads == []
        (tag,) = [t for t in http.get("/api/tags").json()["models"] if t["name"] == "new"]
        assert tag["details"] == shown["details"]
