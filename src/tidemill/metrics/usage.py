"""Metrics of records of requests: what waits for the database, and what was lost."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from tidemill.metrics.families import counter, gauge


class UsageMetrics:
    """Registered where requests are recorded.

    Args:
        registry: the server's.
        behind: how many records wait.
    """

    def __init__(self, registry: CollectorRegistry, behind: Callable[[], int]) -> None:
        self._lost = counter("usage_records_lost", registry)
        waiting = gauge("usage_records_waiting", registry)
        waiting.set_function(lambda: float(behind()))

    def lost(self, count: int) -> None:
        """So many more were lost."""
        self._lost.inc(count)
