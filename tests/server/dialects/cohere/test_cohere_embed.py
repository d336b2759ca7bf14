"""Cohere's embeddings, in both versions of its API."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine, fake_info

from tidemill.base.vector_data import VectorData
from tidemill.server.access.limits import Limits

PROMPTS = VectorData(prompts={"query": "q: ", "document": "d: "})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(fake_context(ScriptedEngine(info=fake_info(vectors=PROMPTS)))) as url:
        yield url


def _vectors(url: str, *texts: str, **more: Any) -> list[list[float]]:
    body = {"input": list(texts), **more}
    data = httpx.post(f"{url}/v1/embeddings", json=body).json()["data"]
    return [item["embedding"] for item in data]


def test_vectors_are_those_of_the_other_dialect(url: str) -> None:
    body = {"model": "tiny", "texts": ["flow", "ebb"], "input_type": "classification"}
    found = httpx.post(f"{url}/v2/embed", json=body).json()
    assert found["embeddings"] == {"float": _vectors(url, "flow", "ebb")}
    assert found["texts"] == ["flow", "ebb"]
    assert found["meta"]["billed_units"]["input_tokens"] == 9
    plain = httpx.post(f"{url}/v1/embed", json=body).json()
    assert plain["embeddings"] == found["embeddings"]["float"]
    assert plain["response_type"] == "embeddings_floats"
    by_type = httpx.post(f"{url}/v1/embed", json={**body, "embedding_types": ["float"]}).json()
    assert by_type["embeddings"] == found["embeddings"]
    assert by_type["response_type"] == "embeddings_by_type"


def test_types_lengths_and_parts(url: str) -> None:
    part = {"type": "text", "text": "flow"}
    body = {"inputs": [{"content": [part]}], "embedding_types": ["base64", "float"]}
    found = httpx.post(f"{url}/v2/embed", json={**body, "output_dimension": 4}).json()["embeddings"]
    assert found["float"] == _vectors(url, "flow", dimensions=4)
    assert list(struct.unpack("<4f", base64.b64decode(found["base64"][0]))) == found["float"][0]


def test_types_of_input_are_prompts_of_the_model(url: str) -> None:
    for kind, name in (("search_query", "query"), ("search_document", "document")):
        found = httpx.post(f"{url}/v2/embed", json={"texts": ["a"], "input_type": kind}).json()
        assert found["embeddings"]["float"] == _vectors(url, "a", prompt_name=name)


def test_texts_that_are_too_long_are_cut_as_the_published_default_says(url: str) -> None:
    long = "a" * 200 + "b" * 200
    body: dict[str, Any] = {"texts": ["flow", long]}
    cut = httpx.post(f"{url}/v2/embed", json=body)
    assert cut.json()["embeddings"]["float"] == _vectors(url, "flow", long[:255])
    assert cut.json()["meta"]["warnings"] == [
        "longer than what is read, and cut (truncate END): texts[1]"
    ]
    assert cut.headers["x-tidemill-truncated"] == "texts[1]"
    start = httpx.post(f"{url}/v2/embed", json={**body, "truncate": "START"}).json()
    assert start["embeddings"]["float"] == _vectors(url, "flow", long[-255:])
    assert start["meta"]["billed_units"]["input_tokens"] == 5 + 256
    short = httpx.post(f"{url}/v2/embed", json={"texts": ["flow"], "max_tokens": 3}).json()
    assert short["embeddings"]["float"] == _vectors(url, "fl")
    assert "warnings" not in httpx.post(f"{url}/v2/embed", json={"texts": ["flow"]}).json()["meta"]


def test_the_bound_of_an_answer_is_explained_in_this_dialects_words() -> None:
    limits = Limits(max_answer_bytes=300)
    with serving(fake_context(ScriptedEngine(), limits=limits)) as url:
        body: dict[str, Any] = {"texts": ["a", "b"]}
        refused = httpx.post(f"{url}/v2/embed", json=body)
        assert refused.status_code == 400
        assert 'embedding_types ["base64"]' in refused.json()["message"]
        body["embedding_types"] = ["base64"]
        assert httpx.post(f"{url}/v2/embed", json=body).status_code == 200


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "texts"),
        ({"texts": []}, "texts"),
        ({"texts": ["a"], "inputs": []}, "texts"),
        ({"texts": [""]}, "texts"),
        ({"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types"),
        ({"texts": ["a"], "truncate": "MIDDLE"}, "truncate"),
        ({"texts": ["a"], "max_tokens": 999}, "max_tokens"),
        ({"texts": ["abcdef"], "max_tokens": 4, "truncate": "NONE"}, "max_tokens"),
        ({"texts": ["a"], "output_dimension": 99}, "output_dimension"),
        ({"texts": ["a"], "images": ["x"]}, "images"),
        ({"texts": ["a" * 300], "truncate": "NONE"}, "texts"),
        ({"texts": ["a"], "model": "dodo"}, "dodo"),
        ({"inputs": [{"content": [{"type": "image_url", "text": "a"}]}]}, "type"),
    ],
)
def test_refusals(url: str, body: dict[str, Any], named: str) -> None:
    for version in (1, 2):
        refused = httpx.post(f"{url}/v{version}/embed", json=body)
        assert refused.status_code in (400, 404), refused.text
        assert set(refused.json()) == {"message"} and named in refused.json()["message"]
