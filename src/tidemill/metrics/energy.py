"""Metrics of the machine's energy, read when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from tidemill.metrics.families import samples


class EnergyMetrics:
    """Of one server, in its registry.

    Args:
        registry: the server's.
        totals: joules by counter.
    """

    def __init__(
        self, registry: CollectorRegistry, totals: Callable[[], Mapping[str, float]]
    ) -> None:
        self._totals = totals
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's collectors."""
        joules = samples("energy_joules")
        for source, value in self._totals().items():
            joules.add_metric((source,), value)
        yield joules
