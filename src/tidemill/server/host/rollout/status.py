"""A rollout for people and programs: rows of numbers and a table of text."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidemill.server.host.rollout.comparison import ArmSummary, MetricView
from tidemill.server.host.rollout.experiment import Experiment
from tidemill.server.host.rollout.machine import Event, Phase, Rollout
from tidemill.server.host.rollout.text import (
    duration_text,
    metrics_table,
    table_lines,
    value_text,
)


class ArmView(msgspec.Struct, frozen=True, kw_only=True):
    """What one version did.

    Attributes:
        version: its name.
        percent: its share of the traffic now.
        requests: that count for the error rate.
        failures: of these.
        not_counted: requests that clients got wrong or left.
        units: distinct keys or users, estimated; requests when nothing is sticky.
        p50, p95: metric -> quantile.
    """

    version: str
    percent: float
    requests: int
    failures: int
    not_counted: int
    units: int
    p50: dict[str, float]
    p95: dict[str, float]


class RolloutStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout as /admin/rollouts shows it.

    Attributes:
        name: the model name that clients use.
        phase: see `Phase`.
        step: from 1.
        steps: percentages of all steps.
        percent: the canary's share now.
        step_seconds, seconds: time spent in this step and in all.
        waiting_for: what the next step needs, in words.
        alpha: level of the decision.
        arms: stable version and canary.
        metrics: one row per metric.
        events: oldest first.
    """

    name: str
    phase: Phase
    step: int
    steps: tuple[float, ...]
    percent: float
    step_seconds: float
    seconds: float
    waiting_for: tuple[str, ...]
    alpha: float
    arms: tuple[ArmView, ArmView]
    metrics: tuple[MetricView, ...]
    events: tuple[Event, ...]


def rollout_status(rollout: Rollout) -> RolloutStatus:
    """The status now."""
    state = rollout.state
    stable, canary = state.comparison.arms
    return RolloutStatus(
        name=state.name,
        phase=state.phase,
        step=state.step + 1,
        steps=tuple(step.percent for step in state.rule.plan()),
        percent=rollout.percent,
        step_seconds=state.step_seconds,
        seconds=state.seconds,
        waiting_for=tuple(rollout.waiting_for()),
        alpha=state.rule.alpha,
        arms=(arm_view(stable, 100 - rollout.percent), arm_view(canary, rollout.percent)),
        metrics=state.comparison.views(),
        events=tuple(state.events),
    )


class ExperimentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment as /admin/rollouts shows it.

    Attributes:
        name: the model name that clients use.
        baseline: the version that the others are compared with.
        arms: the baseline first.
        metrics: version -> one row per metric, compared with the baseline.
    """

    name: str
    baseline: str
    arms: tuple[ArmView, ...]
    metrics: dict[str, tuple[MetricView, ...]]


def experiment_status(experiment: Experiment) -> ExperimentStatus:
    """The status now."""
    return ExperimentStatus(
        name=experiment.name,
        baseline=experiment.baseline,
        arms=tuple(
            arm_view(arm, experiment.percents[version])
            for version, arm in experiment.arms().items()
        ),
        metrics={v: comparison.views() for v, comparison in experiment.comparisons.items()},
    )


def experiment_text(status: ExperimentStatus) -> str:
    """The status of an experiment as lines for a terminal."""
    lines = [f"{status.name}: compared with {status.baseline}", "", *versions_table(status.arms)]
    for version, views in status.metrics.items():
        lines += ["", f"{version} against {status.baseline}", *metrics_table(views)]
    return "\n".join(lines)


def arm_view(arm: ArmSummary, percent: float) -> ArmView:
    """A version's summary as numbers."""

    def quantiles(share: float) -> dict[str, float]:
        found = {name: sketch.quantile(share) for name, sketch in arm.values.items()}
        return {name: value for name, value in found.items() if value is not None}

    return ArmView(
        version=arm.version,
        percent=percent,
        requests=arm.requests,
        failures=arm.failures,
        not_counted=arm.not_counted,
        units=arm.units.count,
        p50=quantiles(0.5),
        p95=quantiles(0.95),
    )


def status_text(status: RolloutStatus) -> str:
    """The status as lines for a terminal."""
    stable, canary = status.arms
    lines = [
        f"{status.name}: {canary.version} against {stable.version}, {status.phase}, "
        f"{status.percent:g} % of the traffic "
        f"(step {status.step} of {len(status.steps)}, {duration_text(status.seconds)})"
    ]
    lines += [f"  waits: {text}" for text in status.waiting_for]
    lines += ["", *versions_table(status.arms), "", *metrics_table(status.metrics)]
    if status.events:
        last = status.events[-1]
        lines += ["", f"last: {last.kind}, {last.percent_after:g} %: {last.reason}"]
    return "\n".join(lines)


def versions_table(arms: Sequence[ArmView]) -> list[str]:
    """Lines of a table: one row per version."""
    heading = ["version", "share", "requests", "failed", "not counted", "p95 ttft", "p95 itl"]
    rows = [
        [
            arm.version,
            f"{arm.percent:g} %",
            str(arm.requests),
            str(arm.failures),
            str(arm.not_counted),
            value_text("ttft", arm.p95.get("ttft")),
            value_text("itl", arm.p95.get("itl")),
        ]
        for arm in arms
    ]
    return table_lines([heading, *rows])
