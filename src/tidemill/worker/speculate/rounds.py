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
        new: tuple[NewSequence, ...] = (),
        finished: tuple[int, ...] = (),
    ) -> dict[int, list[RowResult]]:
        """Compute the rows, then a position after the other. Two steps are in flight, so that the
        threads do not wait for Python.

        Args:
            rows: of the first step.
            ends: by sequence, its known tokens.
            lengths: by sequence with a sampling row, drafts wanted.
            new, finished: see `StepPlan`.

        Returns:
            By sequence, the results of its sampled positions.
        """
        found: dict[int, list[RowResult]] = {}
        if not rows:
            return found
        plans: list[StepPlan] = []
        handles: list[RunnerHandle] = []
        try:
            for i in range(max([1, *lengths.values()])):
                if i:
                    rows = _rows_of_round(i, ends, lengths, plans[-1].step_id)
                    new, finished = (), ()
                self._steps += 1
                plan = StepPlan(step_id=self._steps, rows=tuple(rows), new=new, finished=finished)
                plans.append(plan)
                handles.append(self._runner.submit(plan))
                if i:
                    _take(handles[i - 1], found)
            _take(handles[-1], found)
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


def drafts_of(results: Sequence[RowResult], vocab: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The drafts of a sequence's sampled positions, as far as they are tokens of the target's, and
    their confidence (`RowResult.confidence`)."""
    drafts: list[int] = []
    confidence: list[int] = []
    for result in results:
        if not result.token_ids or result.token_ids[0] >= vocab:
            break
        drafts.append(result.token_ids[0])
        assert result.logprobs is not None
        confidence.append(confidence_of(result.logprobs[0].logprob))
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


def _take(handle: RunnerHandle, found: dict[int, list[RowResult]]) -> None:
    for result in handle.result().rows:
        if result.token_ids:
            found.setdefault(result.seq_id, []).append(result)
