"""Metrics of speculation: acceptance by drafter and position, and the time saved.

A model has them once a request of it could have drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tidemill.contract.wire import EngineStats, SpeculationFigures

# Field -> (metric name without prefix, help).
_COUNTERS = {
    "steps": ("speculation_steps", "Steps that verified drafts"),
    "tokens": ("speculation_step_tokens", "Tokens that such steps gave"),
    "held_out_predicted_seconds": (
        "speculation_held_out_predicted_seconds",
        "Predicted time of steps held out: they were to have drafts and had none",
    ),
    "held_out_seconds": ("speculation_held_out_seconds", "What those steps took"),
}


def speculation_metrics(of_models: Mapping[str, EngineStats]) -> Iterator[Metric]:
    """The metrics of these models; none where nothing had drafts."""
    models = {name: s.speculation for name, s in of_models.items() if s.speculation is not None}
    if not models:
        return
    for field, (name, text) in _COUNTERS.items():
        counter = CounterMetricFamily(f"tidemill_{name}", text, labels=("model",))
        for model, figures in models.items():
            counter.add_metric((model,), getattr(figures, field))
        yield counter
    # Not counters: a step that took longer than one without drafts takes some away.
    saved = GaugeMetricFamily(
        "tidemill_speculation_saved_seconds",
        "Time saved since the start by steps with drafts, by how: against the predicted time of "
        "steps without (estimated), and that time corrected by the held out steps (measured)",
        labels=("model", "how"),
    )
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
    seconds = CounterMetricFamily(
        "tidemill_drafter_seconds", "Time spent drafting", labels=("model", "drafter")
    )
    labels = ("model", "drafter", "position")
    verified = CounterMetricFamily(
        "tidemill_drafter_verified",
        "Drafts verified, by position in their proposal (from 1)",
        labels=labels,
    )
    accepted = CounterMetricFamily(
        "tidemill_drafter_accepted", "Those of them that became tokens", labels=labels
    )
    for model, figures in models.items():
        for of in figures.drafters:
            seconds.add_metric((model, of.drafter), of.seconds)
            pairs = zip(of.verified, of.accepted, strict=True)
            for position, (tried, came) in enumerate(pairs, 1):
                at = (model, of.drafter, str(position))
                verified.add_metric(at, tried)
                accepted.add_metric(at, came)
    yield from (seconds, verified, accepted)
