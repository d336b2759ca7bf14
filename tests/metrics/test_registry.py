"""Every promised metric is there, and the numbers are the ones observed."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidemill.contract.wire import EngineStats
from tidemill.metrics import registry
from tidemill.metrics.registry import ServerMetrics


def samples(metrics: ServerMetrics) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        for sample in family.samples:
            labels = ",".join(v for k, v in sample.labels.items() if k not in ("le", "model"))
            if "le" not in sample.labels:
                found[sample.name + (f"[{labels}]" if labels else "")] = sample.value
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(registry, "monotonic", lambda: now[0])
    return now


def test_request_times(clock: list[float]) -> None:
    metrics = ServerMetrics()
    observer = metrics.of("m").start()
    clock[0] += 0.5
    observer.tokens(0, 1)
    clock[0] += 0.2
    observer.tokens(0, 2)
    clock[0] += 0.1
    observer.finish("stop", prompt_tokens=7, cached_tokens=4)
    got = samples(metrics)
    assert got["tidemill_ttft_seconds_sum"] == pytest.approx(0.5)
    assert got["tidemill_itl_seconds_count"] == 2
    assert got["tidemill_itl_seconds_sum"] == pytest.approx(0.2)
    assert got["tidemill_tpot_seconds_sum"] == pytest.approx(0.1)
    assert got["tidemill_e2e_seconds_sum"] == pytest.approx(0.8)
    assert got["tidemill_requests_total[stop]"] == 1
    assert got["tidemill_prompt_tokens_total"] == 7
    assert got["tidemill_prompt_tokens_cached_total"] == 4
    assert got["tidemill_generation_tokens_total"] == 3
    assert got["tidemill_requests_active"] == 0


def test_engine_snapshot_is_exported_as_it_is() -> None:
    metrics = ServerMetrics()
    stats = EngineStats(
        queued=3, running=2, blocks_used=5, blocks_total=10, steps=4, preemptions=1,
        cached_tokens=64, last_step_rows=2, last_step_seconds=0.25,
    )  # fmt: skip
    metrics.of("m").update_engine(stats)
    metrics.of("m").update_engine(stats)  # the same step twice is observed once
    got = samples(metrics)
    assert got["tidemill_queue_sequences"] == 3
    assert got["tidemill_running_sequences"] == 2
    assert got["tidemill_kv_usage_ratio"] == 0.5
    assert got["tidemill_preemptions_total"] == 1
    assert got["tidemill_prefix_cache_hit_tokens_total"] == 64
    assert got["tidemill_step_time_seconds_count"] == 1
    assert got["tidemill_batch_size_rows_sum"] == 2
    assert got["tidemill_batch_size_tokens_count"] == 1


def test_a_new_engine_counts_from_zero() -> None:
    metrics = ServerMetrics()
    metrics.of("m").update_engine(EngineStats(steps=100, last_step_seconds=0.5))
    metrics.of("m").update_engine(EngineStats(steps=1, last_step_seconds=0.25))
    got = samples(metrics)
    assert got["tidemill_steps_total"] == 1
    assert got["tidemill_step_time_seconds_count"] == 2


def test_refused_requests_have_no_lengths() -> None:
    metrics = ServerMetrics()
    metrics.of("m").start().finish("bad_request")
    metrics.on_response(400)
    got = samples(metrics)
    assert got["tidemill_requests_total[bad_request]"] == 1
    assert got["tidemill_prompt_length_tokens_count"] == 0
    assert got["tidemill_http_responses_total[400]"] == 1


def test_every_series_is_prefixed_and_instances_are_apart() -> None:
    first, second = ServerMetrics(), ServerMetrics()
    first.of("m").start()
    assert samples(first)["tidemill_requests_active"] == 1
    assert "tidemill_requests_active" not in samples(second)
    assert all(name.startswith("tidemill_") for name in samples(first))
