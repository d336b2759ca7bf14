"""Ollama's lists of models, embeddings, and the shape of its errors."""

from __future__ import annotations

import math

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.ollama_api import Ollama
from helpers.scripted_engine import ScriptedEngine, fake_info

from tidemill.server.access.keys import StaticKeys
from tidemill.server.access.limits import Limits
from tidemill.server.access.security import Security


def test_tags_ps_and_show_have_what_editors_read(ollama: Ollama) -> None:
    (tag,) = ollama.http.get("/api/tags").json()["models"]
    assert tag["name"] == tag["model"] == "tiny" and len(tag["digest"]) == 64
    assert tag["details"].keys() >= {"family", "parameter_size", "quantization_level"}
    (running,) = ollama.http.get("/api/ps").json()["models"]
    assert running["context_length"] == 8192 and running["size"] > 0
    assert running["expires_at"] == "9999-12-31T23:59:59Z"
    for body in ({"model": "tiny"}, {"name": "tiny:latest"}):
        shown = ollama.http.post("/api/show", json=body).json()
        assert shown["capabilities"] == ["completion", "tools", "thinking"]
        family = shown["model_info"]["general.architecture"]
        assert shown["model_info"][f"{family}.context_length"] == 8192
        assert shown["model_info"]["general.basename"] == "tiny"


def test_the_version_suffices_for_copilot(ollama: Ollama) -> None:
    version = ollama.http.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)


def test_keep_alive_moves_the_expiry(ollama: Ollama) -> None:
    ollama.http.post("/api/generate", json={"model": "tiny", "keep_alive": "10m"})
    (running,) = ollama.http.get("/api/ps").json()["models"]
    assert running["expires_at"] < "9999"
    ollama.http.post("/api/generate", json={"model": "tiny", "keep_alive": -1})
    (running,) = ollama.http.get("/api/ps").json()["models"]
    assert running["expires_at"] > "9999"


def test_sizes_are_written_as_people_do() -> None:
    info = fake_info(parameters=7_615_616_512, family="qwen2", quantization="q4_k")
    with serving(fake_context(ScriptedEngine(info=info))) as url:
        details = httpx.get(f"{url}/api/tags").json()["models"][0]["details"]
    assert (details["parameter_size"], details["family"]) == ("7.6B", "qwen2")
    assert details["quantization_level"] == "Q4_K"


def test_embed_returns_unit_vectors(ollama: Ollama) -> None:
    body = {"model": "tiny", "input": ["hi", "ho"], "truncate": True}
    answer = ollama.http.post("/api/embed", json=body).json()
    assert len(answer["embeddings"]) == 2 and answer["prompt_eval_count"] == 6
    assert all(math.isclose(math.hypot(*v), 1, rel_tol=1e-6) for v in answer["embeddings"])
    one = ollama.http.post("/api/embed", json={"model": "tiny", "input": "hi"}).json()
    assert one["embeddings"] == answer["embeddings"][:1]
    short = ollama.http.post("/api/embed", json={**body, "dimensions": 4}).json()
    assert [len(v) for v in short["embeddings"]] == [4, 4]
    old = ollama.http.post("/api/embeddings", json={"model": "tiny", "prompt": "hi"}).json()
    assert old["embedding"] == pytest.approx(one["embeddings"][0])
    empty = ollama.http.post("/api/embed", json={"model": "tiny", "input": []}).json()
    assert empty["embeddings"] == []


def test_inputs_of_embed_are_cut_at_their_end(ollama: Ollama) -> None:
    body = {"model": "tiny", "input": ["hi", "hiho"], "options": {"num_ctx": 3}}
    answer = ollama.http.post("/api/embed", json=body)
    one = ollama.http.post("/api/embed", json={"model": "tiny", "input": "hi"})
    assert answer.json()["embeddings"] == one.json()["embeddings"] * 2
    assert answer.json()["prompt_eval_count"] == 6
    assert answer.headers["x-tidemill-truncated"] == "input[1]"
    assert "x-tidemill-truncated" not in one.headers
    whole = ollama.http.post("/api/embed", json={"model": "tiny", "input": "a" * 9000})
    assert whole.status_code == 200 and whole.headers["x-tidemill-truncated"] == "input"


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"input": "a" * 9000, "truncate": False}, "input"),
        ({"input": [1, 2]}, "input"),
        ({"input": "abc", "truncate": False, "options": {"num_ctx": 2}}, "options.num_ctx"),
        ({"input": "abc", "options": {"num_ctx": 10**6}}, "options.num_ctx"),
        ({"input": "abc", "dimensions": 0}, "dimensions"),
        ({}, "input"),
    ],
)
def test_embed_refuses_by_name(ollama: Ollama, body: dict[str, object], name: str) -> None:
    answer = ollama.http.post("/api/embed", json={"model": "tiny", **body})
    assert answer.status_code == 400 and name in answer.json()["error"], answer.text


def test_errors_have_ollamas_shape_everywhere(ollama: Ollama) -> None:
    http = ollama.http
    for answer, status in (
        (http.get("/api/nothing"), 404),
        (http.get("/api/chat"), 405),
        (http.post("/api/chat", content=b"{"), 400),
        (http.post("/api/chat", json={"model": "nope", "messages": []}), 404),
        (http.post("/api/show", json={"model": "nope"}), 404),
        (http.post("/api/chat", content=b"a", headers={"content-type": "text/html"}), 415),
    ):
        assert answer.status_code == status, answer.text
        assert list(answer.json()) == ["error"] and isinstance(answer.json()["error"], str)
    assert list(http.get("/v1/nothing").json()["error"]) != []  # others keep theirs
    assert http.head("/").status_code == http.head("/api/version").status_code == 200


def test_bodies_of_curl_are_taken(ollama: Ollama) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = b'{"model": "tiny", "prompt": "a", "stream": false}'
    assert ollama.http.post("/api/generate", content=body, headers=form).status_code == 200


def test_refusals_of_keys_and_load_have_its_shape() -> None:
    context = fake_context(ScriptedEngine(step_seconds=0.05), limits=Limits(max_active_choices=1))
    with serving(context) as url, httpx.Client(base_url=url) as http:
        with http.stream("POST", "/api/generate", json={"prompt": "a"}) as stream:
            next(stream.iter_lines())
            full = http.post("/api/generate", json={"prompt": "b"})
        assert full.status_code == 429 and list(full.json()) == ["error"]
        assert int(full.headers["retry-after"]) >= 1
    locked = Security(keys=StaticKeys(["k" * 40]))
    with serving(fake_context(ScriptedEngine()), locked) as url:
        refused = httpx.get(f"{url}/api/tags")
        assert refused.status_code == 401 and list(refused.json()) == ["error"]
