"""Triton's generate extension."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import EOS, ScriptedEngine

from tidemill.contract.request import EngineRequest

NAMED = {"model_name": "tiny", "model_version": "1"}


def _script(request: EngineRequest, choice: int) -> list[int]:
    return [*" and ébb".encode(), EOS]


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(_script)


@pytest.fixture
def url(engine: ScriptedEngine) -> Iterator[str]:
    with serving(fake_context(engine)) as url:
        yield url


def _post(url: str, verb: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v2/models/tiny/{verb}", json={"text_input": "flow", **body})


def _events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    lines = response.text.splitlines()
    return [msgspec.json.decode(line[5:]) for line in lines if line.startswith("data:")]


def test_a_whole_answer(url: str, engine: ScriptedEngine) -> None:
    assert _post(url, "generate").json() == {**NAMED, "text_output": "flow and ébb"}
    # Options beside the text, as for TensorRT-LLM, or within parameters, as for vLLM.
    asked = {"exclude_input_in_output": True, "stream": False, "temperature": 0}
    answer = _post(url, "generate", parameters=asked, max_tokens=4, bad_words="", id="7").json()
    assert answer == {**NAMED, "id": "7", "text_output": " and"}
    sampling = engine.requests[-1].sampling
    assert (sampling.temperature, sampling.max_tokens) == (0, 4)
    more = {f"return_{name}": True for name in ("finish_reason", "num_input_tokens")}
    answer = _post(url, "generate", parameters=more).json()
    assert (answer["finish_reason"], answer["num_input_tokens"]) == ("stop", 5)
    both = _post(url, "generate", n=2, exclude_input_in_output=True).json()
    assert both["text_output"] == [" and ébb"] * 2


@pytest.mark.parametrize("asked", [{}, {"max_tokens": 6}, {"stop": ["bb"]}])
def test_a_stream_equals_the_whole(url: str, asked: dict[str, Any]) -> None:
    more = {**asked, "return_finish_reason": True, "return_num_output_tokens": True}
    whole = _post(url, "generate", **more, exclude_input_in_output=True).json()
    events = _events(_post(url, "generate_stream", **more, stream=True))
    assert "".join(e["text_output"] for e in events) == whole["text_output"]
    for name in ("finish_reason", "num_output_tokens", "model_name", "model_version"):
        assert events[-1][name] == whole[name]
    assert "finish_reason" not in events[0]


def test_refusals_and_failures_have_the_shape(url: str, engine: ScriptedEngine) -> None:
    for verb, body, named in (
        ("generate", {"stream": True}, "generate_stream"),
        ("generate_stream", {"parameters": {"stream": False}}, "generate"),
        ("generate_stream", {"n": 2}, "n"),
        ("generate_stream", {"exclude_input_in_output": False}, "exclude_input_in_output"),
        ("generate", {"top_k": 3, "parameters": {"top_k": 4}}, "top_k"),
        ("generate", {"text_input": ""}, "text_input"),
        ("generate", {"dimensions": 4}, "dimensions"),
        ("generate", {"beam_width": 4, "temperature": 0.7}, "temperature"),
        ("generate", {"image": "x"}, "image"),
    ):
        refused = _post(url, verb, **body)
        assert refused.status_code == 400 and named in refused.json()["error"], refused.text
    engine.fail_after = 3
    assert set(_events(_post(url, "generate_stream"))[-1]) == {"error"}
