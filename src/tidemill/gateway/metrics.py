"""Metrics of a gateway, beside those of every server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from tidemill.base.clock import monotonic
from tidemill.gateway.routing.health import State
from tidemill.metrics.families import counter, samples

if TYPE_CHECKING:
    from tidemill.gateway.holding import Holding
    from tidemill.gateway.targets import Target


class GatewayMetrics:
    """See the module docstring.

    Args:
        registry: that is scraped.
        targets: of the gateway.
        holding: requests that wait for engines.
    """

    def __init__(
        self, registry: CollectorRegistry, targets: Sequence[Target], holding: Holding
    ) -> None:
        self._targets = targets
        self._holding = holding
        self._given = counter("gateway_requests", registry)
        self._failed = counter("gateway_failures", registry)
        self._lost = counter("gateway_lost", registry)
        self.continued = counter("gateway_continued", registry)
        self.fallbacks = counter("gateway_fallbacks", registry)
        self.private = counter("gateway_private", registry)
        registry.register(self)

    def given(self, target: str) -> None:
        """A request goes there."""
        self._given.labels(target).inc()

    def failed(self, target: str) -> None:
        """It did not answer."""
        self._failed.labels(target).inc()

    def lost(self, target: str) -> None:
        """It died within an answer."""
        self._lost.labels(target).inc()

    def collect(self) -> Iterator[Metric]:
        """What targets are like now."""
        now = monotonic()
        names = ("active", "wait_seconds", "rate", "up")
        families = [samples(f"gateway_target_{name}") for name in names]
        for one in self._targets:
            up = float(one.health.state(now) is State.CLOSED)
            values = (one.load.active, one.load.waiting(now), one.load.rate, up)
            for family, value in zip(families, values, strict=True):
                family.add_metric((one.name,), value)
        yield from families
        held = samples("gateway_held")
        for model, queue in self._holding.queues.items():
            held.add_metric((model,), queue.requests)
        yield held
