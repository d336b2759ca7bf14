"""A gateway follows the caches of its targets: real engines, whose caches are small."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.gateway import Door, door
from helpers.real_server import RealServer
from helpers.scripted_target import ScriptedTarget, chat, running

from tidemill.gateway.asked import read
from tidemill.gateway.config import checked
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.follow import Refused, ask
from tidemill.server.access.security import Security

CHAT = "/v1/chat/completions"
_ELSEWHERE = {"name": "b", "url": "http://127.0.0.1:9", "kind": "vllm", "models": ["other"]}
_QUICKLY = {"probe_seconds": 0.05}


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    flags = ("--threads", "1", "--database", "none", "--max-model-len", "1024")
    with RealServer(*flags, "--kv-memory", "12MiB") as found:
        yield found


def _body(name: str) -> dict[str, Any]:
    text = f"{name} tells of rivers. " + f"The {name} and the brook run down the hill. " * 40
    asked = [{"role": "user", "content": text}]
    return {"model": "brook", "messages": asked, "max_tokens": 1, "temperature": 0}


def _presumed(fleet: Fleet, body: dict[str, Any]) -> int:
    asked = read(CHAT, json.dumps(body, separators=(",", ":")).encode()).with_keys()
    found = fleet.announced.matched("a", "brook", asked.keys, time.monotonic())
    assert found is not None
    return found


def _until(holds: Any) -> None:
    ends = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_a_gateway_knows_what_an_engine_finds(server: RealServer) -> None:
    """After prompts that it gave it, and after those of others that evicted them."""
    rows = [{"name": "a", "url": server.url}, _ELSEWHERE]
    gateway = Door({"targets": rows, "routing": _QUICKLY}, Security(), records=False)
    try:
        _until(lambda: gateway.fleet.announced.blocks("a") is not None)
        first = gateway.http.post(CHAT, json=_body("fox")).json()["usage"]
        _until(lambda: not gateway.fleet.announced.awaited("a"))
        again = gateway.http.post(CHAT, json=_body("fox")).json()["usage"]
        cached = again["prompt_tokens_details"]["cached_tokens"]
        assert first["prompt_tokens"] > 300
        assert abs(_presumed(gateway.fleet, _body("fox")) - cached) <= 96  # a text block, a block
        for number in range(40):
            server.http.post(CHAT, json=_body(f"bird {number}"))
            if _presumed(gateway.fleet, _body("fox")) == 0:
                break
        _until(lambda: _presumed(gateway.fleet, _body("fox")) == 0)
        told = gateway.http.get("/admin/targets").json()["targets"]
        assert told[0]["cached_blocks"] > 0 and told[1]["cached_blocks"] is None
        gone = gateway.http.post(CHAT, json=_body("fox")).json()["usage"]
        assert gone["prompt_tokens_details"]["cached_tokens"] <= 96
    finally:
        gateway.close()


def test_an_engine_that_is_replaced_has_nothing_of_what_the_old_one_had(
    server: RealServer,
) -> None:
    rows = [{"name": "a", "url": server.url}, _ELSEWHERE]
    gateway = Door({"targets": rows, "routing": _QUICKLY}, Security(), records=False)
    try:
        _until(lambda: gateway.fleet.announced.blocks("a") is not None)
        gateway.http.post(CHAT, json=_body("hare"))
        _until(lambda: not gateway.fleet.announced.awaited("a"))
        assert _presumed(gateway.fleet, _body("hare")) > 300
        server.engine().kill()
        _until(lambda: gateway.fleet.announced.blocks("a") == 0)
        assert _presumed(gateway.fleet, _body("hare")) == 0
    finally:
        gateway.close()


async def test_a_target_that_does_not_say_is_presumed_to_have_what_it_was_sent() -> None:
    with running(target := ScriptedTarget(chat("x"))):
        fleet = Fleet(checked({"targets": [{"name": "a", "url": target.url}, _ELSEWHERE]}))
        with pytest.raises(Refused, match="older than this gateway"):
            await ask(fleet, fleet.targets[0], "")
        assert fleet.announced.blocks("a") is None
        fleet.targets[0].pool.close()


def test_nobody_is_followed_where_it_makes_no_difference() -> None:
    """With one target, or a policy that does not ask what is cached."""
    for routing in ({}, {"policy": "round-robin"}):
        targets = [ScriptedTarget(chat("x"), load={"protocol": 1, "models": {}}) for _ in "ab"]
        kinds = [{"at": one, "kind": "tidemill"} for one in targets[: 1 + len(routing)]]
        with running(*targets), door(kinds, routing={**_QUICKLY, **routing}) as gateway:
            _until(lambda one=targets[0]: one.bytes_in.count(b"GET /load") > 2)
        assert gateway.fleet.follows is (not routing and len(kinds) > 1)
        assert not any(b"/admin/cache" in bytes(one.bytes_in) for one in targets)
