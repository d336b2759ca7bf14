"""A gateway explains where a request's time went: which targets it was given to, and when."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.gateway import ASK, door, streamed
from helpers.scripted_target import ScriptedTarget, chat, dies, refuses, running

from tidemill.telemetry.phases import PHASES
from tidemill.telemetry.timeline import text

CHAT = "/v1/chat/completions"
STREAM = {**ASK, "stream": True}
IN_TURNS = {"policy": "round-robin"}


def _explained(gateway: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = gateway.http.get(f"/admin/requests/{name}").json()
    total = sum(phase["seconds"] for phase in found["phases"])
    assert total == pytest.approx(found["total_seconds"], abs=1e-4)
    assert {phase["name"] for phase in found["phases"]} <= set(PHASES)
    return found


def _phases(found: dict[str, Any]) -> list[str]:
    return [phase["name"] for phase in found["phases"]]


def test_a_target_that_failed_and_the_one_that_answered() -> None:
    one, two = ScriptedTarget(refuses(500)), ScriptedTarget(chat("yes"))
    with running(one, two), door([one, two], routing=IN_TURNS) as gateway:
        for number in range(2):  # in turns: at least one is given to the first target
            headers = {"x-request-id": f"r{number}"}
            assert gateway.http.post(CHAT, json=STREAM, headers=headers).status_code == 200
        found = [_explained(gateway, f"r{number}") for number in range(2)]
        both = next(one for one in found if len(one["targets"]) == 2)
        listed = gateway.http.get("/admin/requests").json()
    assert [way["target"] for way in both["targets"]] == ["a", "b"]
    first, second = both["targets"]
    assert first["why"] == "it answered with the status 500" and first["first_at"] is None
    assert 0 < first["at"] <= first["ended_at"] <= second["at"] <= second["first_at"]
    assert second["ended_at"] is None and second["why"] is None
    assert _phases(both) == ["read", "route", "failed", "target", "relay"]
    assert both["first_token_seconds"] == pytest.approx(second["first_at"], abs=1e-4)
    assert (both["prompt_tokens"], both["generated_tokens"]) == (7, 3)
    assert "The target a did not answer: it answered with the status 500." in both["reasons"]
    assert "a: it answered with the status 500" in text(both)
    assert {one["id"] for one in listed["requests"]} == {"r0", "r1"}


def test_a_target_that_was_lost_within_its_answer() -> None:
    one = ScriptedTarget(dies("Hel"))
    with running(one), door([one]) as gateway:
        streamed(gateway.http, CHAT, STREAM, **{"x-request-id": "r"})
        found = _explained(gateway, "r")
    [way] = found["targets"]
    assert way["first_at"] < way["ended_at"] and way["why"].startswith("the target closed")
    assert _phases(found) == ["read", "route", "target", "relay"]
    assert found["outcome"] == "failed" and found["code"] == "target_lost"


def test_nobody_answered() -> None:
    one = ScriptedTarget(refuses(500))
    with running(one), door([one]) as gateway:
        assert gateway.http.post(CHAT, json=ASK, headers={"x-request-id": "r"}).status_code == 502
        found = _explained(gateway, "r")
    assert _phases(found)[-1] == "failed" and found["targets"][0]["first_at"] is None
