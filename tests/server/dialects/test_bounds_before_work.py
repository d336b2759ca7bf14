"""What is refused costs nothing before it is: no choice, no matcher, no token is made for it."""

from __future__ import annotations

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.generation import choices, prepare
from tidemill.server.host import generation


def test_too_many_choices_are_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("work for a request that is refused")

    monkeypatch.setattr(choices, "AnswerText", never)
    monkeypatch.setattr(generation, "StopSet", never)
    monkeypatch.setattr(prepare, "encode_source", never)
    engine = ScriptedEngine()
    body = {"prompt": ["a"] * 256, "n": 128, "stop": ["x" * 1000, "y" * 1000]}
    with serving(fake_context(engine)) as url:
        answer = httpx.post(f"{url}/v1/completions", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "n"
    assert "32768" in error["message"] and "4096" in error["message"]
    assert not engine.requests


def test_choices_share_their_stop_strings_and_a_prompts_logprobs() -> None:
    made = []

    class Counted(generation.StopSet):
        def __init__(self, stops: tuple[str, ...]) -> None:
            super().__init__(stops)
            made.append(stops)

    engine = ScriptedEngine(lambda request, choice: [97, 98, 99])
    with pytest.MonkeyPatch.context() as patch, serving(fake_context(engine)) as url:
        patch.setattr(generation, "StopSet", Counted)
        body = {"prompt": ["ab", "cd"], "n": 8, "stop": ["bc"], "prompt_logprobs": 1}
        answer = httpx.post(f"{url}/v1/completions", json=body)
    assert made == [("bc",)]
    found = answer.json()["choices"]
    assert [c["text"] for c in found] == ["a"] * 16
    assert [c["finish_reason"] for c in found] == ["stop"] * 16
    assert all(len(c["prompt_logprobs"]) == 3 for c in found)
    assert found[0]["prompt_logprobs"] != found[8]["prompt_logprobs"]
