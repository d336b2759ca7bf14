"""Requests through a gateway to scripted targets."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
from helpers.gateway import ASK, door, streamed, words_of
from helpers.scripted_target import (
    Got,
    ScriptedTarget,
    Send,
    chat,
    delta,
    dies,
    engine,
    refuses,
    running,
    whole,
)

CHAT = "/v1/chat/completions"
STREAM = {**ASK, "stream": True}


def test_a_whole_answer_is_passed_on_and_recorded_once() -> None:
    target = ScriptedTarget(chat("Hel", "lo"))
    with running(target), door([target], records=True) as gateway:
        answer = gateway.http.post(CHAT, json=ASK, headers={"x-request-id": "r1"})
        assert answer.json()["choices"][0]["message"]["content"] == "Hello"
        assert answer.headers["x-tidemill-target"] == "a"
        [record] = gateway.records
    [got] = target.got
    assert got.headers["x-request-id"] == "r1" and got.json == ASK
    assert (record.id, record.model, record.prompt, record.generated) == ("r1", "m", 7, 3)
    assert (record.operation, record.outcome, record.finish) == ("generate", "finished", "stop")


def test_a_stream_is_passed_on_without_the_usage_that_nobody_asked_for() -> None:
    target = ScriptedTarget(chat("Hel", "lo"))
    with running(target), door([target], records=True) as gateway:
        status, text = streamed(gateway.http, CHAT, STREAM)
        wants = {**STREAM, "stream_options": {"include_usage": True}}
        _, other = streamed(gateway.http, CHAT, wants)
    assert status == 200 and words_of(text) == "Hello" and text.endswith("data: [DONE]\n\n")
    assert "usage" not in text and '"prompt_tokens":7' in other
    assert [got.json["stream_options"] for got in target.got] == [{"include_usage": True}] * 2
    assert [(r.prompt, r.generated, r.streamed) for r in gateway.records] == [(7, 3, True)] * 2


@pytest.mark.parametrize(
    "bad", [dies(), refuses(500), refuses(503), refuses(429, retry_after=3), refuses(401)]
)
@pytest.mark.parametrize("body", [ASK, STREAM])
def test_another_target_answers_what_one_did_not_begin(bad: Any, body: Any) -> None:
    one, two = ScriptedTarget(bad), ScriptedTarget(chat("yes"))
    routing = {"policy": "round-robin"}
    with running(one, two), door([one, two], routing=routing, records=True) as gateway:
        answers = [gateway.http.post(CHAT, json=body) for _ in range(6)]
        assert {a.status_code for a in answers} == {200}
        assert {a.headers["x-tidemill-target"] for a in answers} == {"b"}
        assert len(one.got) >= 1 and len(two.got) == 6 == len(gateway.records)


def test_a_target_that_nobody_listens_at_is_taken_out_at_once() -> None:
    one, two = ScriptedTarget(chat("no")), ScriptedTarget(chat("yes"))
    with running(one):
        pass
    with running(two), door([one, two]) as gateway:
        for _ in range(10):
            assert gateway.http.post(CHAT, json=ASK).status_code == 200
        assert gateway.fleet.targets[0].load.given <= 1


def test_a_client_s_mistake_is_its_own() -> None:
    one, two = ScriptedTarget(refuses(400)), ScriptedTarget(refuses(400))
    with running(one, two), door([one, two]) as gateway:
        answer = gateway.http.post(CHAT, json=ASK)
        assert (answer.status_code, answer.json()) == (400, {"error": {"message": "no"}})
        assert len(one.got) + len(two.got) == 1


@pytest.mark.parametrize("well", [False, True])
def test_a_foreign_target_that_dies_within_an_answer_ends_it_with_an_error(well: bool) -> None:
    one, two = ScriptedTarget(dies("Hel", well=well)), ScriptedTarget(dies("Hel", well=well))
    with running(one, two), door([one, two], records=True) as gateway:
        status, text = streamed(gateway.http, CHAT, STREAM)
        assert status == 200 and words_of(text) == "Hel"
        last = text.rstrip().splitlines()[-1]
        assert '"code":"target_lost"' in last and "[DONE]" not in text
        assert len(one.got) + len(two.got) == 1
        assert gateway.records[0].outcome == "failed"


def test_busy_targets_are_not_asked_again_and_the_refusal_says_when() -> None:
    one, two = (ScriptedTarget(refuses(429, retry_after=n)) for n in (20, 40))
    with running(one, two), door([one, two]) as gateway:
        first, second = (gateway.http.post(CHAT, json=ASK) for _ in range(2))
        assert first.status_code == second.status_code == 429
        assert len(one.got) == len(two.got) == 1
        assert 19 <= int(second.headers["retry-after"]) <= 31  # the first that is free


_WORDS = ("The ", "quick ", ": tidemill {}\n\n", "brown ", "fox")
_FIRST = {"policy": "cost"}


def _two(first: ScriptedTarget, second: ScriptedTarget) -> list[dict[str, Any]]:
    """Both as Tidemill servers; the first is cheaper."""
    return [
        {"at": first, "kind": "tidemill"},
        {"at": second, "kind": "tidemill", "price": {"output": 1}},
    ]


@pytest.mark.parametrize("how", [{}, {"well": True}, {"moves": True}])
@pytest.mark.parametrize("after", [0, 1, 4])
def test_an_engine_s_end_is_not_seen_in_its_answer(how: dict[str, Any], after: int) -> None:
    one = ScriptedTarget(engine(*_WORDS, key="first", dies_after=after, **how))
    two = ScriptedTarget(engine(*_WORDS, key="second"))
    with (
        running(one, two),
        door(_two(one, two), routing=_FIRST, records=True) as gateway,
    ):
        status, text = streamed(gateway.http, CHAT, STREAM)
        assert status == 200 and words_of(text) == "".join(_WORDS)
        assert text.endswith("data: [DONE]\n\n") and "usage" not in text
        assert ('"first"' in text) == bool(after) and ('"second"' in text) == (not after)
        assert "told" not in text and "begun" not in text
        [record] = gateway.records
        assert (record.outcome, record.prompt, record.generated) == ("finished", 7, 3)
        [got] = two.got
        assert got.json["messages"] == ASK["messages"]
        if after:
            assert got.position["begun"]["key"] == "first"
            told = [one[:3] for one in got.position["told"]]
            assert told == [[0, 0, [i]] for i in range(after)]
        else:
            assert got.position is None
        failed = gateway.fleet.targets[0].health.reason
        assert bool(failed) == (not (how.get("moves") and after))


def test_a_stream_without_marks_is_not_gone_on_with() -> None:
    one, two = ScriptedTarget(dies("The ", "quick ")), ScriptedTarget(chat("The ", "fox"))
    with running(one, two), door(_two(one, two), routing=_FIRST) as gateway:
        _, text = streamed(gateway.http, CHAT, STREAM)
    assert words_of(text) == "The quick " and "target_lost" in text and not two.got


def test_a_server_that_refuses_the_position_ends_the_stream_with_an_error() -> None:
    one = ScriptedTarget(engine(*_WORDS, key="first", dies_after=2))
    two = ScriptedTarget(refuses(400))
    with running(one, two), door(_two(one, two), routing=_FIRST) as gateway:
        _, text = streamed(gateway.http, CHAT, STREAM)
    assert words_of(text) == "The quick " and "target_lost" in text


def test_a_server_of_an_older_protocol_is_not_asked_for_positions() -> None:
    target = ScriptedTarget(chat("yes"), load={"models": {"m": {}}})
    row = {"at": target, "kind": "tidemill"}
    with running(target), door([row], routing={"probe_seconds": 0.02}) as gateway:
        deadline = time.monotonic() + 10
        while gateway.fleet.targets[0].protocol is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert words_of(streamed(gateway.http, CHAT, STREAM)[1]) == "yes"
    assert "x-tidemill-position" not in target.got[0].headers


def test_a_smaller_model_answers_and_says_so() -> None:
    large, small = ScriptedTarget(refuses(503)), ScriptedTarget(chat("ok"))
    rows = [{"at": large, "models": ["large"]}, {"at": small, "models": {"small": "tiny"}}]
    with running(large, small), door(rows, fallbacks={"large": ["small"]}) as gateway:
        for body in (ASK, STREAM):
            answer = gateway.http.post(CHAT, json={**body, "model": "large"})
            assert answer.status_code == 200
            assert answer.headers["x-tidemill-fallback"] == "large -> small"
            said = '"tidemill_fallback":{"asked":"large","answered":"small"}'
            assert answer.text.count(said) == 1
            assert answer.headers["x-tidemill-model"] == "small"
    assert {got.json["model"] for got in small.got} == {"tiny"}


def test_a_second_target_is_asked_where_the_first_is_slow() -> None:
    async def slow(got: Any, send: Any) -> None:
        import asyncio

        await asyncio.sleep(5)

    one, two = ScriptedTarget(slow), ScriptedTarget(chat("quick"))
    routing = {"policy": "round-robin", "hedge_seconds": 0.05}
    with running(one, two), door([one, two], routing=routing, records=True) as gateway:
        for _ in range(2):
            answer = gateway.http.post(CHAT, json=ASK, timeout=3)
            assert answer.headers["x-tidemill-target"] == "b"
        assert len(gateway.records) == 2
        assert [target.load.active for target in gateway.fleet.targets] == [0, 0]


def test_a_gateway_that_is_its_own_target_sees_it_at_once() -> None:
    urls: list[str] = []

    async def back(got: Got, send: Send) -> None:
        """A proxy before the gateway, which somebody took for a server."""
        headers = {"via": f"{got.headers['via']}, 1.1 proxy", "content-type": "application/json"}
        answer = await asyncio.to_thread(
            httpx.post, urls[0] + CHAT, content=got.body, headers=headers, timeout=10
        )
        await whole(send, answer.json(), answer.status_code)

    proxy = ScriptedTarget(back)
    with running(proxy), door([proxy]) as gateway:
        urls.append(gateway.url)
        for body in (ASK, STREAM):
            answer = gateway.http.post(CHAT, json=body, headers={"via": "1.1 first"})
            assert answer.status_code == 502 and "leads back" in answer.text
        assert len(proxy.got) == 2
        assert proxy.got[0].headers["via"].startswith("1.1 first, 1.1 tidemill-gateway-")


def test_unknown_models_and_routes() -> None:
    target = ScriptedTarget(chat("x"))
    with running(target), door([target]) as gateway:
        answer = gateway.http.post(CHAT, json={**ASK, "model": "none"})
        assert answer.status_code == 404 and "'none'" in answer.json()["error"]["message"]
        answer = gateway.http.post("/api/chat", json=ASK)
        assert answer.status_code == 400 and "/api/chat" in answer.text
        assert gateway.http.post("/v1/files", json={}).status_code in (404, 405)
        assert [m["id"] for m in gateway.http.get("/v1/models").json()["data"]] == ["m"]


def test_a_target_that_comes_back_is_waited_for() -> None:
    target = ScriptedTarget(chat("x"))
    routing = {"wake_seconds": 20.0, "probe_seconds": 0.05}
    with running(target), door([target], routing=routing) as gateway:
        gateway.fleet.targets[0].health.failed(0.0, "down", down=True)
        gateway.fleet.targets[0].health.opened = float("inf")
        gateway.fleet.targets[0].health.begin(0.0)
        assert gateway.http.post(CHAT, json=ASK).status_code == 200


def test_a_client_that_leaves_leaves_nothing_behind() -> None:
    import asyncio

    async def endless(got: Any, send: Any) -> None:
        from helpers.scripted_target import begin, event

        await begin(send)
        while True:
            await event(send, delta("x"))
            await asyncio.sleep(0.01)

    target = ScriptedTarget(endless)
    with running(target), door([target]) as gateway:
        with gateway.http.stream("POST", CHAT, json=STREAM) as response:
            next(response.iter_bytes())
        deadline = time.monotonic() + 10
        one = gateway.fleet.targets[0]
        while one.load.active or one.pool.open:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_spent_budget_is_said_at_once() -> None:
    target = ScriptedTarget(chat("x"))
    row = {"at": target, "budget": 1.0, "price": {"output": 1e6}}
    with running(target), door([row], routing={"wake_seconds": 60.0}) as gateway:
        assert gateway.http.post(CHAT, json=ASK).status_code == 200  # three tokens
        refused = gateway.http.post(CHAT, json=ASK, timeout=20)
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "budget_spent"
