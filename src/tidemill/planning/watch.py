"""Self-check: a server's steps against the costs that its plan rests on.

Imported where costs are kept for a served model. What a step did is known from the engine's
statistics, as far as they say it: steps that only decode, and steps of one prompt alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger
from tidemill.contract.wire import EngineInfo, EngineStats
from tidemill.planning.kept import Computed, find_costs_of
from tidemill.simulate.costs import Costs, Work

if TYPE_CHECKING:
    from prometheus_client import Gauge

    from tidemill.metrics.registry import ServerMetrics

log = get_logger(__name__)

EVERY_SECONDS = 3600.0
"""Steps of so long are compared at once."""

DRIFT = 0.15
"""A difference beyond this is said."""

LEAST_STEPS = 50
"""Of a kind, for its error to mean something."""

_SMALL_BATCH = 2
_PROMPT_TOKENS = 32
# Of a predicted step, from where on it says more of the cache than of the weights.
_CACHE_SHARE = 0.4

TERMS = {
    "weights": "reading weights (steps of one or two streams)",
    "batch": "products of a few rows and sampling (steps of more streams)",
    "cache": "reading the KV cache (steps at long contexts)",
    "prompt": "arithmetic of prompts",
}
"""Kind of steps -> what their time is mostly made of."""


@dataclass(slots=True)
class _Sum:
    """Seconds of steps of a kind."""

    steps: int = 0
    measured: float = 0.0
    predicted: float = 0.0

    @property
    def error(self) -> float:
        """Measured by predicted, less 1."""
        return self.measured / self.predicted - 1 if self.predicted else 0.0


class StepWatch:
    """Takes an engine's statistics as they come, and compares every hour.

    Args:
        model: its name.
        costs: the prediction.
        block_size: tokens per block of the engine.
        tell: called with a kind of steps (or ``all``) and its error.
        clock: of seconds.
    """

    def __init__(
        self,
        model: str,
        costs: Costs,
        block_size: int,
        tell: Callable[[str, float], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._model = model
        self._costs = costs
        self._block_size = block_size
        self._tell = tell
        self._clock = clock
        self._until = clock() + EVERY_SECONDS
        self._before: EngineStats | None = None
        self._sums = {term: _Sum() for term in TERMS}

    def __call__(self, stats: EngineStats) -> None:
        """Look at the latest step."""
        before, self._before = self._before, stats
        if before is not None and stats.steps == before.steps + 1 and not stats.loading:
            self._add(stats, stats.compute_seconds - before.compute_seconds)
        if self._clock() >= self._until:
            self._compare()

    def _add(self, stats: EngineStats, seconds: float) -> None:
        work = _work(stats, self._block_size)
        if work is None or self._costs.beyond(work) is not None:
            return
        predicted = self._costs.step.of(work)
        if predicted <= 0:
            return
        found = self._sums[self._term(work, predicted)]
        found.steps += 1
        found.predicted += predicted
        # One step that waited for another process is no drift.
        found.measured += min(seconds, 4 * predicted)

    def _term(self, work: Work, predicted: float) -> str:
        if work.tokens > work.rows:
            return "prompt"
        step = self._costs.step
        if (step.pair + step.reach) * work.reach > _CACHE_SHARE * predicted:
            return "cache"
        return "weights" if work.rows <= _SMALL_BATCH else "batch"

    def _compare(self) -> None:
        known = {term: one for term, one in self._sums.items() if one.steps >= LEAST_STEPS}
        self._sums = {term: _Sum() for term in TERMS}
        self._until = self._clock() + EVERY_SECONDS
        if not known:
            return
        for term, one in known.items():
            self._tell(term, one.error)
        measured = sum(one.measured for one in known.values())
        predicted = sum(one.predicted for one in known.values())
        error = measured / predicted - 1
        self._tell("all", error)
        if abs(error) <= DRIFT and all(abs(one.error) <= DRIFT for one in known.values()):
            return
        # The term that explains the most seconds.
        likely = max(known, key=lambda term: abs(known[term].measured - known[term].predicted))
        log.warning(
            "%s: steps of the last hour took %+.0f %% of what was measured on %s; the most of it "
            "in %s (%+.0f %%); if it stays so, run `tidemill calibrate` again",
            self._model, 100 * error, self._costs.created, TERMS[likely],
            100 * known[likely].error,
        )  # fmt: skip


def _work(stats: EngineStats, block_size: int) -> Work | None:
    """The latest step's work; None where the statistics do not say it."""
    tokens, rows = stats.last_step_tokens, stats.last_step_rows
    if not rows:
        return None
    cached = stats.blocks_used * block_size
    if tokens == rows:
        # All sequences' contexts, of which the last block is half full on average.
        reach = max(float(rows), cached - rows * block_size / 2)
        reach *= rows / max(rows, stats.running)
        return Work(tokens, reach, reach, rows, rows)
    if rows == 1 and stats.running == 1 and tokens >= _PROMPT_TOKENS:
        start = max(0, cached - block_size // 2 - tokens)
        return Work(tokens, tokens * start + tokens * (tokens + 1) / 2, start + tokens, 1, 1)
    return None


class StepWatches:
    """Makes the watch of each served model that has costs.

    Args:
        folder: where costs are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gauge: Gauge | None = None

    def __call__(
        self, model: str, info: EngineInfo, metrics: ServerMetrics
    ) -> Callable[[EngineStats], None] | None:
        """What a model's statistics are given to; None: it was not calibrated here."""
        costs = find_costs_of(self._folder, computed_by(info))
        if costs is None:
            return None
        if self._gauge is None:
            from tidemill.metrics.families import gauge

            self._gauge = gauge("plan_error_ratio", metrics.registry)
        told = self._gauge

        def tell(term: str, error: float) -> None:
            told.labels(model, term).set(error)

        step, most = costs.step, costs.engine.max_step_tokens
        log.info(
            "%s: predicted by costs of %s: %.1f ms per token of one stream, %.1f ms for a step of "
            "%d tokens of a prompt; compared every hour",
            model, costs.created, 1e3 * step.of(Work(1, 512, 512, 1, 1)),
            1e3 * step.of(Work(most, most * most / 2, most, 1, 1)), most,
        )  # fmt: skip
        return StepWatch(model, costs, info.block_size, tell)


def computed_by(info: EngineInfo) -> Computed:
    """How an engine computes."""
    return Computed(
        info.family, info.parameters, info.dtype, info.kv_dtype, info.quantization,
        info.weight_bytes, info.threads,
    )  # fmt: skip
