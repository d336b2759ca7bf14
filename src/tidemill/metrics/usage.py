"""Metrics of records of requests: what waits for the database, and what was lost."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


class UsageMetrics:
    """Registered where requests are recorded.

    Args:
        registry: the server's.
        behind: how many records wait.
    """

    def __init__(self, registry: CollectorRegistry, behind: Callable[[], int]) -> None:
        self._lost = Counter(
            "tidemill_usage_records_lost",
            "Requests that were answered and neither counted nor audited, for want of room",
            registry=registry,
        )
        waiting = Gauge(
            "tidemill_usage_records_waiting",
            "Records of requests that are in the spool and not yet in the database",
            registry=registry,
        )
        waiting.set_function(lambda: float(behind()))

    def lost(self, count: int) -> None:
        """So many more were lost."""
        self._lost.inc(count)
