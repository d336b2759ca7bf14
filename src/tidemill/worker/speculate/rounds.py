"""Drafts one position after the other: what drafters that run a model share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tidemill.contract.plan import (
    MOST_CONFIDENT,
    LogitsWanted,
    NewSequence,
    Row,
    RowResult,
    StepPlan,
)
from tidemill.worker.runner import Runner, RunnerHandle

UNLIKELY = math.log(0.2)
"""Log-probability of a chain under the drafter, below which nothing is added to it."""


class Rounds:
    """Draws drafts from a model in a runner.

    Args:
        runner: of the model that drafts.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._steps = 0

    def draft(
        self,
        rows: Sequence[Row],
        ends: Mapping[int, int],
        lengths: Mapping[int, int],
        least: Mapping[int, int],
        new: tuple[NewSequence, ...] = (),
        finished: tuple[int, ...] = (),
    ) -> dict[int, list[RowResult]]:
        """Compute the rows, then a position after the other. Two steps are in flight, so that the
        threads do not wait for Python.

        Args:
            rows: of the first step.
            ends: by sequence, its known tokens.
            lengths: by sequence with a sampling row, drafts wanted. A chain ends earlier where all
                of it is unlikely to come true (`UNLIKELY`).
            least: by sequence, see `Wanted`.
            new, finished: see `StepPlan`.

        Returns:
            By sequence, the results of its sampled positions.
        """
        found: dict[int, list[RowResult]] = {}
        if not rows:
            return found
        left, logprobs = dict(lengths), dict.fromkeys(lengths, 0.0)

        def take(handle: RunnerHandle) -> None:
            for result in handle.result().rows:
                if not result.token_ids:
                    continue
                seq_id, chain = result.seq_id, found.setdefault(result.seq_id, [])
                chain.append(result)
                logprobs[seq_id] += _logprob(result)
                total = logprobs[seq_id]
                unsure = len(chain) == 1 and confidence_of(total) < least[seq_id]
                if unsure or total < UNLIKELY:
                    left[seq_id] = 0

        plans: list[StepPlan] = []
        handles: list[RunnerHandle] = []
        try:
            for i in range(max([1, *lengths.values()])):
                if i:
                    rows = _rows_of_round(i, ends, left, plans[-1].step_id)
                    new, finished = (), ()
                    if not rows:
                        break
                self._steps += 1
                plan = StepPlan(step_id=self._steps, rows=tuple(rows), new=new, finished=finished)
                plans.append(plan)
                handles.append(self._runner.submit(plan))
                if i:
                    take(handles[i - 1])
            take(handles[-1])
        except Exception:
            self._abandon(plans, handles)
            raise
        return found

    def _abandon(self, plans: list[StepPlan], handles: list[RunnerHandle]) -> None:
        """Wait for the steps that are in flight, and undo them."""
        for handle in handles:
            try:
                handle.result()
            except Exception:
                continue
        for plan in reversed(plans):
            self._runner.rollback(plan)


def drafts_of(
    results: Sequence[RowResult], vocab: int, least: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The drafts of a sequence's sampled positions, as far as they are tokens of the target's, and
    their confidence (`RowResult.confidence`). Nothing where the first is not certain enough."""
    if results and results[0].token_ids and confidence_of(_logprob(results[0])) < least:
        return (), ()
    drafts: list[int] = []
    confidence: list[int] = []
    for result in results:
        if not result.token_ids or result.token_ids[0] >= vocab:
            break
        drafts.append(result.token_ids[0])
        confidence.append(confidence_of(_logprob(result)))
    return tuple(drafts), tuple(confidence)


def confidence_of(logprob: float) -> int:
    """The class of a draft's probability under the drafter: equal parts of it."""
    return min(MOST_CONFIDENT, int(math.exp(min(0.0, logprob)) * (MOST_CONFIDENT + 1)))


def _rows_of_round(
    i: int, ends: Mapping[int, int], lengths: Mapping[int, int], before: int
) -> list[Row]:
    return [
        Row(
            seq_id=seq_id,
            start=ends[seq_id] + i - 1,
            count=1,
            input_from=before,
            logits=LogitsWanted.LAST,
            sample=True,
        )
        for seq_id, length in lengths.items()
        if length > i
    ]


def _logprob(result: RowResult) -> float:
    assert result.logprobs is not None
    return result.logprobs[0].logprob
