"""Targets whose engines compute prompts for others answer where nothing else does."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from helpers.scripted_target import ScriptedTarget, chat, running

from tidemill.gateway.asked import read
from tidemill.gateway.config import checked
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.probe import Probes

CHAT = "/v1/chat/completions"


def _load(role: str) -> dict[str, Any]:
    return {"protocol": 1, "models": {"m": {"role": role}}}


async def _given(fleet: Fleet, count: int = 12) -> set[str]:
    """The targets of some requests."""
    found = set()
    for i in range(count):
        body = {"model": "m", "messages": [{"role": "user", "content": f"{i} " * 200}]}
        route = await fleet.route(read(CHAT, json.dumps(body).encode()).with_keys())
        found.add(route.target.name)
        route.end()
    return found


async def test_who_computes_prompts_answers_where_nobody_else_does() -> None:
    roles = ("prefill", "decode", "both")
    targets = [ScriptedTarget(chat("x"), load=_load(role)) for role in roles]
    with running(*targets):
        rows = [
            {"name": role, "url": one.url, "models": ["m"]}
            for role, one in zip(roles, targets, strict=True)
        ]
        fleet = Fleet(checked({"targets": rows}), Random(1))
        probes = Probes(fleet)
        for one in fleet.targets:
            await probes.look(one)
        assert await _given(fleet) == {"decode", "both"}
        for target in targets[1:]:
            target.well = False
        for one in fleet.targets:
            await probes.look(one)
        assert await _given(fleet) == {"prefill"}
        for one in fleet.targets:
            one.pool.close()
