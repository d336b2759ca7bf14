"""What a collector receives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.otlp_receiver import Collector, collecting
from telemetry.test_spans import RECORD, stream, trace

from tidemill.base.clock import monotonic, wall
from tidemill.base.trace_context import TraceContext
from tidemill.contract.wire import EngineStats
from tidemill.telemetry.otel import Exporter
from tidemill.telemetry.otel_options import GRPC, HTTP, OtelOptions, Target
from tidemill.telemetry.phases import Milestones
from tidemill.telemetry.recent import Story

CLIENT = TraceContext("1" * 32, "2" * 16, 1, "vendor=7")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


def options(collector: Collector, protocol: str = HTTP, **changes: object) -> OtelOptions:
    paths = {HTTP: (f"{collector.http}/v1/traces", f"{collector.http}/v1/metrics")}
    traces, metrics = paths.get(protocol, (collector.grpc, collector.grpc))
    headers = (("authorization", "Bearer secret"),)
    found = OtelOptions(Target(traces, protocol, headers), Target(metrics, protocol))
    return found._replace(**changes)


def story(context: TraceContext) -> Story:
    times = Milestones(100.0, 100.25, 100.5, 112.0)
    return Story(RECORD, times, trace(stream()), context=context)


@pytest.mark.parametrize("protocol", [HTTP, GRPC])
def test_a_trace_goes_on_from_the_client_s(collector: Collector, protocol: str) -> None:
    exporter = Exporter(options(collector, protocol), "1.2")
    context = exporter.begin(CLIENT)
    assert (context.trace_id, context.parent_id, context.sampled) == ("1" * 32, "2" * 16, True)
    exporter.ended(story(context))
    exporter.close()
    spans = {span.span_id: span for span in collector.spans}
    root = spans[context.span_id]
    assert root.parent_id == CLIENT.span_id and root.kind == 2 and root.state == "vendor=7"
    assert {span.trace_id for span in spans.values()} == {CLIENT.trace_id}
    assert all(span.parent_id in spans for span in spans.values() if span is not root)
    assert root.resource["service.name"] == "tidemill"
    assert root.start == pytest.approx(100.0 + wall() - monotonic(), abs=0.1)
    assert root.end - root.start == pytest.approx(12.0)
    assert collector.headers[0]["authorization"] == "Bearer secret"


def test_metrics_of_the_conventions(collector: Collector) -> None:
    exporter = Exporter(options(collector, traces=None), "1.2")
    context = exporter.begin(CLIENT)
    assert not context.sampled
    exporter.ended(story(context))
    exporter.close()
    assert not collector.spans
    found = {}
    for name, metric in collector.metrics.items():
        [point] = metric.histogram.data_points
        found[name] = (metric.unit, point.count, point.sum)
        attributes = {pair.key: pair.value.string_value for pair in point.attributes}
        assert attributes["gen_ai.response.model"] == "tiny@2"
    assert found["gen_ai.server.request.duration"] == ("s", 1, 12.0)
    assert found["gen_ai.server.time_to_first_token"] == ("s", 1, pytest.approx(6.0))


def test_traces_that_begin_here_are_sampled_and_those_of_clients_are_followed(
    collector: Collector,
) -> None:
    half = options(collector, sampler="parentbased_traceidratio", ratio=0.5, metrics=None)
    exporter = Exporter(half, "1.2")
    sampled = [exporter.begin(None).sampled for _ in range(400)]
    assert 120 < sum(sampled) < 280
    assert exporter.begin(CLIENT).sampled
    assert not exporter.begin(CLIENT._replace(flags=0)).sampled
    foreign = Exporter(options(collector, incoming=False, metrics=None), "1.2")
    assert foreign.begin(CLIENT).trace_id != CLIENT.trace_id
    for one in (exporter, foreign):
        one.close()


def test_roots_have_the_ids_that_were_given_away(collector: Collector) -> None:
    exporter = Exporter(options(collector, metrics=None, steps=True), "1.2")
    contexts = [exporter.begin(None) for _ in range(3)]
    exporter.step("tiny", EngineStats(steps=5, last_step_rows=3, last_step_seconds=0.01))
    for context in contexts:
        exporter.ended(story(context))
    exporter.close()
    roots = {span.span_id: span for span in collector.spans if not span.parent_id}
    for context in contexts:
        assert roots.pop(context.span_id).trace_id == context.trace_id
    [step] = roots.values()
    assert step.name == "engine.step" and step.attributes["tidemill.step.rows"] == 3
    assert step.end - step.start == pytest.approx(0.01, abs=1e-4)


def test_a_collector_that_is_gone_costs_nothing_but_spans() -> None:
    gone = OtelOptions(Target("http://127.0.0.1:9/v1/traces", HTTP), None)
    exporter = Exporter(gone, "1.2")
    exporter.ended(story(exporter.begin(None)))
    began = monotonic()
    exporter.close(0.1)
    assert monotonic() - began < 5
