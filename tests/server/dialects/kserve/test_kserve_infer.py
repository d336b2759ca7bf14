"""The Open Inference Protocol: tensors in JSON and as bytes, the three tasks, and refusals."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import EOS, ScriptedEngine, fake_info

from tidemill.base.vector_data import VectorData
from tidemill.contract.request import EngineRequest

LENGTH = "inference-header-content-length"


def _script(request: EngineRequest, choice: int) -> list[int]:
    return [*b" and ebb", EOS]


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(_script)


@pytest.fixture
def url(engine: ScriptedEngine) -> Iterator[str]:
    with serving(fake_context(engine, aliases=("org/tide",))) as url:
        yield url


def _texts(name: str, *texts: str) -> dict[str, Any]:
    return {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}


def _infer(url: str, *inputs: dict[str, Any], **more: Any) -> httpx.Response:
    body = {"inputs": list(inputs), **more}
    return httpx.post(f"{url}/v2/models/tiny/infer", json=body)


def _outputs(response: httpx.Response) -> dict[str, dict[str, Any]]:
    assert response.status_code == 200, response.text
    return {output["name"]: output for output in response.json()["outputs"]}


def _packed(*texts: str) -> bytes:
    encoded = [text.encode() for text in texts]
    return b"".join(struct.pack("<I", len(text)) + text for text in encoded)


def test_texts_in_json(url: str, engine: ScriptedEngine) -> None:
    answer = _infer(url, _texts("text_input", "flow", "tide"), id="x", parameters={"max_tokens": 4})
    assert {k: v for k, v in answer.json().items() if k != "outputs"} == {
        "id": "x",
        "model_name": "tiny",
        "model_version": "1",
    }
    outputs = _outputs(answer)
    assert outputs["text_output"] == _texts("text_output", "flow and", "tide and")
    assert outputs["finish_reason"]["data"] == ["length"] * 2
    assert outputs["num_input_tokens"]["data"] == [5, 5]
    assert outputs["num_output_tokens"]["data"] == [4, 4]
    assert engine.requests[-1].sampling.max_tokens == 4


def test_outputs_are_those_that_are_asked_for(url: str) -> None:
    asked = {"exclude_input_in_output": True}
    wanted = [{"name": "finish_reason"}, {"name": "text_output"}]
    answer = _infer(url, _texts("text_input", "flow"), outputs=wanted, parameters=asked)
    assert list(_outputs(answer)) == ["finish_reason", "text_output"]
    assert _outputs(answer)["text_output"]["data"] == [" and ebb"]


def test_tensors_as_bytes_are_tensors_in_json(url: str) -> None:
    options = [
        {"name": "max_tokens", "shape": [1], "datatype": "INT32", "data": [4]},
        {"name": "temperature", "shape": [1], "datatype": "FP32", "data": [0.5]},
        {"name": "ignore_eos", "shape": [1], "datatype": "BOOL", "data": [True]},
    ]
    plain = _infer(url, _texts("text_input", "flüt", "b"), *options).json()
    data = [_packed("flüt", "b"), struct.pack("<i", 4), struct.pack("<f", 0.5), b"\x01"]
    inputs = []
    for tensor, raw in zip([_texts("text_input", "", ""), *options], data, strict=True):
        named = {k: v for k, v in tensor.items() if k != "data"}
        inputs.append({**named, "parameters": {"binary_data_size": len(raw)}})
    for binary in (False, True):
        body = {"inputs": inputs, "parameters": {"binary_data_output": binary}}
        head = msgspec.json.encode(body)
        answer = httpx.post(
            f"{url}/v2/models/tiny/infer",
            content=head + b"".join(data),
            headers={LENGTH: str(len(head))},
        )
        assert answer.status_code == 200, answer.text
        if not binary:
            assert answer.json() == plain
            continue
        assert answer.headers["content-type"] == "application/octet-stream"
        length = int(answer.headers[LENGTH])
        document, rest = msgspec.json.decode(answer.content[:length]), answer.content[length:]
        expected = {o["name"]: o for o in plain["outputs"]}
        for output in document["outputs"]:
            size = output["parameters"]["binary_data_size"]
            values = expected[output["name"]]["data"]
            kind = output["datatype"]
            raw = _packed(*values) if kind == "BYTES" else struct.pack("<2i", *values)
            assert rest[:size] == raw
            rest = rest[size:]
        assert not rest


def test_embeddings_and_scores(url: str) -> None:
    texts = _texts("text_input", "flow", "ebb")
    found = _outputs(_infer(url, texts, outputs=[{"name": "embedding"}]))["embedding"]
    other = httpx.post(f"{url}/v1/embeddings", json={"input": ["flow", "ebb"]}).json()["data"]
    assert found["shape"] == [2, 8]
    assert found["data"] == pytest.approx([x for item in other for x in item["embedding"]])
    short = _infer(url, texts, outputs=[{"name": "embedding"}], parameters={"dimensions": 4})
    assert _outputs(short)["embedding"]["shape"] == [2, 4]
    answer = _infer(url, _texts("query", "flow"), _texts("documents", "ebb", "tide"))
    body = {"text_1": "flow", "text_2": ["ebb", "tide"]}
    same = httpx.post(f"{url}/v1/score", json=body).json()["data"]
    assert _outputs(answer)["score"]["data"] == [item["score"] for item in same]


def test_a_model_without_output_layer_embeds_by_default() -> None:
    with serving(fake_context(ScriptedEngine(info=fake_info(generates=False)))) as url:
        assert [*_outputs(_infer(url, _texts("text_input", "flow")))] == ["embedding"]
        names = [t["name"] for t in httpx.get(f"{url}/v2/models/tiny").json()["outputs"]]
        assert names == ["embedding", "score"]
        refused = _infer(url, _texts("text_input", "a"), outputs=[{"name": "text_output"}])
        assert refused.status_code == 400 and "generates no text" in refused.json()["error"]
    info = fake_info(generates=False, vectors=VectorData(head="score"))
    with serving(fake_context(ScriptedEngine(info=info))) as url:
        found = httpx.get(f"{url}/v2/models/tiny").json()
        assert [t["name"] for t in found["inputs"]] == ["query", "documents"]
        assert [t["name"] for t in found["outputs"]] == ["score"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"inputs": []}, "text_input"),
        ({"inputs": [_texts("text", "a")]}, "text_input"),
        ({"inputs": [_texts("text_input", "a"), _texts("bad", "a")]}, "bad"),
        ({"inputs": [_texts("text_input", "a"), _texts("text_input", "a")]}, "two inputs"),
        ({"inputs": [{**_texts("text_input", "a"), "shape": [2]}]}, "inputs[0]"),
        ({"inputs": [{**_texts("text_input", "a"), "shape": [2**40]}]}, "inputs[0]"),
        ({"inputs": [{**_texts("text_input", "a"), "datatype": "TEXT"}]}, "inputs[0].datatype"),
        ({"inputs": [{**_texts("text_input", "a"), "data": [1]}]}, "inputs[0].data"),
        ({"inputs": [{**_texts("text_input", "a"), "data": None}]}, "inputs[0]"),
        (
            {"inputs": [{"name": "text_input", "shape": [1], "datatype": "INT8", "data": [1]}]},
            "text_input",
        ),
        ({"inputs": [_texts("text_input", "a")], "outputs": [{"name": "logits"}]}, "logits"),
        ({"inputs": [_texts("text_input", "a")], "model_name": "other"}, "model_name"),
        ({"inputs": [_texts("text_input", "a")], "model_version": "2"}, "model_version"),
        ({"inputs": [_texts("query", "a")]}, "documents"),
        ({"inputs": [_texts("query", "a", "b"), _texts("documents", "a")]}, "query"),
        ({"inputs": [_texts("text_input", "a")], "parameters": {"top_p": 2}}, "top_p"),
        ({"inputs": [_texts("text_input", "a")], "parameters": {"priority": 1}}, "priority"),
        ({"inputs": [_texts("text_input", "a")], "parameters": {"sequence_id": 4}}, "sequence_id"),
        ({"inputs": [_texts("text_input", "a")], "parameters": {"bad_words": "x"}}, "bad_words"),
        ({"inputs": [_texts("text_input", "a")], "parameters": {"tempo": 1}}, "tempo"),
        ({"inputs": [_texts("text_input", "a"), _texts("stop", "a")],
          "parameters": {"stop": ["b"]}}, "stop"),
        ({"inputs": [_texts("text_input", "a"), _texts("sampling_parameters", "{")]},
         "sampling_parameters"),
        ({"inputs": [_texts("text_input", "a"), _texts("sampling_parameters", '{"tempo": 1}')]},
         "sampling_parameters.tempo"),
        ({"inputs": [_texts("text_input", "a")],
          "outputs": [{"name": "text_output", "parameters": {"classification": 2}}]},
         "classification"),
        ({"inputs": [{**_texts("text_input", "a"),
                      "parameters": {"shared_memory_region": "r"}}]}, "shared_memory_region"),
    ],
)  # fmt: skip
def test_what_is_not_done_is_refused_by_name(url: str, body: dict[str, Any], named: str) -> None:
    refused = httpx.post(f"{url}/v2/models/tiny/infer", json=body)
    assert refused.status_code == 400, refused.text
    assert set(refused.json()) == {"error"} and named in refused.json()["error"]


@pytest.mark.parametrize(
    ("data", "size", "header"),
    [
        (_packed("ab")[:-1], 5, None),
        (_packed("ab") + b"\0\0", 8, None),
        (_packed("ab") + b"zz", 6, None),
        (struct.pack("<I", 1) + b"\xff", 5, None),
        (_packed("ab"), 99, None),
        (_packed("ab"), -1, None),
        (_packed("ab"), 6, "0"),
        (_packed("ab"), 6, "9999"),
        (_packed("ab"), 6, "x"),
        (_packed("ab"), 6, "1" * 5000),
    ],
)
def test_wrong_bytes_are_refused(url: str, data: bytes, size: int, header: str | None) -> None:
    tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES"}
    body = {"inputs": [{**tensor, "parameters": {"binary_data_size": size}}]}
    head = msgspec.json.encode(body)
    headers = {LENGTH: header or str(len(head))}
    refused = httpx.post(f"{url}/v2/models/tiny/infer", content=head + data, headers=headers)
    assert refused.status_code == 400 and set(refused.json()) == {"error"}, refused.text


def test_options_come_from_three_places(url: str, engine: ScriptedEngine) -> None:
    inputs = [
        _texts("text_input", "a"),
        _texts("sampling_parameters", '{"temperature": "0.5", "top_k": 3, "stop": ["q"]}'),
        {"name": "seed", "shape": [1], "datatype": "INT64", "data": [7]},
    ]
    assert _infer(url, *inputs, parameters={"top_p": 0.5, "stop_words": ["z"]}).status_code == 200
    sampling = engine.requests[-1].sampling
    assert (sampling.temperature, sampling.top_k, sampling.seed, sampling.top_p) == (0.5, 3, 7, 0.5)
    assert sampling.stop == ("z",)  # what stands outside of sampling_parameters wins


def test_models_and_server(url: str) -> None:
    get, post = httpx.get, httpx.post
    assert get(f"{url}/v2").json()["name"] == "tidemill"
    for path in (
        "health/live",
        "health/ready",
        "models/tiny/ready",
        "models/tiny/versions/1/ready",
    ):
        assert get(f"{url}/v2/{path}").status_code == 200
    found = get(f"{url}/v2/models/org/tide").json()
    assert found["name"] == "org/tide" and found["versions"] == ["1"]
    assert found["inputs"][0] == {"name": "text_input", "datatype": "BYTES", "shape": [-1]}
    configured = get(f"{url}/v2/models/tiny/config").json()["input"]
    assert configured[0]["data_type"] == "TYPE_STRING" and configured[-1]["optional"]
    for path in ("models/dodo", "models/tiny/versions/2", "models/dodo/ready", "models/dodo/stats"):
        assert set(get(f"{url}/v2/{path}").json()) == {"error"}
        assert get(f"{url}/v2/{path}").status_code == 404
    assert post(f"{url}/v2/models/tiny/think").json()["error"]
    cards = post(f"{url}/v2/repository/index").json()
    assert [(c["name"], c["state"]) for c in cards] == [("tiny", "READY"), ("org/tide", "READY")]
    _infer(url, _texts("text_input", "a"))
    _infer(url, _texts("text_input", "a"), parameters={"max_tokens": 10**6})
    [counted] = get(f"{url}/v2/models/stats").json()["model_stats"]
    assert counted["inference_stats"]["success"]["count"] == 1
    assert counted["inference_stats"]["success"]["ns"] > 0


def test_models_are_loaded_and_unloaded(url: str) -> None:
    post = httpx.post
    assert post(f"{url}/v2/repository/models/tiny/unload").status_code == 200
    assert post(f"{url}/v2/repository/index", json={"ready": True}).json() == []
    assert httpx.get(f"{url}/v2/models/tiny/ready").status_code == 200  # loaded on demand
    assert post(f"{url}/v2/repository/models/tiny/load").status_code == 200
    assert len(post(f"{url}/v2/repository/index", json={"ready": True}).json()) == 2
    body = {"parameters": {"config": "{}"}}
    refused = post(f"{url}/v2/repository/models/tiny/load", json=body)
    assert refused.status_code == 400 and "config" in refused.json()["error"]
    assert post(f"{url}/v2/repository/models/dodo/load").status_code == 404


def test_an_engine_that_has_ended_is_not_ready(url: str, engine: ScriptedEngine) -> None:
    engine.dead = True
    for path in ("health/ready", "models/tiny/ready"):
        found = httpx.get(f"{url}/v2/{path}")
        assert found.status_code == 503 and "has ended" in found.json()["error"]
    assert httpx.get(f"{url}/v2/health/live").status_code == 200
