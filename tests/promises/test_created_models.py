"""Models that clients of Ollama's API create on a running server: of another one, and of files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helpers.real_server import RealServer

from tidemill.loading.locate import bundled_models

ASK = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    home = tmp_path_factory.mktemp("library")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEMILL_HOME", str(home))
        with RealServer() as server:
            yield server.http


def _create(http: httpx.Client, **body: object) -> httpx.Response:
    return http.post("/api/create", json={**body, "stream": False})


def _answer(http: httpx.Client, model: str, **options: object) -> str:
    body = {"model": model, "messages": ASK, "stream": False, "options": options}
    answer = http.post("/api/chat", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["message"]["content"])


def test_of_another_model(http: httpx.Client) -> None:
    lines = http.post(
        "/api/create",
        json={
            "model": "pirate",
            "from": "brook:latest",
            "system": "You are a pirate.",
            "parameters": {"temperature": 0, "num_predict": 12, "stop": ["zzz"]},
            "messages": [{"role": "user", "content": "Ahoy!"}],
        },
    ).text.splitlines()
    assert json.loads(lines[-1]) == {"status": "success"}
    shown = http.post("/api/show", json={"model": "pirate"}).json()
    assert shown["system"] == "You are a pirate." and "num_predict 12" in shown["parameters"]
    assert shown["messages"] == [{"role": "user", "content": "Ahoy!"}]
    assert shown["details"]["parameter_size"] and "tools" in shown["capabilities"]
    assert shown["template"] and shown["model_info"]["general.basename"] == "pirate"
    # It was described from its files: nothing was loaded for it.
    assert [one["name"] for one in http.get("/api/ps").json()["models"]] == ["brook"]
    whole = [{"role": "system", "content": "You are a pirate."}, *shown["messages"], *ASK]
    same = {"model": "brook", "messages": whole, "stream": False}
    same["options"] = {"temperature": 0, "num_predict": 12}
    assert _answer(http, "pirate") == http.post("/api/chat", json=same).json()["message"]["content"]
    # What is created anew is shown anew.
    assert _create(http, model="pirate", **{"from": "brook"}, system="Be brief.").is_success
    assert http.post("/api/show", json={"model": "pirate"}).json()["system"] == "Be brief."


def test_of_files_that_are_sent_and_quantized(http: httpx.Client) -> None:
    for one in http.get("/api/tags").json()["models"]:  # others made of brook have its files
        if not one["name"].startswith("brook"):
            http.request("DELETE", "/api/delete", json={"model": one["name"]}).raise_for_status()
    files = {}
    for path in sorted(Path(bundled_models()["brook"]).iterdir()):
        if path.is_dir():
            continue
        digest = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
        assert http.head(f"/api/blobs/{digest}").status_code == 404
        pieces = iter([path.read_bytes()])  # in chunks, as Ollama's clients send them
        assert http.post(f"/api/blobs/{digest}", content=pieces).status_code == 201
        assert http.head(f"/api/blobs/{digest}").status_code == 200
        files[path.name] = digest
    assert _create(http, model="sent", files=files).json() == {"status": "success"}
    assert _answer(http, "sent", temperature=0) == _answer(http, "brook", temperature=0)
    made = _create(http, model="small:q8", files=files, quantize="q8_0")
    assert made.json() == {"status": "success"}, made.text
    details = http.post("/api/show", json={"model": "small:q8"}).json()["details"]
    assert (details["format"], details["quantization_level"]) == ("gguf", "Q8_0")
    assert _answer(http, "small:q8", temperature=0)
    wrong = _create(http, model="other", files=files, quantize="q3_9")
    assert wrong.status_code == 400 and "quantize" in wrong.json()["error"]
    assert "q8_0" in wrong.json()["error"], "it says which there are"
