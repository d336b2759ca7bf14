"""Metrics of admission control: queued tokens, rejections by reason, Retry-After values."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from tidemill.metrics.families import OTHERS, Bounded, counter, gauge, histogram

MAX_TENANTS = 32
"""Tenants with their own label; the others share one, which bounds the number of series."""


class AdmissionMetrics:
    """Admission metrics of one server, in its registry (None: a new one, for tests)."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()

        self.waiting = gauge("queue_tokens", registry)
        self.bound = gauge("queue_tokens_bound", registry)
        self.tenant_waiting = gauge("tenant_queue_tokens", registry)
        self.refused = counter("requests_refused", registry)
        self.retry = histogram("retry_after_seconds", registry)

    def of(self, model: str) -> ModelAdmissionMetrics:
        """Those of one model."""
        return ModelAdmissionMetrics(self, model)


class ModelAdmissionMetrics:
    """Admission metrics of one model."""

    def __init__(self, server: AdmissionMetrics, model: str) -> None:
        self.bound = server.bound.labels(model)
        self._server = server
        self._model = model
        self._waiting = server.waiting.labels(model)
        self._retry = server.retry.labels(model)
        self._tenants = Bounded(MAX_TENANTS)
        self._other_tokens: dict[str, int] = {}

    def refused(self, reason: str, tenant: str, retry_after: float) -> None:
        """Count a request that was rejected with status 429."""
        self._server.refused.labels(self._model, reason, self._tenants.label(tenant)).inc()
        self._retry.observe(retry_after)

    def waiting(self, total: int, tenant: str, tokens: int) -> None:
        """Set the tokens that wait in total, and those of this tenant."""
        self._waiting.set(total)
        label = self._tenants.label(tenant)
        if label == OTHERS:
            self._other_tokens[tenant] = tokens
            if not tokens:
                del self._other_tokens[tenant]
            tokens = sum(self._other_tokens.values())
        self._server.tenant_waiting.labels(self._model, label).set(tokens)
