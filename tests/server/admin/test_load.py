"""/load: what a gateway asks."""

from __future__ import annotations

import httpx
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.contract.gateway import PROTOCOL


def test_load_of_an_idle_server() -> None:
    context = fake_context(ScriptedEngine(lambda request, choice: [97] * 5))
    [model] = context.host.models
    with serving(context) as url:
        found = httpx.get(f"{url}/load").json()
    assert found["server_load"] == 0 and found["protocol"] == PROTOCOL
    assert found["models"][model.name].pop("engine")
    assert found["models"] == {
        model.name: {
            "wait": 0.0,
            "queued_tokens": 0,
            "slots": model.info.max_num_seqs,
            "role": "both",
            "identity": model.info.identity,
            "cache_tokens": model.info.num_blocks * model.info.block_size,
        }
    }
