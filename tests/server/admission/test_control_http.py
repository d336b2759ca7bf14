"""Admission and deadlines as HTTP clients see them, over a scripted engine."""

from __future__ import annotations

import time

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine, fake_info

from tidemill.contract.request import EngineRequest, RequestError
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.caller import ANONYMOUS
from tidemill.server.admission.options import AdmissionOptions


def test_a_full_queue_is_a_429_in_openais_shape_at_once() -> None:
    engine = ScriptedEngine(info=fake_info(num_blocks=4))
    context = fake_context(engine, admission_options=AdmissionOptions(max_queue_tokens=50))
    with serving(context) as url, httpx.Client(base_url=url) as http:
        ticket = context.host.models[0].admission.admit(
            ANONYMOUS, [(1,) * 200], [SamplingParams(max_tokens=50)]
        )
        begun = time.monotonic()
        answer = http.post("/v1/completions", json={"prompt": "x" * 90, "max_tokens": 60})
        assert time.monotonic() - begun < 2
        assert answer.status_code == 429
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
        assert int(answer.headers["retry-after"]) >= 1
        metrics = http.get("/metrics").text
        assert 'tidemill_requests_refused_total{model="tiny",reason="queue"' in metrics
        assert 'tidemill_queue_tokens{model="tiny"} 250.0' in metrics
        ticket.close()
        assert http.post("/v1/completions", json={"prompt": "x" * 90}).status_code == 200
        assert 'tidemill_queue_tokens{model="tiny"} 0.0' in http.get("/metrics").text
        assert context.host.models[0].admission.active == 0


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_deadlines_reach_the_engine_with_the_caller(route: str) -> None:
    engine = ScriptedEngine()
    options = AdmissionOptions(max_queue_time=7.0)
    body: dict[str, object] = {"prompt": "a"}
    if "chat" in route:
        body = {"messages": [{"role": "user", "content": "a"}]}
    context = fake_context(engine, admission_options=options)
    with serving(context) as url, httpx.Client(base_url=url) as http:
        for timeout, header in ((5.0, None), (None, "5"), (5, "900"), (900.0, "5.0")):
            headers = {} if header is None else {"X-Request-Timeout": header}
            sent = {**body, "timeout": timeout}
            assert http.post(route, json=sent, headers=headers).status_code == 200
        http.post(route, json=body)
    *limited, free = engine.requests
    for request in limited:
        assert request.deadline == pytest.approx(request.arrival + 5.0)
        assert time.monotonic() - 60 < request.arrival <= time.monotonic(), "the clock nobody sets"
    assert free.deadline is None
    assert all(r.start_by == pytest.approx(r.arrival + 7.0) for r in engine.requests)
    assert {(r.tenant, r.weight) for r in engine.requests} == {("addr:127.0.0.1", 1.0)}


@pytest.mark.parametrize(
    ("timeout", "header", "param"),
    [
        (0, None, "timeout"),
        (-1.5, None, "timeout"),
        (1e9, None, "timeout"),
        ("5", None, "timeout"),
        (None, "soon", "X-Request-Timeout"),
        (None, "nan", "X-Request-Timeout"),
        (None, "-3", "X-Request-Timeout"),
    ],
)
def test_what_is_no_time_is_a_400(timeout: object, header: str | None, param: str) -> None:
    headers = {} if header is None else {"X-Request-Timeout": header}
    with serving(fake_context(ScriptedEngine())) as url:
        body = {"prompt": "a", "timeout": timeout}
        answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param


def test_a_deadline_that_passes_is_a_408_or_ends_the_stream_with_an_event() -> None:
    def letters(request: EngineRequest, choice: int) -> list[int]:
        return [97] * 50

    error = RequestError("timeout", "the request's deadline passed", "timeout", True)
    engine = ScriptedEngine(letters, fail_after=0, error=error)
    with serving(fake_context(engine)) as url:
        for stream in (False, True):
            body = {"prompt": "a", "timeout": 1, "stream": stream}
            answer = httpx.post(f"{url}/v1/completions", json=body)
            assert answer.status_code == 408
            assert answer.json()["error"]["type"] == "timeout_error"
        engine.fail_after = 3
        answer = httpx.post(f"{url}/v1/completions", json={**body, "stream": True})
        assert answer.status_code == 200
        *_, last = answer.text.strip().split("\n\n")
        assert last.startswith("data: {") and '"timeout_error"' in last
