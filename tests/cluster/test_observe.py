"""What is read of engines and gateways."""

from __future__ import annotations

import pytest
from helpers.scripted_target import ScriptedTarget, chat, running

from tidemill.cluster.observe import EngineView, Server, first_tokens
from tidemill.cluster.scaling import State

TEXT = """# HELP tidemill_ttft_seconds Time to first token
tidemill_ttft_seconds_bucket{le="0.5",model="a"} 3.0
tidemill_ttft_seconds_bucket{le="1.0",model="a"} 5.0
tidemill_ttft_seconds_bucket{le="+Inf",model="a"} 9.0
tidemill_ttft_seconds_count{model="a"} 9.0
tidemill_ttft_seconds_bucket{le="0.5",model="b"} 1.0
tidemill_ttft_seconds_bucket{le="1.0",model="b"} 1.0
tidemill_ttft_seconds_bucket{le="+Inf",model="b"} 1.0
tidemill_ttft_seconds_count{model="b"} 1.0
tidemill_other_bucket{le="0.5"} 100.0
"""


@pytest.mark.parametrize(
    ("seconds", "good"), [(0.2, 0.0), (0.5, 4.0), (0.9, 4.0), (1.0, 6.0), (99.0, 6.0)]
)
def test_first_tokens_within_an_objective(seconds: float, good: float) -> None:
    assert first_tokens(TEXT, seconds) == (good, 10.0)


async def test_an_engine_says_how_it_is() -> None:
    target = ScriptedTarget(chat("x"))
    target.load = {"server_load": 3, "models": {"m": {"wait": 1.5, "slots": 8}}}
    with running(target):
        server = Server(target.url, "k")
        view = EngineView(server)
        assert await server.get("/load") is not None
        await view.look(5.0, None)
        facts = view.facts("a", State.READY, 2)
        server.close()
    assert (facts.running, facts.wait, facts.slots, facts.arrived) == (3, 1.5, 8, 2)
    assert b"authorization: bearer k" in bytes(target.bytes_in).lower()
    view.server = Server("http://127.0.0.1:1", "k")  # where nobody listens
    await view.look(9.0, None)
    assert view.answered == 5.0
