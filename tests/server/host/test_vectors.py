"""/v1/embeddings, /v1/rerank and /v1/score over a fake engine; the openai client unmodified."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine, fake_info, hashed_vector

from tidemill.base.vector_data import VectorData
from tidemill.contract.request import Pooling, RequestError
from tidemill.server.access.limits import Limits

PROMPTED = VectorData(prompts={"query": "Q: ", "document": ""})


@pytest.fixture(scope="module")
def http(base_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=base_url, timeout=10) as made:
        yield made


def unit(values: Any) -> np.ndarray:
    vector = np.asarray(values, np.float64)
    return vector / np.linalg.norm(vector)


def test_the_openai_client_gets_what_the_engine_made(
    client: openai.OpenAI, engine: ScriptedEngine
) -> None:
    before = len(engine.requests)
    answer = client.embeddings.create(model="tiny", input=["abc", "de"])  # base64 underneath
    asked = engine.requests[before:]
    assert [r.prompt_token_ids for r in asked] == [(256, 97, 98, 99), (256, 100, 101)]
    assert all(r.pooling == Pooling("last") for r in asked)
    assert [d.index for d in answer.data] == [r.place for r in asked] == [0, 1]
    for entry, request in zip(answer.data, asked, strict=True):
        np.testing.assert_array_equal(
            np.float32(entry.embedding), unit(hashed_vector(request)).astype(np.float32)
        )
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 7
    floats = client.embeddings.create(model="tiny", input=["abc", "de"], encoding_format="float")
    assert [d.embedding for d in floats.data] == [d.embedding for d in answer.data]


def test_inputs_in_every_form(http: httpx.Client) -> None:
    def vectors(value: Any, **more: Any) -> list[Any]:
        answer = http.post("/v1/embeddings", json={"input": value, **more})
        assert answer.status_code == 200, answer.text
        return [d["embedding"] for d in answer.json()["data"]]

    [text] = vectors("abc")
    assert vectors([256, 97, 98, 99]) == [text]
    assert vectors([[256, 97, 98, 99], [97]])[0] == text
    assert vectors(["abc"]) == [text]
    [packed] = vectors("abc", encoding_format="base64")
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == text
    [cut] = vectors("abc", dimensions=3)
    np.testing.assert_allclose(cut, unit(text[:3]), rtol=1e-6)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [999]}, "input"),
        ({"input": ["a", [1]]}, "input"),
        ({"input": "x" * 300}, "input"),
        ({"input": list(range(97, 107)) * 40}, "input"),
        ({"input": ["a"] * 5}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 9}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "prompt_name": "query"}, "prompt_name"),
        ({"input": "a", "temperature": 1}, "temperature"),
        ({"input": "a", "truncate": "LEFT"}, "truncate"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], param: str) -> None:
    context = fake_context(ScriptedEngine(), limits=Limits(max_inputs=4))
    with serving(context) as url:
        answer = httpx.post(f"{url}/v1/embeddings", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_prompts_of_the_models_makers_are_put_before_texts() -> None:
    data = VectorData(prompts={"query": "Q: ", "doc": "D: "}, default_prompt="doc")
    engine = ScriptedEngine(info=fake_info(vectors=data))
    with serving(fake_context(engine)) as url:
        for more in ({}, {"prompt_name": "query"}):
            httpx.post(f"{url}/v1/embeddings", json={"input": "a", **more})
        wrong = {"input": [97], "prompt_name": "query"}
        assert httpx.post(f"{url}/v1/embeddings", json=wrong).status_code == 400
    texts = ["".join(map(chr, r.prompt_token_ids[1:])) for r in engine.requests]
    assert texts == ["D: a", "Q: a"]


def test_rerank_by_cosine(http: httpx.Client, engine: ScriptedEngine) -> None:
    before = len(engine.requests)
    documents = ["a", {"text": "b"}, "c"]
    body = {"query": "q", "documents": documents, "return_documents": True}
    answer = http.post("/v1/rerank", json=body).json()
    query, *others = (hashed_vector(r) for r in engine.requests[before:])
    wanted = [float(unit(query) @ unit(o)) for o in others]
    order = sorted(range(3), key=lambda i: -wanted[i])
    assert [r["index"] for r in answer["results"]] == order
    for result in answer["results"]:
        assert result["relevance_score"] == pytest.approx(wanted[result["index"]], abs=1e-6)
        assert result["document"] == {"text": "abc"[result["index"]]}
    short = http.post("/rerank", json={**body, "top_n": 1, "return_documents": None}).json()
    [best] = short["results"]
    assert best["index"] == order[0] and "document" not in best
    assert answer["usage"]["total_tokens"] == 8


def test_rerank_and_score_as_other_servers_clients_ask(http: httpx.Client) -> None:
    body = {"query": "q", "documents": ["a", "b"]}
    wanted = http.post("/v1/rerank", json=body).json()["results"]
    for path, more in (
        ("/v2/rerank", {"model": "", "max_tokens_per_doc": None}),
        ("/rerank", {"top_k": 2}),
    ):
        answer = http.post(path, json={**body, **more})
        assert answer.status_code == 200 and answer.json()["results"] == wanted, answer.text
    texts = {"text_1": "q", "text_2": ["a", "b"]}
    scores = [http.post(path, json=texts).json()["data"] for path in ("/score", "/v1/score")]
    assert scores[0] == scores[1]
    for field, value in (("max_tokens_per_doc", 0), ("top_k", 0)):
        refused = http.post("/v2/rerank", json={**body, field: value})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == field


def test_sides_of_a_search_get_their_prompts() -> None:
    engine = ScriptedEngine(info=fake_info(vectors=PROMPTED))
    with serving(fake_context(engine)) as url:
        httpx.post(f"{url}/v1/rerank", json={"query": "q", "documents": ["d"]})
    texts = ["".join(map(chr, r.prompt_token_ids[1:])) for r in engine.requests]
    assert texts == ["Q: q", "d"]


def test_a_cross_encoder_reads_pairs_and_nothing_else() -> None:
    data = VectorData(head="score", labels=1)
    engine = ScriptedEngine(info=fake_info(generates=False, vectors=data))
    with serving(fake_context(engine)) as url:
        body = {"text_1": "q", "text_2": ["a", "b"]}
        answer = httpx.post(f"{url}/v1/score", json=body).json()
        assert [r.prompt_token_ids for r in engine.requests] == [(256, 113, 97), (256, 113, 98)]
        assert all(r.pooling == Pooling("last", head=True) for r in engine.requests)
        logits = [float(hashed_vector(r)[0]) for r in engine.requests]
        for entry, logit in zip(answer["data"], logits, strict=True):
            assert entry["score"] == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-6)
        ranked = httpx.post(f"{url}/rerank", json={"query": "q", "documents": ["a", "b"]}).json()
        assert [r["index"] for r in ranked["results"]] == list(np.argsort(logits)[::-1])
        for path, sent in (
            ("/v1/embeddings", {"input": "a"}),
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ):
            refused = httpx.post(url + path, json=sent)
            assert refused.status_code == 400, path
            error = refused.json()["error"]
            assert error["param"] == "model" and "/v1/" in error["message"]
        card = httpx.get(f"{url}/v1/models").json()["data"][0]
        assert card["tasks"] == ["score"] and card["embedding_size"] is None


def test_scores_of_texts(http: httpx.Client) -> None:
    one = http.post("/v1/score", json={"text_1": "a", "text_2": "a"}).json()
    assert one["data"] == [{"index": 0, "object": "score", "score": pytest.approx(1.0)}]
    pairs = {"text_1": ["a", "b"], "text_2": ["b", "a"]}
    both = [d["score"] for d in http.post("/v1/score", json=pairs).json()["data"]]
    assert both[0] == pytest.approx(both[1]) and len(both) == 2
    for body, param in (
        ({"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
        ({"text_1": "a", "text_2": []}, "text_2"),
        ({"text_1": "a", "text_2": ""}, "text_2"),
        ({"text_1": "a", "text_2": ["b", "x" * 300]}, "text_2[1]"),
        ({"text_1": "a"}, "text_2"),
    ):
        answer = http.post("/v1/score", json=body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text
    for body, param in (
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
    ):
        answer = http.post("/v1/rerank", json=body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_what_the_engine_refuses_is_an_error_and_the_rest_is_cancelled() -> None:
    engine = ScriptedEngine(fail_after=0, error=RequestError("resource", "no memory"))
    context = fake_context(engine)
    with serving(context) as url:
        answer = httpx.post(f"{url}/v1/embeddings", json={"input": ["a", "b", "c"]})
    assert answer.status_code >= 500 or answer.status_code == 429
    assert "no memory" in answer.json()["error"]["message"]
    assert len(engine.cancelled) == 2 and context.host.models[0].admission.active == 0


def test_inputs_are_cut_only_when_asked_and_the_answer_names_them(http: httpx.Client) -> None:
    def vectors(value: Any, **more: Any) -> tuple[list[Any], list[str] | None]:
        answer = http.post("/v1/embeddings", json={"input": value, **more})
        assert answer.status_code == 200, answer.text
        return [d["embedding"] for d in answer.json()["data"]], answer.json().get("truncated")

    long = "a" * 200 + "b" * 200
    assert http.post("/v1/embeddings", json={"input": long}).status_code == 400
    beginning, end = vectors(long[:255])[0], vectors(long[-255:])[0]
    assert vectors(long, truncate_prompt_tokens=-1) == (beginning, ["input"])
    assert vectors(long, truncate=True) == (beginning, ["input"])
    assert vectors(long, truncate="START") == (end, ["input"])
    assert vectors(long, truncate_prompt_tokens=-1, truncation_side="left") == (end, ["input"])
    assert vectors("abcdef", truncate_prompt_tokens=4) == (vectors("abc")[0], ["input"])
    assert vectors("abc", truncate_prompt_tokens=4) == (vectors("abc")[0], None)
    ids = [[256, 97, 98, 99, 100], [97]]  # given ids are cut as they are
    assert vectors(ids, truncate_prompt_tokens=2) == (vectors([[256, 97], [97]])[0], ["input[0]"])


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 257}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 1}, "input"),  # the start token alone
        ({"truncate": "END", "truncation_side": "left"}, "truncation_side"),
    ],
)
def test_cuts_that_cannot_be_made(http: httpx.Client, more: dict[str, Any], named: str) -> None:
    refused = http.post("/v1/embeddings", json={"input": "abc", **more})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == named


def test_a_very_long_text_is_not_tokenized_whole_to_be_cut(http: httpx.Client) -> None:
    body = {"input": "ab" * 500_000, "truncate": True}
    assert http.post("/v1/embeddings", json=body).json()["usage"]["prompt_tokens"] == 256
    refused = http.post("/v1/embeddings", json={**body, "truncate": False}).json()["error"]
    assert "32768" in refused["message"]


def test_documents_are_read_up_to_their_own_bound(http: httpx.Client) -> None:
    body = {"query": "q", "documents": ["abcdef", "ab"], "max_tokens_per_doc": 3}
    cut = http.post("/v1/rerank", json=body).json()
    plain = {"query": "q", "documents": ["abc", "ab"]}
    assert cut["results"] == http.post("/v1/rerank", json=plain).json()["results"]
    assert cut["truncated"] == ["documents[0]"]
    refused = http.post("/v1/rerank", json={**body, "max_tokens_per_doc": 0}).json()["error"]
    assert refused["param"] == "max_tokens_per_doc"


def test_of_a_pair_the_second_text_is_cut() -> None:
    template = "{query} | {document}"
    data = VectorData(head="score", labels=1, pair="text", pair_template=template)
    engine = ScriptedEngine(info=fake_info(vectors=data, generates=False))
    with serving(fake_context(engine)) as url:
        body = {"text_1": "query", "text_2": ["d" * 300, "short"], "truncate_prompt_tokens": 20}
        answer = httpx.post(f"{url}/v1/score", json=body).json()
    assert answer["truncated"] == ["text_2[0]"]
    assert [bytes(r.prompt_token_ids) for r in engine.requests] == [
        b"query | " + b"d" * 12,
        b"query | short",
    ]
