"""`keep_alive` of a request says how long its model stays loaded, on every route of a model."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

MESSAGES = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/completions": {"prompt": "a", "max_tokens": 2},
    "/v1/responses": {"input": "a", "max_output_tokens": 2},
}


@pytest.mark.parametrize("route", ROUTES)
def test_zero_unloads_the_model_and_minutes_keep_it(route: str) -> None:
    context = fake_context(ScriptedEngine())
    slot = context.host.default
    with serving(context) as url, httpx.Client(base_url=url) as http:
        kept = http.post(route, json={**ROUTES[route], "keep_alive": "5m"})
        assert kept.status_code == 200, kept.text
        assert slot.keep_alive == 300 and slot.loaded is not None
        assert http.post(route, json=ROUTES[route]).status_code == 200
        assert slot.keep_alive == 300, "it holds until another request says otherwise"
        assert http.post(route, json={**ROUTES[route], "keep_alive": 0}).status_code == 200
        deadline = time.monotonic() + 10
        while slot.loaded is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert slot.loaded is None
        again = http.post(route, json={**ROUTES[route], "keep_alive": -1})
        assert again.status_code == 200 and slot.loaded is not None


def test_what_is_no_duration_is_an_error_that_says_what_is() -> None:
    with serving(fake_context(ScriptedEngine())) as url:
        body = {**ROUTES["/v1/completions"], "keep_alive": "soon"}
        refused = httpx.post(f"{url}/v1/completions", json=body)
    error = refused.json()["error"]
    assert refused.status_code == 400 and error["param"] == "keep_alive"
    assert "5m" in error["message"]
