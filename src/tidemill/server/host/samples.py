"""A name's traffic as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.metrics.rollouts import ComparedMetric, NameSample
from tidemill.server.host.rollout.comparison import MetricView
from tidemill.server.host.rollout.named import NameTraffic


def sample_of(traffic: NameTraffic) -> NameSample:
    """The state now."""
    return NameSample(traffic.name, traffic.percents(), traffic.running, tuple(_compared(traffic)))


def _compared(traffic: NameTraffic) -> Iterator[ComparedMetric]:
    if traffic.experiment is not None:
        for version, comparison in traffic.experiment.comparisons.items():
            yield from (_metric(version, view) for view in comparison.views())
    elif traffic.rollout is not None:
        state = traffic.rollout.state
        yield from (_metric(state.rule.canary, view) for view in state.comparison.views())


def _metric(version: str, view: MetricView) -> ComparedMetric:
    return ComparedMetric(
        version,
        view.metric,
        view.effect,
        view.low,
        view.high,
        view.beyond / view.needed if view.needed else 0.0,
        view.within / view.needed if view.needed else 0.0,
    )
