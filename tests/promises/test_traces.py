"""A trace is whole, from the client's span to the engine, also when an engine dies under it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import httpx
import pytest
from helpers.gateway import door
from helpers.otlp_receiver import Collector, Received, collecting
from helpers.real_server import RealServer
from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tidemill.telemetry.otel_options import HTTP, OtelOptions, Target

pytestmark = pytest.mark.xdist_group("promises")


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def server(collector: Collector) -> Iterator[RealServer]:
    flags = ("--otel", collector.http, "--otel-steps")
    energy = ("--energy", "100W", "--carbon-intensity", "360")
    quick = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
    with RealServer("--database", "none", *flags, *energy, environment=quick) as running:
        yield running


@pytest.fixture(scope="module")
def client(collector: Collector) -> api.Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    exporter = OTLPSpanExporter(f"{collector.http}/v1/traces")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("client")


def traced(
    server: RealServer, tracer: api.Tracer, kill_after: int = 0, url: str | None = None
) -> str:
    """The trace of a request that the client's own span surrounds, to the server or to a gateway
    at `url`."""
    body = {
        "model": "brook",
        "prompt": "survive",
        "max_tokens": 1500,
        "ignore_eos": True,
        "stream": True,
    }
    with tracer.start_as_current_span("client") as span:
        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers)
        with httpx.stream(
            "POST", f"{url or server.url}/v1/completions", json=body, headers=headers, timeout=120
        ) as answer:
            for number, _ in enumerate(answer.iter_lines()):
                if kill_after and number == kill_after:
                    os.kill(server.engine().pid, signal.SIGKILL)
        assert answer.status_code == 200
        return f"{span.get_span_context().trace_id:032x}"


def whole(collector: Collector, trace_id: str) -> dict[str, Received]:
    """All spans of a trace by id, once the server's have come."""

    def enough(spans: list[Received]) -> bool:
        return any(s.trace_id == trace_id and s.name == "deliver" for s in spans)

    found = collector.wait(enough)
    spans = {span.span_id: span for span in found if span.trace_id == trace_id}
    roots = [span for span in spans.values() if span.parent_id not in spans]
    assert [span.name for span in roots] == ["client"]
    return spans


def path(spans: dict[str, Received], span: Received) -> list[str]:
    """Names from the root to a span."""
    above = spans.get(span.parent_id)
    return [*(path(spans, above) if above is not None else ()), span.name]


def test_a_trace_reaches_from_the_client_to_the_engine(
    server: RealServer, collector: Collector, client: api.Tracer
) -> None:
    spans = whole(collector, traced(server, client))
    [decode] = [span for span in spans.values() if span.name == "decode"]
    route = "POST /v1/completions"
    assert path(spans, decode) == ["client", route, "text_completion brook", "engine", "decode"]
    client_span = next(span for span in spans.values() if span.name == "client")
    # Clocks of one machine: no part lies outside of what the client saw.
    assert client_span.start < decode.start < decode.end < client_span.end
    [inference] = [s for s in spans.values() if s.name == "text_completion brook"]
    assert inference.attributes["gen_ai.usage.output_tokens"] == 1500
    assert any(span.name == "engine.step" for span in collector.spans)


def test_a_recovery_is_in_the_trace(
    server: RealServer, collector: Collector, client: api.Tracer
) -> None:
    spans = whole(collector, traced(server, client, kill_after=20))
    engines = sorted((s for s in spans.values() if s.name == "engine"), key=lambda s: s.start)
    assert [span.error for span in engines] == ["crash", ""]
    assert "engine.lost" in engines[0].events
    assert any(span.name == "recovery" for span in spans.values())
    parents = {spans[s.parent_id].span_id for s in spans.values() if s.name == "decode"}
    assert parents == {span.span_id for span in engines}


def test_a_trace_goes_through_a_gateway(
    server: RealServer, collector: Collector, client: api.Tracer
) -> None:
    to = OtelOptions(Target(f"{collector.http}/v1/traces", HTTP), None)
    row = {"at": server, "kind": "tidemill", "models": ["brook"]}
    with door([row], otel=to) as gateway:
        trace_id = traced(server, client, kill_after=20, url=gateway.url)
    spans = whole(collector, trace_id)
    route, chat = "POST /v1/completions", "text_completion brook"
    paths = [path(spans, span) for span in spans.values() if span.name == "decode"]
    assert paths == [["client", route, route, chat, "engine", "decode"]] * 2  # two engines


def test_a_request_without_a_trace_begins_one(server: RealServer, collector: Collector) -> None:
    answer = server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
    name = answer.headers["x-request-id"]
    trace_id = server.http.get(f"/admin/requests/{name}").json()["trace_id"]
    found = collector.wait(lambda spans: any(span.trace_id == trace_id for span in spans))
    [root] = [span for span in found if span.trace_id == trace_id and not span.parent_id]
    assert root.attributes["tidemill.request.id"] == name


def test_energy_is_the_operator_s_number_and_says_so(
    server: RealServer, collector: Collector
) -> None:
    body = {"prompt": "energy", "max_tokens": 50, "ignore_eos": True}
    name = server.http.post("/v1/completions", json=body).headers["x-request-id"]
    found = server.http.get(f"/admin/requests/{name}").json()
    assert found["energy_source"] == "estimated"
    assert found["energy_joules"] == pytest.approx(100 * found["computed_seconds"], rel=0.01)
    # 360 grams a kilowatt-hour are 0.1 milligrams a joule.
    assert found["carbon_grams"] == pytest.approx(found["energy_joules"] * 1e-4, abs=2e-6)
    text = server.http.get("/metrics").text
    assert 'tidemill_request_energy_joules_total{how="estimated",model="brook"}' in text
    assert 'tidemill_request_carbon_grams_total{how="estimated",model="brook"}' in text

    def told(spans: list[Received]) -> bool:
        return any(span.attributes.get("tidemill.energy.joules", 0) > 0 for span in spans)

    collector.wait(told)
