"""Metrics of requests that have ended, by what is recorded of each."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from tidemill.metrics.families import Bounded, counter, histogram

MAX_TENANTS = 32
"""Tenants with their own label."""

MAX_ADAPTERS = 64
"""Adapters with their own label."""


class EndedMetrics:
    """Of one server, in its registry.

    Attributes:
        tenants, adapters: values of their labels.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.tenants, self.adapters = Bounded(MAX_TENANTS), Bounded(MAX_ADAPTERS)
        self.phases = histogram("phase_seconds", registry)
        self.tenant_tokens = counter("tenant_tokens", registry)
        self.cost = counter("cost", registry)
        self.energy = counter("request_energy_joules", registry)
        self.carbon = counter("request_carbon_grams", registry)
        self.misses = counter("prefix_cache_misses", registry)
        self.adapter_requests = counter("adapter_requests", registry)
        self.adapter_tokens = counter("adapter_generation_tokens", registry)
