"""Metrics of admission control: queued tokens, rejections by reason, Retry-After values."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

MAX_TENANTS = 32
"""Tenants with their own label; the others share one, which bounds the number of series."""

OTHERS = "(others)"

_RETRY_SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)


class AdmissionMetrics:
    """Admission metrics of one server, in its registry (None: a new one, for tests)."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"tidemill_{name}", text, ("model", *labels), registry=registry)

        self.waiting = gauge("queue_tokens", "Tokens of admitted requests without a first token")
        self.bound = gauge("queue_tokens_bound", "Tokens that may wait before 429")
        self.tenant_waiting = gauge("tenant_queue_tokens", "The same by tenant", "tenant")
        self.refused = Counter(
            "tidemill_requests_refused",
            "Requests answered 429, by reason and tenant",
            ("model", "reason", "tenant"),
            registry=registry,
        )
        self.retry = Histogram(
            "tidemill_retry_after_seconds",
            "What Retry-After said",
            ("model",),
            buckets=_RETRY_SECONDS,
            registry=registry,
        )

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
        self._names: set[str] = set()
        self._other_tokens: dict[str, int] = {}

    def refused(self, reason: str, tenant: str, retry_after: float) -> None:
        """Count a request that was rejected with status 429."""
        self._server.refused.labels(self._model, reason, self._label(tenant)).inc()
        self._retry.observe(retry_after)

    def waiting(self, total: int, tenant: str, tokens: int) -> None:
        """Set the tokens that wait in total, and those of this tenant."""
        self._waiting.set(total)
        label = self._label(tenant)
        if label == OTHERS:
            self._other_tokens[tenant] = tokens
            if not tokens:
                del self._other_tokens[tenant]
            tokens = sum(self._other_tokens.values())
        self._server.tenant_waiting.labels(self._model, label).set(tokens)

    def _label(self, tenant: str) -> str:
        if tenant in self._names or len(self._names) < MAX_TENANTS:
            self._names.add(tenant)
            return tenant
        return OTHERS
