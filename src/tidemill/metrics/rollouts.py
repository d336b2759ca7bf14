"""Metrics of names with versions: shares of the traffic, comparisons, events, copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric


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
        self.events = Counter(
            "tidemill_rollout_events",
            "What happened to rollouts",
            ("model", "event"),
            registry=registry,
        )
        self.copies = Counter(
            "tidemill_shadow_copies",
            "Copies of requests for a shadow version, by what became of them",
            ("model", "outcome"),
            registry=registry,
        )
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The gauges (prometheus_client calls this)."""
        share = GaugeMetricFamily(
            "tidemill_version_traffic_ratio",
            "Share of a name's requests that a version answers; of a shadow: of its copies",
            labels=("model", "version"),
        )
        running = GaugeMetricFamily(
            "tidemill_rollout_running", "1 while a rollout is under way", labels=("model",)
        )
        labels = ("model", "version", "metric")
        effect = GaugeMetricFamily(
            "tidemill_version_effect",
            "Difference from the baseline: relative, of errors absolute; estimate and interval",
            labels=(*labels, "bound"),
        )
        evidence = GaugeMetricFamily(
            "tidemill_version_evidence",
            "Evidence that a metric is beyond or within its limit; 1 decides",
            labels=(*labels, "that"),
        )
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
