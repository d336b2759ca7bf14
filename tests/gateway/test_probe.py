"""Looks at targets."""

from __future__ import annotations

import pytest
from helpers.scripted_target import ScriptedTarget, chat, running

from tidemill.base.clock import monotonic
from tidemill.gateway import look
from tidemill.gateway.config import checked
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.probe import Probes
from tidemill.gateway.routing.health import State


async def test_a_target_that_is_late_once_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine all targets would be taken out for a hiccup of it."""
    with running(target := ScriptedTarget(chat("x"))):
        fleet = Fleet(checked({"targets": [{"name": "a", "url": target.url, "kind": "vllm"}]}))
        [one], probes = fleet.targets, Probes(fleet)

        async def state_after_look(*, late: bool) -> State:
            target.pause = 3600.0 if late else 0.0
            monkeypatch.setattr(look, "SECONDS", 0.05 if late else 30.0)
            await probes.look(one)
            return one.health.state(monotonic())

        assert await state_after_look(late=False) is State.CLOSED
        assert await state_after_look(late=True) is State.CLOSED
        assert await state_after_look(late=False) is State.CLOSED
        assert await state_after_look(late=True) is State.CLOSED
        assert await state_after_look(late=True) is State.OPEN
        assert one.health.reason == "no answer within 0.05 s"
        assert await state_after_look(late=False) is State.CLOSED
        one.pool.close()


async def test_a_target_that_nobody_listens_at_is_taken_out_at_once() -> None:
    nobody = {"name": "a", "url": "http://127.0.0.1:9", "kind": "vllm"}
    fleet = Fleet(checked({"targets": [nobody]}))
    await Probes(fleet).look(fleet.targets[0])
    assert fleet.targets[0].health.state(monotonic()) is State.OPEN
