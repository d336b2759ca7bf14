"""Metrics of the database: whether it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class DatabaseMetrics:
    """Read when they are scraped; nothing is exported before the database is first needed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._available: Callable[[], bool] | None = None
        self._outages: Callable[[], int] = lambda: 0
        registry.register(self)

    def watch(self, available: Callable[[], bool], outages: Callable[[], int]) -> None:
        """Export these from now on."""
        self._available, self._outages = available, outages

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's collectors."""
        if self._available is None:
            return
        yield GaugeMetricFamily(
            "tidemill_database_available",
            "1 while the database answers",
            value=float(self._available()),
        )
        yield CounterMetricFamily(
            "tidemill_database_outages",
            "How often the database ceased to answer",
            value=self._outages(),
        )
