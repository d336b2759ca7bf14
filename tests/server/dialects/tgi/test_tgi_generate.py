"""TGI's routes: parameters by their names, tokens, details, streams and errors in TGI's shape."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import EOS, ScriptedEngine

from tidemill.contract.request import EngineRequest
from tidemill.server.context import ServerContext

TEXT = "the tide turns. é END and more"


def _script(request: EngineRequest, choice: int) -> list[int]:
    return [*TEXT.encode(), EOS]


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(_script)


@pytest.fixture
def context(engine: ScriptedEngine) -> ServerContext:
    return fake_context(engine)


@pytest.fixture
def url(context: ServerContext) -> Iterator[str]:
    with serving(context) as url:
        yield url


def _post(url: str, path: str = "/generate", **body: Any) -> httpx.Response:
    return httpx.post(url + path, json={"inputs": "sea", **body})


def _events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return [
        msgspec.json.decode(line[5:]) for line in response.text.splitlines() if line[:5] == "data:"
    ]


def test_a_whole_answer(url: str) -> None:
    assert _post(url).json() == {"generated_text": TEXT}
    assert _post(url, "/").json() == [{"generated_text": TEXT}]
    full = _post(url, parameters={"return_full_text": True}).json()
    assert full == {"generated_text": "sea" + TEXT}


def test_details_have_every_token(url: str) -> None:
    asked = {"details": True, "decoder_input_details": True, "top_n_tokens": 2}
    details = _post(url, parameters=asked).json()["details"]
    tokens = details["tokens"]
    assert details["finish_reason"] == "eos_token" and details["seed"] is None
    assert details["generated_tokens"] == len(tokens) == len(TEXT.encode()) + 1
    assert "".join(t["text"] for t in tokens if not t["special"]) == TEXT
    assert tokens[-1] == {"id": EOS, "text": "<|end|>", "logprob": -0.5, "special": True}
    assert [len(top) for top in details["top_tokens"]] == [2] * len(tokens)
    assert [t["id"] for t in details["prefill"]] == [256, *b"sea"]
    assert details["prefill"][0]["logprob"] is None
    assert details["prefill"][1]["text"] == "s"
    plain = _post(url, parameters={"details": True}).json()["details"]
    assert plain["prefill"] == [] and "top_tokens" not in plain


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"stop": ["END"]},
        {"max_new_tokens": 17},  # half of a character
        {"max_new_tokens": 9, "do_sample": True, "seed": 2**64 - 1},
        {"top_n_tokens": 3, "return_full_text": True},
    ],
)
def test_a_stream_equals_the_whole(url: str, asked: dict[str, Any]) -> None:
    asked = {**asked, "details": True}
    whole = _post(url, parameters=asked).json()
    for path, more in (("/generate_stream", {}), ("/", {"stream": True})):
        events = _events(_post(url, path, parameters=asked, **more))
        assert [e["token"] for e in events] == whole["details"]["tokens"]
        assert [e["index"] for e in events] == [*range(1, len(events) + 1)]
        assert [e["generated_text"] for e in events[:-1]] == [None] * (len(events) - 1)
        assert events[-1]["generated_text"] == whole["generated_text"]
        spoken = "".join(e["token"]["text"] for e in events if not e["token"]["special"])
        before = "sea" if asked.get("return_full_text") else ""
        assert before + spoken == whole["generated_text"]
        last = events[-1]["details"]
        assert last["input_length"] == 4
        for name in ("finish_reason", "generated_tokens", "seed"):
            assert last[name] == whole["details"][name]
        if "top_n_tokens" in asked:
            assert [e["top_tokens"] for e in events] == whole["details"]["top_tokens"]


def test_a_stop_string_is_part_of_the_text(url: str) -> None:
    for name in ("stop", "stop_sequences"):
        answer = _post(url, parameters={name: ["END"], "details": True}).json()
        assert answer["generated_text"] == TEXT[: TEXT.index("END") + 3]
        assert answer["details"]["finish_reason"] == "stop_sequence"


def test_a_stream_without_details_has_none(url: str) -> None:
    last = _events(_post(url, "/generate_stream"))[-1]
    assert last["details"] is None and last["generated_text"] == TEXT
    assert "top_tokens" not in last


@pytest.mark.parametrize(
    ("asked", "temperature"),
    [
        ({}, 0.0),
        ({"temperature": 1.0, "top_k": 0, "top_p": 1.0}, 0.0),
        ({"do_sample": False}, 0.0),
        ({"do_sample": True}, 1.0),
        ({"temperature": 0.5}, 0.5),
        ({"top_k": 5}, 1.0),
        ({"top_p": 0.9, "do_sample": False}, 1.0),
    ],
)
def test_sampling_is_asked_for(
    url: str, engine: ScriptedEngine, asked: dict[str, Any], temperature: float
) -> None:
    assert _post(url, parameters=asked).status_code == 200
    assert engine.requests[-1].sampling.temperature == temperature


def test_parameters_reach_the_engine(url: str, engine: ScriptedEngine) -> None:
    asked = {
        **{"top_k": 7, "top_p": 0.75, "repetition_penalty": 1.25, "frequency_penalty": 0.5},
        **{"seed": 2**64 - 1, "max_new_tokens": 12, "truncate": 2},
    }
    answer = _post(url, parameters={**asked, "details": True}).json()
    request = engine.requests[-1]
    sampling = request.sampling
    assert request.prompt_token_ids == (256, *b"a")
    assert (sampling.top_k, sampling.top_p, sampling.repetition_penalty) == (7, 0.75, 1.25)
    assert (sampling.frequency_penalty, sampling.seed, sampling.max_tokens) == (0.5, -1, 12)
    assert answer["details"]["seed"] == 2**64 - 1
    assert answer["details"]["finish_reason"] == "length"
    _post(url)
    assert engine.requests[-1].sampling.max_tokens == 100


def test_a_models_recommendations_are_not_tgis_defaults() -> None:
    engine = ScriptedEngine(_script)
    with serving(fake_context(engine, defaults={"top_k": 3, "temperature": 0.1})) as url:
        assert _post(url, parameters={"do_sample": True}).status_code == 200
    assert engine.requests[-1].sampling.top_k == 0
    assert engine.requests[-1].sampling.temperature == 1.0


def test_best_of_is_the_likeliest() -> None:
    def script(request: EngineRequest, choice: int) -> list[int]:
        return [*f"choice {choice}".encode(), EOS]

    engine = ScriptedEngine(script)
    with serving(fake_context(engine)) as url:
        asked = {"best_of": 3, "do_sample": True, "details": True}
        answer = _post(url, parameters=asked).json()
        bare = _post(url, parameters={"best_of": 3, "do_sample": True}).json()
    # The scripted logprobs are all equal: the first one wins.
    assert answer["generated_text"] == bare["generated_text"] == "choice 0"
    others = answer["details"]["best_of_sequences"]
    assert [o["generated_text"] for o in others] == ["choice 1", "choice 2"]
    assert all(o["finish_reason"] == "eos_token" and o["tokens"] for o in others)


@pytest.mark.parametrize(
    ("grammar", "kind"),
    [
        ({"type": "json", "value": {"type": "object"}}, "json_schema"),
        ({"type": "json", "value": '{"type": "object"}'}, "json_schema"),
        (
            {"type": "json_schema", "value": {"name": "a", "schema": {"type": "array"}}},
            "json_schema",
        ),
        ({"type": "regex", "value": "a+"}, "regex"),
    ],
)
def test_a_grammar_is_a_program(
    url: str, engine: ScriptedEngine, grammar: dict[str, Any], kind: str
) -> None:
    assert _post(url, parameters={"grammar": grammar}).status_code == 200
    assert kind in str(engine.requests[-1].program)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"parameters": {"watermark": True}}, "parameters.watermark"),
        ({"parameters": {"typical_p": 1.9}}, "parameters.typical_p"),
        ({"parameters": {"adapter_id": "mine"}}, "parameters.adapter_id"),
        ({"parameters": {"temperature": -1}}, "parameters.temperature"),
        ({"parameters": {"top_p": 2}}, "parameters.top_p"),
        ({"parameters": {"top_k": "many"}}, "parameters.top_k"),
        ({"parameters": {"seed": -1}}, "parameters.seed"),
        ({"parameters": {"truncate": 0}}, "parameters.truncate"),
        ({"parameters": {"max_new_tokens": 0}}, "parameters.max_new_tokens"),
        ({"parameters": {"max_new_tokens": 10**6}}, "parameters.max_new_tokens"),
        ({"parameters": {"best_of": 2}}, "parameters.do_sample"),
        ({"parameters": {"best_of": 0}}, "parameters.best_of"),
        ({"parameters": {"top_n_tokens": 21, "details": True}}, "parameters.top_n_tokens"),
        ({"parameters": {"top_n_tokens": 2}}, "parameters.details"),
        ({"parameters": {"decoder_input_details": True}}, "parameters.details"),
        ({"parameters": {"stop": ["a"] * 17}}, "parameters.stop"),
        ({"parameters": {"stop_sequences": [""]}}, "parameters.stop_sequences"),
        ({"parameters": {"grammar": {"type": "json", "value": 3}}}, "parameters.grammar.value"),
        ({"parameters": {"grammar": {"type": "lark", "value": ""}}}, "parameters.grammar.type"),
        ({"parameters": {"min_p": 0.5}}, "parameters.min_p"),
        ({"inputs": ""}, "inputs"),
        ({"inputs": "a" * 10**4}, "inputs"),
        ({"stream": True}, "/generate_stream"),
        ({"model": "dodo"}, "dodo"),
        ({"feather": 1}, "feather"),
    ],
)
def test_what_is_not_done_is_refused_by_name(url: str, body: dict[str, Any], named: str) -> None:
    refused = _post(url, **body)
    assert refused.status_code in (400, 404), refused.text
    document = refused.json()
    assert set(document) == {"error", "error_type"}
    assert document["error_type"] == "validation"
    assert named in document["error"]


def test_what_cannot_be_streamed_is_refused(url: str) -> None:
    for asked, named in (
        ({"best_of": 2, "do_sample": True}, "best_of"),
        ({"details": True, "decoder_input_details": True}, "decoder_input_details"),
    ):
        refused = _post(url, "/generate_stream", parameters=asked)
        assert refused.status_code == 400 and named in refused.json()["error"]
    refused = _post(url, "/generate_stream", stream=False)
    assert refused.status_code == 400 and "/generate" in refused.json()["error"]


def test_values_that_clients_send_by_default_change_nothing(url: str) -> None:
    # As huggingface_hub.InferenceClient sends them.
    asked = {
        **dict.fromkeys(("adapter_id", "best_of", "grammar", "seed", "stop", "truncate")),
        **{
            "do_sample": False,
            "watermark": False,
            "typical_p": None,
            "decoder_input_details": None,
        },
        **{"return_full_text": False, "details": False, "temperature": None, "top_k": None},
    }
    assert _post(url, "/", parameters=asked, stream=False).json() == [{"generated_text": TEXT}]


def test_unknown_routes_have_the_shape(url: str) -> None:
    for path in ("/generate", "/generate_all"):
        found = httpx.get(url + path)
        assert found.status_code in (404, 405) and found.json()["error_type"] == "validation"
    assert httpx.post(url + "/generate", content="{").json()["error_type"] == "validation"


def test_a_failure_within_a_stream(engine: ScriptedEngine, url: str) -> None:
    engine.fail_after = 3
    last = _events(_post(url, "/generate_stream"))[-1]
    assert set(last) == {"error", "error_type"} and last["error_type"] == "generation"


def test_info(url: str, context: ServerContext) -> None:
    found = httpx.get(url + "/info").json()
    assert found["model_id"] == context.host.default.name
    assert found["max_total_tokens"] == 256 and found["max_input_tokens"] == 255
    assert found["model_pipeline_tag"] == "text-generation"


VALUES: dict[str, list[Any]] = {
    "do_sample": [None, True, False],
    "temperature": [None, 0.7],
    "top_k": [None, 3],
    "best_of": [None, 1, 2],
    "details": [None, True],
    "decoder_input_details": [None, True],
    "top_n_tokens": [None, 0, 2],
    "stop": [None, [], ["tide"]],
    "return_full_text": [None, True],
    "seed": [None, 0, 7],
    "truncate": [None, 1],
    "typical_p": [None, 1.0, 0.5],
    "watermark": [None, False, True],
    "grammar": [None, {"type": "regex", "value": "a+"}],
}


def test_every_pair_of_parameters_works_or_is_refused_by_name(url: str) -> None:
    draw = random.Random(7)
    left = {
        frozenset(((a, str(va)), (b, str(vb))))
        for a, b in itertools.combinations(VALUES, 2)
        for va in VALUES[a]
        for vb in VALUES[b]
    }
    with httpx.Client() as client:
        for _ in range(400):
            if not left:
                break
            asked = {name: draw.choice(values) for name, values in VALUES.items()}
            left -= {
                frozenset(((a, str(asked[a])), (b, str(asked[b]))))
                for a, b in itertools.combinations(asked, 2)
            }
            stream = draw.random() < 0.5
            body = {"inputs": "sea", "parameters": {**asked, "max_new_tokens": 5}, "stream": stream}
            answer = client.post(url, json=body)
            if answer.status_code == 400:
                assert "parameters." in answer.json()["error"], (asked, answer.text)
                continue
            assert answer.status_code == 200, (asked, answer.text)
            if stream:
                assert _events(answer)[-1]["generated_text"] is not None
            else:
                assert ("details" in answer.json()[0]) == bool(asked["details"])
    assert not left


def test_the_default_bound_is_clipped_to_the_context(url: str, engine: ScriptedEngine) -> None:
    assert _post(url, inputs="a" * 200).status_code == 200
    assert engine.requests[-1].sampling.max_tokens == 256 - 201


def test_token_ids_as_inputs(url: str, engine: ScriptedEngine) -> None:
    asked = {"return_full_text": True, "truncate": 3}
    answer = _post(url, inputs=[256, *b"sea"], parameters=asked)
    assert answer.json()["generated_text"] == "sea" + TEXT
    assert engine.requests[-1].prompt_token_ids == tuple(b"sea")
    assert answer.headers["x-tidemill-truncated"] == "inputs"
    for wrong in ([], ["a", "b"], [1.5], [320], 7, None):
        answer = _post(url, inputs=wrong)
        assert answer.status_code == 400, answer.text
        assert "inputs" in answer.json()["error"]
