"""Steps timed by costs that were measured on this machine (`simulate.costs`)."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.planning.timing import BEYOND_SPREAD, Seconds
from tidemill.planning.work import Rows, pairs
from tidemill.simulate.costs import Costs
from tidemill.simulate.costs import Work as StepWork

# Other processes and the machine's clock move between calibration and service, whatever the fit's
# own error is.
_LEAST_SPREAD = 0.10
_REQUEST_SPREAD = 0.50


@dataclass(frozen=True, slots=True)
class CalibratedTiming:
    """A `timing.Timing` of measured costs.

    Attributes:
        costs: of this model on this machine.
    """

    costs: Costs

    @property
    def basis(self) -> str:
        """See `Timing`."""
        costs = self.costs
        return (
            f"{costs.residuals.steps} steps measured on this machine ({costs.created or 'no date'}"
            f"; the fit misses {costs.residuals.error:.1%} in the median)"
        )

    @property
    def max_step_tokens(self) -> int:
        """See `Timing`."""
        return self.costs.engine.max_step_tokens

    def step(self, rows: Rows) -> Seconds:
        """See `Timing`."""
        count, tokens = rows.count, rows.tokens
        work = StepWork(
            tokens=count * tokens,
            pairs=count * pairs(tokens, rows.start),
            reach=count * (rows.start + tokens),
            samples=count,
            rows=count,
        )
        host = self.costs.host
        value = self.costs.step.of(work) + host.step + host.row * count
        beyond = self.costs.beyond(work)
        spread = max(_LEAST_SPREAD, 2 * self.costs.residuals.error)
        if beyond is not None:
            spread += BEYOND_SPREAD
        said = () if beyond is None else (beyond,)
        return Seconds(value, value / (1 + spread), value * (1 + spread), said)

    def request(self, prompt: int) -> Seconds:
        """See `Timing`; 0 where the costs were measured without requests over HTTP."""
        host = self.costs.host
        value = host.request + host.submit + host.prompt_token * prompt + host.deliver + host.chunk
        return Seconds(value, value / (1 + _REQUEST_SPREAD), value * (1 + _REQUEST_SPREAD))
