"""What the metrics count of a request that has ended: where its time went, who asked, what for."""

from __future__ import annotations

from tidemill.metrics.ended import EndedMetrics
from tidemill.metrics.registry import exemplar
from tidemill.telemetry.phases import histories_of
from tidemill.telemetry.recent import Story

MICRO, NANO = 1e-6, 1e-9
"""A record has microjoules and micrograms, and its cost is in billionths of the currency's unit."""


class Measures:
    """Counts ended requests; one of `Recent.on_end`.

    Args:
        metrics: the server's.
        currency: of the price list.
    """

    def __init__(self, metrics: EndedMetrics, currency: str) -> None:
        self._metrics = metrics
        self._currency = currency

    def __call__(self, story: Story) -> None:
        """A request has ended; one that no model answered is not counted here."""
        record, trace, metrics = story.record, story.trace, self._metrics
        if not record.model:
            return
        model = f"{record.model}@{record.version}" if record.version else record.model
        sample = exemplar(story.context)
        for phase in story.phases(story.milestones.ended):
            metrics.phases.labels(model, phase.name).observe(phase.seconds, sample)
        tenant = metrics.tenants.label(record.client)
        counts = (("prompt", record.prompt), ("cached", record.cached))
        for of, tokens in (*counts, ("generated", record.generated)):
            if tokens:
                metrics.tenant_tokens.labels(model, tenant, of).inc(tokens)
        if record.cost:
            metrics.cost.labels(model, self._currency).inc(record.cost * NANO)
        energy = record.estimated if record.energy is None else record.energy
        if energy is not None:
            how = "estimated" if record.energy is None else "measured"
            metrics.energy.labels(model, how).inc(energy * MICRO)
            if record.carbon is not None:
                metrics.carbon.labels(model, how).inc(record.carbon * MICRO)
        if trace is None:
            return
        for history in histories_of(trace.streams):
            if history.prefix is not None:
                metrics.misses.labels(model, history.prefix.miss).inc()
        for name in trace.adapters:
            label = metrics.adapters.label(name)
            metrics.adapter_requests.labels(model, label, record.outcome).inc()
            if record.generated:
                metrics.adapter_tokens.labels(model, label).inc(record.generated)
