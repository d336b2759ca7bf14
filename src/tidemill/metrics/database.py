"""Metrics of the database: whether it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from tidemill.metrics.families import samples


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
        available, outages = samples("database_available"), samples("database_outages")
        available.add_metric((), float(self._available()))
        outages.add_metric((), self._outages())
        yield from (available, outages)
