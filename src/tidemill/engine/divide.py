"""Recomputing a failed step in parts: bisection finds the rows that cause the failure, and the
other rows get their results.

The arithmetic of a row depends neither on the other rows of its step nor on how it is chunked, so
the parts compute exactly what the step would have. Nothing is committed before all parts are done.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.plan import LogitsWanted, Row, RowResult, StepPlan, StepResult
from tidemill.executor.base import PlanHandle

Rows = tuple[Row, ...]


def is_out_of_memory(error: Exception) -> bool:
    """True if the step ran out of memory: it may fit in parts."""
    if isinstance(error, TidemillError):
        return error.kind is ErrorKind.RESOURCE
    return isinstance(error, MemoryError)


def compute_in_parts(
    plan: StepPlan,
    error: Exception,
    launch: Callable[[StepPlan], PlanHandle],
    rollback: Callable[[StepPlan], None],
) -> StepResult:
    """Recompute a failed plan, which the executor has rolled back.

    Args:
        plan: the oldest plan in flight; every earlier one is committed.
        error: the error of the failed step.
        launch: submits a plan.
        rollback: undoes what a failed plan changed in the executor.

    Returns:
        The result of the whole plan, without timings. Rows that fail on their own have an error.
    """
    starts = {row.seq_id: row.start for row in plan.rows}
    # Earlier plans are committed, so the tokens they sampled are known.
    rows = tuple(msgspec.structs.replace(row, input_from=None) for row in plan.rows)
    todo = _halves(rows, error) or [rows]
    copies, preempted, finished = plan.copies, plan.preempted, plan.finished
    done: dict[int, RowResult] = {}
    while todo:
        rows = todo.pop()
        if rows[0].seq_id in done and done[rows[0].seq_id].error is not None:
            continue  # the second part of a row whose first part failed
        first = {row.seq_id for row in rows if row.start == starts[row.seq_id]}
        part = StepPlan(
            step_id=plan.step_id,
            new=tuple(new for new in plan.new if new.seq_id in first),
            rows=rows,
            copies=copies,
            preempted=preempted,
            finished=finished,
        )
        # Sent with the first part only: a sequence may be preempted and have a row in one plan.
        preempted = finished = ()
        try:
            results = launch(part).result().rows
        except Exception as failure:
            rollback(part)
            halves = _halves(rows, failure)
            todo += halves
            if not halves:
                done[rows[0].seq_id] = _culprit(rows[0], failure)
            continue
        copies = ()
        for result in results:
            done[result.seq_id] = _joined(done.get(result.seq_id), result)
    return StepResult(step_id=plan.step_id, rows=tuple(done[row.seq_id] for row in plan.rows))


def _halves(rows: Rows, error: Exception) -> list[Rows]:
    """The rows in two parts, the one to compute first last; a row with drafts without them; empty
    if they cannot be divided."""
    if len(rows) > 1:
        middle = len(rows) // 2
        return [rows[middle:], rows[:middle]]
    (row,) = rows
    if not is_out_of_memory(error):
        return []
    if row.draft_token_ids:
        return [(msgspec.structs.replace(row, draft_token_ids=()),)]
    if row.count == 1:
        return []
    count = row.count // 2
    logits = row.logits if row.logits is LogitsWanted.ALL else LogitsWanted.NONE
    beginning = msgspec.structs.replace(
        row,
        count=count,
        logits=logits,
        sample=False,
        mask_announced=False,
    )
    rest = msgspec.structs.replace(
        row, start=row.start + count, count=row.count - count, new_blocks=()
    )
    return [(rest,), (beginning,)]


def _joined(before: RowResult | None, result: RowResult) -> RowResult:
    """Merge the result of a row's next part into that of its earlier parts."""
    if before is None or result.error is not None:
        return result
    if before.prompt_logprobs is None and result.prompt_logprobs is None:
        return result
    logprobs = (before.prompt_logprobs or ()) + (result.prompt_logprobs or ())
    return msgspec.structs.replace(result, prompt_logprobs=logprobs)


def _culprit(row: Row, error: Exception) -> RowResult:
    kind, message, param = ErrorKind.INTERNAL, f"the step failed: {error}", None
    if isinstance(error, TidemillError):
        kind, message, param = error.kind, error.message, error.param
    elif is_out_of_memory(error):
        kind = ErrorKind.RESOURCE
        message = "out of memory: a step with a single token of this request does not fit"
    return RowResult(seq_id=row.seq_id, error=message, error_kind=str(kind), error_param=param)
