"""Metrics of names with versions: shares of the traffic, comparisons, events, copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from tidemill.metrics.families import counter, samples


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """One metric of a version compared with the baseline.

    Attributes:
        version: that is compared.
        metric: such as ``ttft``.
        effect, low, high: estimate and interval; ratios less 1, or differences of error rates.
        beyond, within: e-values over what decides: at 1 the metric is known to be beyond its limit,
            or within.
    """

    version: str
    metric: str
    effect: float | None
    low: float | None
    high: float | None
    beyond: float
    within: float


@dataclass(frozen=True, slots=True)
class NameSample:
    """A name's state at one time.

    Attributes:
        name: what clients use.
        percents: version -> share of the traffic; of a shadow: of the copies.
        running: a rollout is under way.
        compared: metrics of the comparison.
    """

    name: str
    percents: dict[str, float]
    running: bool
    compared: tuple[ComparedMetric, ...]


class RolloutMetrics:
    """Of one server, in its registry.

    Attributes:
        samples: what is exported; replaced as a whole, since scrapes run in a thread.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.samples: Iterable[NameSample] = ()
        self.events = counter("rollout_events", registry)
        self.copies = counter("shadow_copies", registry)
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The gauges (prometheus_client calls this)."""
        share, running = samples("version_traffic_ratio"), samples("rollout_running")
        effect, evidence = samples("version_effect"), samples("version_evidence")
        for sample in self.samples:
            running.add_metric((sample.name,), float(sample.running))
            for version, percent in sample.percents.items():
                share.add_metric((sample.name, version), percent / 100)
            for one in sample.compared:
                at = (sample.name, one.version, one.metric)
                bounds = (("estimate", one.effect), ("low", one.low), ("high", one.high))
                for bound, value in bounds:
                    if value is not None:
                        effect.add_metric((*at, bound), value)
                evidence.add_metric((*at, "beyond"), one.beyond)
                evidence.add_metric((*at, "within"), one.within)
        yield from (share, running, effect, evidence)
