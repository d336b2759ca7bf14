"""`X-Tidemill-Seed`: the seed of requests that say none."""

from __future__ import annotations

import httpx
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

SAID = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def test_it_is_the_seed_where_the_body_has_none() -> None:
    engine = ScriptedEngine()
    with serving(fake_context(engine)) as url, httpx.Client(base_url=url) as client:
        seed = {"x-tidemill-seed": "7"}
        for path, body in (("/v1/messages", SAID), ("/v1/chat/completions", {**SAID, "seed": 5})):
            answer = client.post(path, json={**body, "model": "tiny"}, headers=seed)
            assert answer.status_code == 200
        wrong = client.post("/v1/messages", json=SAID, headers={"x-tidemill-seed": "-1"})
        assert wrong.status_code == 400 and "X-Tidemill-Seed" in wrong.text
    assert [request.sampling.seed for request in engine.requests] == [7, 5]
