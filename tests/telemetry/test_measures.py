"""What the metrics count of ended requests."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from tidemill.base.trace_context import TraceContext
from tidemill.contract.history import ChoiceHistory, PrefixLookup
from tidemill.contract.request import ChoiceOutput, FinishReason, RequestTimings
from tidemill.contract.wire import EngineStats
from tidemill.metrics.ended import MAX_TENANTS, EndedMetrics
from tidemill.metrics.families import OTHERS
from tidemill.telemetry.facts import StreamFacts
from tidemill.telemetry.measures import Measures
from tidemill.telemetry.phases import Milestones
from tidemill.telemetry.recent import Story
from tidemill.telemetry.record import RequestRecord
from tidemill.telemetry.trace import Trace

CONTEXT = TraceContext("1" * 32, "2" * 16, flags=1)


def story(client: str = "key:a", model: str = "m") -> Story:
    facts = StreamFacts()
    facts.sent(3.0)
    history = ChoiceHistory(prefix=PrefixLookup(8, "parted", 8))
    output = ChoiceOutput(
        "r", 0, (1,), finish_reason=FinishReason.STOP, history=history,
        timings=RequestTimings(3.0, 4.0, 6.0, 11.0),
    )  # fmt: skip
    facts.output(output, 11.0, EngineStats())
    trace = Trace(
        "a", ("poet",), began=1.0, reserved=1.5, admitted=2.0, submitted=2.5, streams=[facts]
    )
    record = RequestRecord(
        "r", 0, client=client, model=model, prompt=20, cached=8, generated=3, cost=2_500_000_000
    )
    return Story(record, Milestones(0.0, 0.25, 0.5, 12.0), trace, context=CONTEXT)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def measures(registry: CollectorRegistry) -> Measures:
    return Measures(EndedMetrics(registry), "EUR")


def test_what_is_counted(registry: CollectorRegistry, measures: Measures) -> None:
    measures(story())

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"tidemill_{name}", {"model": "m", **labels})

    assert value("phase_seconds_sum", phase="queue") == 1.0
    assert value("phase_seconds_sum", phase="prefill") == 2.0
    assert value("phase_seconds_sum", phase="decode") == 5.0
    assert value("phase_seconds_count", phase="recovery") is None
    tokens = [value("tenant_tokens_total", tenant="key:a", of=of) for of in ("prompt", "cached")]
    assert tokens == [20, 8]
    assert value("tenant_tokens_total", tenant="key:a", of="generated") == 3
    assert value("cost_total", currency="EUR") == 2.5
    assert value("prefix_cache_misses_total", miss="parted") == 1
    assert value("adapter_requests_total", adapter="poet", outcome="finished") == 1
    assert value("adapter_generation_tokens_total", adapter="poet") == 3


def test_an_observation_has_the_trace_s_id(registry: CollectorRegistry, measures: Measures) -> None:
    measures(story())
    [phases] = [one for one in registry.collect() if one.name == "tidemill_phase_seconds"]
    found = [sample.exemplar.labels for sample in phases.samples if sample.exemplar is not None]
    assert found and all(labels["trace_id"] == CONTEXT.trace_id for labels in found)


def test_tenants_are_bounded(registry: CollectorRegistry, measures: Measures) -> None:
    for i in range(3 * MAX_TENANTS):
        measures(story(f"addr:{i}"))
    [tokens] = [one for one in registry.collect() if one.name == "tidemill_tenant_tokens"]
    tenants = {sample.labels["tenant"] for sample in tokens.samples}
    assert len(tenants) == MAX_TENANTS + 1 and OTHERS in tenants


def test_what_no_model_answered_is_not_counted(
    registry: CollectorRegistry, measures: Measures
) -> None:
    measures(story(model=""))
    assert all(not one.samples for one in registry.collect())
