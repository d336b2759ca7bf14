"""Metrics of speculation."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidemill.contract.wire import DrafterFigures, EngineStats, SpeculationFigures
from tidemill.metrics.registry import ServerMetrics

FIGURES = SpeculationFigures(
    steps=10,
    tokens=40,
    plain_seconds=4.0,
    spent_seconds=1.5,
    held_out_predicted_seconds=0.2,
    held_out_seconds=0.3,
    drafters=(
        DrafterFigures("draft", 0.25, (5,), (4,)),
        DrafterFigures("lookup", 0.01, (9, 7), (8, 3)),
    ),
)


ORDER = ("model", "drafter", "position", "how")


def samples(metrics: ServerMetrics) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        for one in family.samples:
            if "specul" in one.name or "drafter" in one.name:
                found[(one.name, *(one.labels[k] for k in ORDER if k in one.labels))] = one.value
    return found


def test_acceptance_by_drafter_and_position_and_time_saved() -> None:
    metrics = ServerMetrics()
    metrics.of("m").update_engine(EngineStats(speculation=FIGURES))
    metrics.of("plain").update_engine(EngineStats())
    found = samples(metrics)
    assert found["tidemill_speculation_steps_total", "m"] == 10
    assert found["tidemill_speculation_step_tokens_total", "m"] == 40
    assert found["tidemill_speculation_saved_seconds", "m", "estimated"] == 2.5
    measured = found["tidemill_speculation_saved_seconds", "m", "measured"]
    assert measured == pytest.approx(4.0 * 1.5 - 1.5), "steps without take half as much again"
    assert found["tidemill_drafter_seconds_total", "m", "draft"] == 0.25
    assert found["tidemill_drafter_verified_total", "m", "lookup", "2"] == 7
    assert found["tidemill_drafter_accepted_total", "m", "lookup", "1"] == 8
    assert not any("plain" in key for key in found)


def test_no_model_without_drafters_has_them() -> None:
    metrics = ServerMetrics()
    metrics.of("plain").update_engine(EngineStats())
    assert not samples(metrics)
