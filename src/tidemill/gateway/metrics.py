"""Metrics of a gateway, beside those of every server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric

from tidemill.base.clock import monotonic
from tidemill.gateway.routing.health import State

if TYPE_CHECKING:
    from tidemill.gateway.targets import Target

_TARGET = ("target",)


class GatewayMetrics:
    """See the module docstring.

    Args:
        registry: that is scraped.
        targets: of the gateway.
    """

    def __init__(self, registry: CollectorRegistry, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._given = Counter(
            "tidemill_gateway_requests", "Requests given to a target", _TARGET, registry=registry
        )
        self._failed = Counter(
            "tidemill_gateway_failures", "Requests that a target did not answer", _TARGET,
            registry=registry,
        )  # fmt: skip
        self._lost = Counter(
            "tidemill_gateway_lost", "Answers during which a target was lost", _TARGET,
            registry=registry,
        )  # fmt: skip
        self.continued = Counter(
            "tidemill_gateway_continued", "Answers that another target went on with",
            registry=registry,
        )  # fmt: skip
        self.fallbacks = Counter(
            "tidemill_gateway_fallbacks", "Answers of another model than was asked for",
            registry=registry,
        )  # fmt: skip
        self.private = Counter(
            "tidemill_gateway_private", "Requests that were private, by why", ("because",),
            registry=registry,
        )  # fmt: skip
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
        texts = {
            "active": "Requests that a target is answering",
            "wait_seconds": "Predicted wait of a further request there",
            "rate": "Prompt tokens per second that it was measured to compute",
            "up": "1 while its breaker is closed",
        }
        families = {
            name: GaugeMetricFamily(f"tidemill_gateway_target_{name}", text, labels=_TARGET)
            for name, text in texts.items()
        }
        for one in self._targets:
            up = float(one.health.state(now) is State.CLOSED)
            values = (one.load.active, one.load.waiting(now), one.load.rate, up)
            for family, value in zip(families.values(), values, strict=True):
                family.add_metric((one.name,), value)
        yield from families.values()
