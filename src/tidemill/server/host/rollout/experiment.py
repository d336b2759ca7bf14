"""Versions that get traffic side by side, compared without a decision: A/B weights and shadows.

With weights that stick to users or keys the groups differ as their users do, and intervals say
nothing of that: they are those of the requests that were made.
"""

from __future__ import annotations

import msgspec

from tidemill.server.host.rollout.comparison import ArmSummary, Comparison
from tidemill.server.host.rollout.matching import BASELINE, VARIANT
from tidemill.server.host.rollout.observation import Observation
from tidemill.server.host.rollout.traffic import Shadow, Weights

_ALPHA = 0.05


class Experiment(msgspec.Struct):
    """Every version of a rule compared with the first. All of it is data, saved as it is.

    Attributes:
        name: the model name that clients use.
        baseline: the version that the others are compared with.
        comparisons: by version. The weight of a version that gets no traffic has none.
        percents: version -> share of the traffic; of a shadow: of the copies.
    """

    name: str
    baseline: str
    comparisons: dict[str, Comparison]
    percents: dict[str, float]

    @classmethod
    def start(cls, name: str, rule: Weights | Shadow) -> Experiment:
        """An experiment without observations."""
        if isinstance(rule, Shadow):
            parts = {rule.version: 1.0, rule.shadow: rule.fraction}
            total = 1.0
        else:
            parts = {v: w for v, w in rule.weights.items() if w > 0}
            total = sum(parts.values())
        baseline, *variants = parts
        comparisons = {
            variant: Comparison.start(
                baseline,
                variant,
                share=parts[variant] / (parts[variant] + parts[baseline]),
                alpha=_ALPHA,
                bounds=None,
            )
            for variant in variants
        }
        return cls(name, baseline, comparisons, {v: 100 * w / total for v, w in parts.items()})

    def observe(self, observation: Observation) -> None:
        """Counts a request, or a copy, that has ended."""
        if observation.version == self.baseline:
            for comparison in self.comparisons.values():
                comparison.observe(BASELINE, observation)
        elif observation.version in self.comparisons:
            self.comparisons[observation.version].observe(VARIANT, observation)

    def arms(self) -> dict[str, ArmSummary]:
        """What each version did; without a second version nothing is counted."""
        found: dict[str, ArmSummary] = {}
        for version, comparison in self.comparisons.items():
            found[self.baseline] = comparison.arms[BASELINE]
            found[version] = comparison.arms[VARIANT]
        return found
