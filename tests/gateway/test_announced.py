"""What targets say of their caches, and several gateways in front of them."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from helpers.gateway import door
from helpers.scripted_target import ScriptedTarget, chat, running

from tidemill.gateway.asked import read
from tidemill.gateway.config import checked
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.probe import Probes

CHAT = "/v1/chat/completions"


def _body(text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


async def _cached(fleet: Fleet, text: str) -> int:
    asked = read(CHAT, json.dumps(_body(text)).encode()).with_keys()
    route = await fleet.route(asked)
    route.end()
    return route.cached


def _load(engine: str, tokens: int) -> dict[str, Any]:
    return {"protocol": 1, "models": {"m": {"engine": engine, "cache_tokens": tokens}}}


async def test_an_engine_that_is_another_has_nothing_cached() -> None:
    with running(target := ScriptedTarget(chat("x"), load=_load("one", 10**5))):
        fleet = Fleet(checked({"targets": [{"name": "a", "url": target.url}]}))
        [one], probes = fleet.targets, Probes(fleet)
        await probes.look(one)
        assert await _cached(fleet, "word " * 400) == 0
        assert await _cached(fleet, "word " * 400) > 300
        await probes.look(one)
        assert await _cached(fleet, "word " * 400) > 300
        target.load = _load("two", 10**5)
        await probes.look(one)
        assert await _cached(fleet, "word " * 400) == 0
        target.load = _load("two", 128)  # its cache holds no more
        await probes.look(one)
        assert await _cached(fleet, "word " * 400) == 128
        one.pool.close()


async def test_gateways_send_a_prompt_to_one_target_without_knowing_of_each_other() -> None:
    rows = [{"name": name, "url": f"http://{name}", "models": ["m"]} for name in "abc"]
    fleets = [Fleet(checked({"targets": rows}), Random(i)) for i in range(2)]
    found = []
    for i in range(24):
        asked = read(CHAT, json.dumps(_body(f"{i} " + "word " * 400)).encode()).with_keys()
        routes = [await fleet.route(asked) for fleet in fleets]
        found.append({route.target.name for route in routes})
        for route in routes:
            assert route.presumed and route.cached > 100
            route.used(500, 0, 1)  # nothing of it was there
            route.end()
    assert all(len(names) == 1 for names in found) and len(set.union(*found)) == 3
    trusts = [target.trust.share for target in fleets[0].targets]
    assert all(share < 0.85 for share in trusts)
    again = await fleets[0].route(asked)
    assert not again.presumed and again.target.name in found[-1]


def test_what_a_gateway_presumes_is_compared_with_what_answers_say() -> None:
    targets = [ScriptedTarget(chat("x")) for _ in range(2)]
    with running(*targets), door(targets) as gateway:
        for i in range(6):
            gateway.http.post(CHAT, json=_body(f"{i} " + "word " * 400))
        found = gateway.http.get("/admin/targets").json()["targets"]
    assert any(one["home_share"] < 0.9 for one in found)  # they say that nothing was cached
