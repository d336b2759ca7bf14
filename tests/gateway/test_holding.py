"""Requests for a model whose engines come and go wait for one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from helpers.gateway import ASK, Door, door
from helpers.scripted_target import ScriptedTarget, chat, dies, refuses, running

from tidemill.gateway.config import checked

CHAT = "/v1/chat/completions"


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _held(gateway: Door) -> Any:
    return gateway.http.get("/admin/targets").json()["held"].get("m", {}).get("requests", 0)


def _tell(gateway: Door, targets: dict[str, ScriptedTarget], **scaled: Any) -> None:
    """Reload the gateway's file with other targets."""
    rows = [
        {"name": name, "url": one.url, "kind": "vllm", "models": ["m"]}
        for name, one in targets.items()
    ]
    routing = {"probe_seconds": 3600.0, "wake_seconds": 0.0}
    gateway.fleet.reload(checked({"targets": rows, "routing": routing, "scaled": {"m": scaled}}))


@contextmanager
def _asked(gateway: Door, number: int = 1, body: Any = ASK) -> Iterator[list[Future[Any]]]:
    with ThreadPoolExecutor(number) as pool:
        post = gateway.http.post
        yield [pool.submit(post, CHAT, json=body, timeout=60) for _ in range(number)]


def test_a_request_waits_for_the_first_engine() -> None:
    target = ScriptedTarget(chat("hello"))
    with running(target), door([], scaled={"m": {}}) as gateway:
        assert gateway.http.get("/readyz").status_code == 200  # else nobody would wake the model
        assert [m["id"] for m in gateway.http.get("/v1/models").json()["data"]] == ["m"]
        nameless = {"messages": ASK["messages"]}
        with _asked(gateway, 3) as asked, _asked(gateway, 1, nameless) as other:
            _until(lambda: _held(gateway) == 4)
            assert 'tidemill_gateway_held{model="m"} 4.0' in gateway.http.get("/metrics").text
            _tell(gateway, {"a": target})
            answers = [one.result().json() for one in (*asked, *other)]
        assert {one["choices"][0]["message"]["content"] for one in answers} == {"hello"}
        assert _held(gateway) == 0
        assert gateway.http.post(CHAT, json={**ASK, "model": "x"}).status_code == 404


def test_no_longer_than_it_is_to_and_no_more_than_may() -> None:
    with door([], scaled={"m": {"hold_seconds": 0.3, "max_held": 2}}) as gateway:
        with _asked(gateway, 2) as asked:
            _until(lambda: _held(gateway) == 2)
            full = gateway.http.post(CHAT, json=ASK)
            ended = [one.result() for one in asked]
        assert full.status_code == 429 and "scaled.max_held" in full.text
        assert [one.status_code for one in ended] == [503, 503]
        assert all("retry-after" in one.headers for one in (full, *ended))
        late = gateway.http.post(CHAT, json=ASK, headers={"x-request-timeout": "0.05"})
        assert late.status_code == 503 and _held(gateway) == 0


@pytest.mark.parametrize(
    "bad", [dies(), refuses(503, retry_after=60), refuses(429, retry_after=60)]
)
def test_a_request_that_an_engine_did_not_take_waits_for_another(bad: Any) -> None:
    """An engine that drains or was killed, and the one that comes instead."""
    old, new = ScriptedTarget(bad), ScriptedTarget(chat("yes"))
    opened = door([old], scaled={"m": {}})
    with running(old, new), opened as gateway, _asked(gateway, 2) as asked:
        _until(lambda: _held(gateway) == 2)
        _tell(gateway, {"b": new})
        assert {one.result().headers["x-tidemill-target"] for one in asked} == {"b"}


def test_an_engine_that_comes_back_under_its_name_is_asked_again() -> None:
    target = ScriptedTarget(dies())
    with running(target), door([target], scaled={"m": {}}) as gateway:
        health = gateway.fleet.targets[0].health
        health.failed(0.0, "down", down=True)
        health.opened = float("inf")
        with _asked(gateway) as [asked]:
            _until(lambda: _held(gateway) == 1)
            target.script = chat("back")
            health.succeeded()
            assert asked.result().json()["choices"][0]["message"]["content"] == "back"


def test_a_client_that_leaves_is_no_longer_held() -> None:
    with door([], scaled={"m": {}}) as gateway:
        left = threading.Event()

        def leave() -> None:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(gateway.url + CHAT, json=ASK, timeout=0.5)
            left.set()

        thread = threading.Thread(target=leave)
        thread.start()
        _until(lambda: _held(gateway) == 1)
        thread.join()
        assert left.is_set()
        _until(lambda: _held(gateway) == 0)
