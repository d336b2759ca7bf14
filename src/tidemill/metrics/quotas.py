"""Metrics of quotas: refusals and warnings by limit and level."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class QuotaMetrics:
    """Quota metrics of one server. Labels have the names of limits and levels alone."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        self._refused = Counter(
            "tidemill_quota_refusals",
            "Requests answered 429 for a quota or budget, by limit and level",
            ("limit", "level"),
            registry=registry,
        )
        self._warned = Counter(
            "tidemill_quota_warnings",
            "Requests answered beyond a soft limit, by limit and level",
            ("limit", "level"),
            registry=registry,
        )
        self.open = Gauge(
            "tidemill_quota_reservations", "Reservations that have not ended", registry=registry
        )

    def refused(self, limit: str, level: str) -> None:
        """Count a request that a hard limit refused."""
        self._refused.labels(limit, level).inc()

    def warned(self, limit: str, level: str) -> None:
        """Count a request beyond a soft limit."""
        self._warned.labels(limit, level).inc()
