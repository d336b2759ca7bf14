"""Metrics of quotas: refusals and warnings by limit and level."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from tidemill.metrics.families import counter, gauge


class QuotaMetrics:
    """Quota metrics of one server. Labels have the names of limits and levels alone."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        self._refused = counter("quota_refusals", registry)
        self._warned = counter("quota_warnings", registry)
        self.open = gauge("quota_reservations", registry)

    def refused(self, limit: str, level: str) -> None:
        """Count a request that a hard limit refused."""
        self._refused.labels(limit, level).inc()

    def warned(self, limit: str, level: str) -> None:
        """Count a request beyond a soft limit."""
        self._warned.labels(limit, level).inc()
