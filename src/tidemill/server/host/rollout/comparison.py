"""Two versions compared by every metric: estimates, intervals and verdicts."""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from tidemill.server.host.rollout.evidence import Evidence
from tidemill.server.host.rollout.matching import BASELINE, VARIANT, Block, Difference, block_length
from tidemill.server.host.rollout.observation import METRICS, Metric, Observation
from tidemill.server.host.rollout.sketch import DistinctSketch, QuantileSketch
from tidemill.server.host.rollout.traffic import Bounds


class Verdict(StrEnum):
    """What the evidence says of a metric at the level that was asked for."""

    WITHIN = "within"  # of all its limits
    BEYOND = "beyond"  # one of them
    NOT_ENOUGH = "not yet enough"
    NO_DATA = "no data"  # neither version reports the metric
    UNLIMITED = "no limit"  # shown, not judged


class ArmSummary(msgspec.Struct):
    """What one version did, for people.

    Attributes:
        version: its name.
        requests: observations that count for the error rate.
        failures: of these.
        not_counted: requests that clients got wrong or left.
        values: metric -> sketch of its values.
        units: distinct keys or users.
    """

    version: str
    requests: int = 0
    failures: int = 0
    not_counted: int = 0
    values: dict[str, QuantileSketch] = {}
    units: DistinctSketch = msgspec.field(default_factory=DistinctSketch)


class MetricState(msgspec.Struct):
    """Evidence of one metric."""

    evidence: Evidence
    blocks: dict[int, Block] = {}


class MetricView(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of a comparison as numbers.

    Attributes:
        metric: a key of `METRICS`.
        relative: True: effect, interval and limits are ratios less 1 (0.15 is 15 % more);
            False: they are differences.
        baseline, variant: error rate, or median, of the versions; None without values.
        effect: the estimate; None before the first difference.
        low, high: interval of the effect, which holds at all times and for all limited metrics
            together; None: no bound yet.
        limit_low, limit_high: what a canary is held to; None: no limit.
        beyond, within: e-values, the largest and the smallest of the limits'. Either decides at
            `needed`.
        needed: number of limits / alpha.
        blocks: differences that all this is made of.
        verdict: see `Verdict`.
    """

    metric: str
    relative: bool
    baseline: float | None
    variant: float | None
    effect: float | None
    low: float | None
    high: float | None
    limit_low: float | None
    limit_high: float | None
    beyond: float
    within: float
    needed: float
    blocks: int
    verdict: Verdict


def limits_of(bounds: Bounds) -> list[tuple[str, float, int]]:
    """Triples of metric, limit in the units of its effect, and sign of what lies beyond."""
    rises = {
        "errors": bounds.errors,
        "ttft": bounds.ttft,
        "itl": bounds.itl,
        "itl_p95": bounds.itl_p95,
        "length": bounds.longer,
    }
    limits = [
        (metric, math.log1p(rise) if METRICS[metric].relative else rise, 1)
        for metric, rise in rises.items()
        if rise != "off"
    ]
    if bounds.shorter != "off":
        limits.append(("length", math.log1p(-bounds.shorter), -1))
    return limits


class Comparison(msgspec.Struct):
    """A variant compared with a baseline. All of it is data: it is saved and read as it is.

    `alpha` is divided by the number of limits, so that all tests together are ever wrong with
    probability at most alpha for "beyond", and at most alpha for "within".

    Attributes:
        arms: summaries of baseline and variant.
        metrics: evidence per metric.
        alpha: see above.
        length: observations per block.
    """

    arms: list[ArmSummary]
    metrics: dict[str, MetricState]
    alpha: float
    length: int

    @classmethod
    def start(
        cls, baseline: str, variant: str, *, share: float, alpha: float, bounds: Bounds | None
    ) -> Comparison:
        """An empty comparison.

        Args:
            baseline, variant: versions.
            share: of the variant among both versions' observations.
            alpha: see the class.
            bounds: limits, or None to estimate alone.
        """
        limits = limits_of(bounds) if bounds is not None else []
        needed = max(len(limits), 1) / alpha
        metrics = {
            name: MetricState(
                Evidence.on_grid(
                    metric.grid, [(v, sign) for m, v, sign in limits if m == name], needed
                )
            )
            for name, metric in METRICS.items()
        }
        return cls([ArmSummary(baseline), ArmSummary(variant)], metrics, alpha, block_length(share))

    def observe(self, arm: int, observation: Observation, *, compare: bool = True) -> bool:
        """Adds an observation of BASELINE or VARIANT.

        Args:
            arm: which of the two.
            observation: of that version.
            compare: False: it is counted in the summaries alone.

        Returns:
            True when the evidence changed.
        """
        summary = self.arms[arm]
        changed = False
        for name, metric in METRICS.items():
            value = metric.value(observation)
            if value is None or not math.isfinite(value):
                continue
            if name != "errors":
                summary.values.setdefault(name, QuantileSketch()).add(value)
            if compare:
                changed |= self._compare(name, metric, arm, value, observation)
        failed = METRICS["errors"].value(observation)
        if failed is None:
            summary.not_counted += 1
        else:
            summary.requests += 1
            summary.failures += int(failed)
            summary.units.add(observation.unit)
        return changed

    def _compare(
        self, name: str, metric: Metric, arm: int, value: float, observation: Observation
    ) -> bool:
        state = self.metrics[name]
        stratum = metric.stratum(observation) if metric.stratum else 0
        block = state.blocks.get(stratum)
        if block is None:
            block = state.blocks[stratum] = Block()
        if metric.relative:
            difference = block.add_log(arm, math.log(max(value, 1e-6)), self.length)
        else:
            difference = block.add_share(arm, value, self.length)
        return _learn(state, difference)

    def change_share(self, share: float) -> None:
        """Ends the open blocks: from now on the variant has another share."""
        for name, state in self.metrics.items():
            for block in state.blocks.values():
                _learn(state, block.end_step(METRICS[name].relative))
        self.length = block_length(share)

    def verdict(self, name: str) -> Verdict:
        """What the evidence says of a metric."""
        limits = self.metrics[name].evidence.limits
        if not limits:
            return Verdict.UNLIMITED
        if any(limit.beyond.refuted for limit in limits):
            return Verdict.BEYOND
        # The estimate is asked too, since what was shown once may be true no longer.
        if all(limit.within.refuted for limit in limits) and self.estimate_within(name):
            return Verdict.WITHIN
        if name != "errors" and not any(name in arm.values for arm in self.arms):
            return Verdict.NO_DATA
        return Verdict.NOT_ENOUGH

    def estimate_within(self, name: str) -> bool:
        """True when the estimate alone, whatever its uncertainty, is within the limits."""
        evidence = self.metrics[name].evidence
        effect = evidence.effect
        return effect is None or all(c.sign * (effect - c.value) <= 0 for c in evidence.limits)

    def view(self, name: str) -> MetricView:
        """One metric as numbers."""
        evidence, relative = self.metrics[name].evidence, METRICS[name].relative
        limits = evidence.limits
        ends = {limit.sign: _plain(limit.value, relative) for limit in limits}
        return MetricView(
            metric=name,
            relative=relative,
            baseline=self._typical(BASELINE, name),
            variant=self._typical(VARIANT, name),
            effect=_plain(evidence.effect, relative),
            low=_plain(evidence.low, relative),
            high=_plain(evidence.high, relative),
            limit_low=ends.get(-1),
            limit_high=ends.get(1),
            beyond=max((limit.beyond.e_value for limit in limits), default=1.0),
            within=min((limit.within.e_value for limit in limits), default=1.0),
            needed=evidence.needed,
            blocks=evidence.blocks,
            verdict=self.verdict(name),
        )

    def views(self) -> tuple[MetricView, ...]:
        """All metrics."""
        return tuple(self.view(name) for name in self.metrics)

    def _typical(self, arm: int, name: str) -> float | None:
        summary = self.arms[arm]
        if name == "errors":
            return summary.failures / summary.requests if summary.requests else None
        sketch = summary.values.get(name)
        return sketch.quantile(0.5) if sketch else None


def _learn(state: MetricState, difference: Difference | None) -> bool:
    if difference is None:
        return False
    state.evidence.add(difference.x, difference.a)
    return True


def _plain(effect: float | None, relative: bool) -> float | None:
    """An effect on log scale as a ratio less 1."""
    if effect is None or not relative:
        return effect
    return math.expm1(min(effect, 700.0))
