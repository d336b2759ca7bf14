"""Metrics of speculation: acceptance by drafter and position, and the time saved.

A model has them once a request of it could have drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from tidemill.contract.wire import EngineStats, SpeculationFigures
from tidemill.metrics.families import SPECULATION, SPECULATION_FAMILIES, samples


def speculation_metrics(of_models: Mapping[str, EngineStats]) -> Iterator[Metric]:
    """The metrics of these models; none where nothing had drafts."""
    models = {name: s.speculation for name, s in of_models.items() if s.speculation is not None}
    if not models:
        return
    for family in SPECULATION_FAMILIES:
        counter = samples(family.name)
        for model, figures in models.items():
            counter.add_metric((model,), getattr(figures, family.field.removeprefix(SPECULATION)))
        yield counter
    saved = samples("speculation_saved_seconds")
    for model, figures in models.items():
        saved.add_metric((model, "estimated"), figures.saved_seconds)
        if figures.held_out_predicted_seconds > 0.0:
            saved.add_metric((model, "measured"), _measured(figures))
    yield saved
    yield from _of_drafters(models)


def _measured(figures: SpeculationFigures) -> float:
    """What was saved, with predicted times put right by the share that held out steps took."""
    share = figures.held_out_seconds / figures.held_out_predicted_seconds
    return figures.plain_seconds * share - figures.spent_seconds


def _of_drafters(models: Mapping[str, SpeculationFigures]) -> Iterator[Metric]:
    seconds = samples("drafter_seconds")
    verified, accepted = samples("drafter_verified"), samples("drafter_accepted")
    for model, figures in models.items():
        for of in figures.drafters:
            seconds.add_metric((model, of.drafter), of.seconds)
            pairs = zip(of.verified, of.accepted, strict=True)
            for position, (tried, came) in enumerate(pairs, 1):
                at = (model, of.drafter, str(position))
                verified.add_metric(at, tried)
                accepted.add_metric(at, came)
    yield from (seconds, verified, accepted)
