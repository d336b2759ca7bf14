"""Text Embeddings Inference: embeddings, similarities, and ranks by its form of a body."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine, fake_info

from tidemill.base.vector_data import VectorData
from tidemill.server.access.limits import Limits


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(fake_context(ScriptedEngine())) as url:
        yield url


def _vectors(url: str, *texts: str, **more: Any) -> list[list[float]]:
    body = {"input": list(texts), **more}
    data = httpx.post(f"{url}/v1/embeddings", json=body).json()["data"]
    return [item["embedding"] for item in data]


def test_embeddings(url: str) -> None:
    neutral = {"normalize": True, "truncate": False, "truncation_direction": "Right"}
    body = {"inputs": ["flow", "ebb"], **neutral}
    assert httpx.post(f"{url}/embed", json=body).json() == _vectors(url, "flow", "ebb")
    one = httpx.post(f"{url}/embed", json={"inputs": "flow", "dimensions": 4}).json()
    assert one == _vectors(url, "flow", dimensions=4)


def test_similarities_are_cosines(url: str) -> None:
    body = {"inputs": {"source_sentence": "flow", "sentences": ["ebb", "flow"]}}
    found = httpx.post(f"{url}/similarity", json=body).json()
    one, other = _vectors(url, "flow", "ebb")
    cosine = sum(a * b for a, b in zip(one, other, strict=True))
    assert found == [pytest.approx(cosine, abs=1e-5), pytest.approx(1, abs=1e-5)]


def test_ranks_by_texts_are_ranks_by_documents(url: str) -> None:
    texts = ["ebb", "flow", "moon"]
    body = {"query": "tide", "texts": texts, "raw_scores": False, "truncate": False}
    plain = httpx.post(f"{url}/rerank", json={"query": "tide", "documents": texts}).json()
    expected = [(r["index"], r["relevance_score"]) for r in plain["results"]]
    found = httpx.post(f"{url}/rerank", json=body).json()
    assert [(r["index"], r["score"]) for r in found] == expected
    shown = httpx.post(f"{url}/rerank", json={**body, "return_text": True}).json()
    assert [r["text"] for r in shown] == [texts[i] for i, _ in expected]
    assert "text" not in found[0]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"query": "a"}, "documents"),
        ({"query": "a", "texts": ["b"], "documents": ["b"]}, "documents"),
        ({"query": "a", "texts": ["b"], "top_n": 1}, "top_n"),
        ({"query": "a", "documents": ["b"], "return_text": True}, "return_text"),
        ({"query": "a", "texts": ["b"], "raw_scores": True}, "raw_scores"),
        ({"query": "a", "texts": []}, "texts"),
        ({"query": "a", "texts": ["b" * 300]}, "texts"),
    ],
)
def test_forms_of_rerank_are_not_mixed(url: str, body: dict[str, Any], named: str) -> None:
    refused = httpx.post(f"{url}/rerank", json=body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == named


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/embed", {"inputs": []}, "inputs"),
        ("/embed", {"inputs": ["a", ""]}, "inputs[1]"),
        ("/embed", {"inputs": "a" * 300}, "inputs"),
        ("/embed", {"inputs": "a", "truncation_direction": "Up"}, "truncation_direction"),
        ("/embed", {"inputs": "a", "normalize": False}, "normalize"),
        ("/embed", {"inputs": "a", "prompt_name": "x"}, "prompt"),
        ("/embed", {"inputs": "a", "model": "dodo"}, "dodo"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, "inputs.sentences"),
        ("/similarity", {"inputs": {"source_sentence": "a"}}, "sentences"),
        ("/embed_sparse", {"inputs": "a"}, "/embed"),
    ],
)
def test_refusals(url: str, path: str, body: dict[str, Any], named: str) -> None:
    refused = httpx.post(url + path, json=body)
    assert refused.status_code in (400, 404), refused.text
    assert set(refused.json()) == {"error", "error_type"} and named in refused.json()["error"]


LONG = "a" * 200 + "b" * 200
"""401 tokens; 256 are read."""


def test_truncation_is_asked_for_and_named(url: str) -> None:
    body = {"inputs": ["flow", LONG], "truncate": True}
    cut = httpx.post(f"{url}/embed", json=body)
    assert cut.json() == _vectors(url, "flow", LONG[:255])
    assert cut.headers["x-tidemill-truncated"] == "inputs[1]"
    left = httpx.post(f"{url}/embed", json={**body, "truncation_direction": "Left"})
    assert left.json() == _vectors(url, "flow", LONG[-255:])
    whole = httpx.post(f"{url}/embed", json={**body, "inputs": "flow"})
    assert "x-tidemill-truncated" not in whole.headers


def test_similarities_of_texts_that_are_cut(url: str) -> None:
    inputs = {"source_sentence": LONG, "sentences": [LONG[:255]]}
    body: dict[str, Any] = {"inputs": inputs}
    assert httpx.post(f"{url}/similarity", json=body).status_code == 400
    body["parameters"] = {"truncate": True}
    cut = httpx.post(f"{url}/similarity", json=body)
    assert cut.json() == [pytest.approx(1, abs=1e-6)]
    assert cut.headers["x-tidemill-truncated"] == "inputs[0]"


def test_ranks_of_texts_that_are_cut(url: str) -> None:
    body = {"query": "tide", "texts": ["ebb", LONG], "truncate": True}
    cut = httpx.post(f"{url}/rerank", json=body)
    assert cut.headers["x-tidemill-truncated"] == "texts[1]"
    same = httpx.post(f"{url}/rerank", json={**body, "texts": ["ebb", LONG[:255]]})
    assert cut.json() == same.json()
    left = httpx.post(f"{url}/rerank", json={**body, "truncation_direction": "Left"})
    same = httpx.post(f"{url}/rerank", json={**body, "texts": ["ebb", LONG[-255:]]})
    assert left.json() == same.json()


def test_the_bound_of_an_answer_is_explained_in_this_dialects_words() -> None:
    limits = Limits(max_answer_bytes=300)
    with serving(fake_context(ScriptedEngine(), limits=limits)) as url:
        refused = httpx.post(f"{url}/embed", json={"inputs": ["a", "b"]})
    assert refused.status_code == 400 and "send fewer inputs" in refused.json()["error"]
    assert "encoding_format" not in refused.text


def test_info_of_a_model_that_embeds() -> None:
    info = fake_info(generates=False, vectors=VectorData(pooling="mean"))
    with serving(fake_context(ScriptedEngine(info=info))) as url:
        found = httpx.get(f"{url}/info").json()
    assert found["model_type"] == {"embedding": {"pooling": "mean"}}
    assert found["max_input_length"] == 256
