"""The same metrics under the names of another server."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidemill.contract.wire import EngineStats
from tidemill.deployment.settings import SERVER
from tidemill.metrics.aliases import ALIASES
from tidemill.metrics.ended import EndedMetrics
from tidemill.metrics.families import FAMILIES
from tidemill.metrics.registry import ServerMetrics


@pytest.fixture
def server() -> ServerMetrics:
    server = ServerMetrics()
    ended = EndedMetrics(server.registry)
    model = server.of("m")
    model.update_engine(EngineStats(running=3, queued=2, blocks_used=1, blocks_total=4))
    for reason in ("stop", "tool_calls", "tool_calls", "length", "cancelled", "unavailable"):
        model.start().finish(reason, prompt_tokens=5)
    ended.phases.labels("m", "queue").observe(0.25)
    ended.phases.labels("m", "decode").observe(2)
    return server


def exported(server: ServerMetrics) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(server.render()[0].decode()):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_names_of_vllm(server: ServerMetrics) -> None:
    assert not any(name.startswith("vllm") for name in exported(server))
    server.aliases = "vllm"
    found = exported(server)
    of = "engine=0,model_name=m"
    assert found[f"vllm:num_requests_running{{{of}}}"] == 3
    assert found[f"vllm:num_requests_waiting{{{of}}}"] == 2
    assert found[f"vllm:kv_cache_usage_perc{{{of}}}"] == 0.25
    assert found[f"vllm:prompt_tokens_total{{{of}}}"] == 30
    assert found[f"vllm:e2e_request_latency_seconds_count{{{of}}}"] == 6
    assert found["vllm:e2e_request_latency_seconds_bucket{engine=0,le=+Inf,model_name=m}"] == 6
    # Of phases that share a metric here, each name has its own.
    assert found[f"vllm:request_queue_time_seconds_sum{{{of}}}"] == 0.25
    assert found[f"vllm:request_decode_time_seconds_sum{{{of}}}"] == 2


def test_openmetrics_has_the_same_names(server: ServerMetrics) -> None:
    server.aliases = "vllm"
    text, _ = server.render("application/openmetrics-text")
    assert b'\nvllm:prompt_tokens_total{engine="0",model_name="m"} 30.0\n' in text


def test_values_of_labels_are_those_of_that_server(server: ServerMetrics) -> None:
    server.aliases = "vllm"
    name = "vllm:request_success_total"
    ended = {k: v for k, v in exported(server).items() if k.startswith(name)}
    assert ended == {
        f"{name}{{engine=0,finished_reason={reason},model_name=m}}": count
        for reason, count in (("stop", 3), ("length", 1), ("abort", 1))
    }


def test_aliases_are_of_metrics_that_exist_and_can_be_chosen() -> None:
    for names in ALIASES.values():
        for alias in names.metrics:
            labels = FAMILIES[alias.source].labels
            assert {*alias.only, *alias.values} <= {*labels}
    [setting] = [one for one in SERVER if one.key == "metrics_aliases"]
    assert all(name in setting.kind.what for name in ALIASES)
