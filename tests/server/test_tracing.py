"""The trace that a client says its request belongs to is found wherever the request is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.contract.prices import Prices

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
OPENMETRICS = {"accept": "application/openmetrics-text;version=1.0.0"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    context = fake_context(ScriptedEngine(), explain=True)
    context.keep_recent(50, Prices())
    with serving(context) as found:
        yield found


def ask(url: str, flags: str, trace: str = TRACE) -> Any:
    parent = {"traceparent": f"00-{trace}-00f067aa0ba902b7-{flags}"}
    answer = httpx.post(url + "/v1/chat/completions", json=CHAT, headers=parent)
    found = httpx.get(f"{url}/admin/requests/{answer.headers['x-request-id']}").json()
    return found["trace_id"]


def test_explanations_and_exemplars_have_its_id(url: str) -> None:
    assert ask(url, "01") == TRACE
    exemplars = {
        line.partition("{")[0]
        for line in httpx.get(url + "/metrics", headers=OPENMETRICS).text.splitlines()
        if f'trace_id="{TRACE}"' in line
    }
    names = ("ttft_seconds", "e2e_seconds", "phase_seconds")
    assert {f"tidemill_{name}_bucket" for name in names} <= exemplars
    assert TRACE not in httpx.get(url + "/metrics").text


def test_a_trace_that_is_not_recorded_is_no_exemplar(url: str) -> None:
    trace = "1" * 32
    assert ask(url, "00", trace) == trace
    assert trace not in httpx.get(url + "/metrics", headers=OPENMETRICS).text


def test_the_log_has_its_id(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tidemill"):
        ask(url, "01", "2" * 32)
    events = [getattr(record, "event", {}) for record in caplog.records]
    assert any(event.get("trace_id") == "2" * 32 for event in events)


def test_a_request_without_one_has_none(url: str) -> None:
    answer = httpx.post(url + "/v1/chat/completions", json=CHAT)
    found = httpx.get(f"{url}/admin/requests/{answer.headers['x-request-id']}").json()
    assert found["trace_id"] is None
