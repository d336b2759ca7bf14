"""A step that failed, computed again in parts: the row that made it fail is found, and the others
get what they would have got.

The arithmetic of a row does not depend on what shares its step nor on how it is cut, so the parts
together are the step. Nothing is committed before all is known.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.plan import LogitsWanted, Row, RowResult, StepPlan, StepResult
from tidemill.executor.base import PlanHandle

Rows = tuple[Row, ...]


def lacks_memory(error: Exception) -> bool:
    """The step failed for want of memory: it may fit in parts, whoever is in it."""
    if isinstance(error, TidemillError):
        return error.kind is ErrorKind.RESOURCE
    return isinstance(error, MemoryError)


def compute_in_parts(
    plan: StepPlan,
    error: Exception,
    launch: Callable[[StepPlan], PlanHandle],
    rollback: Callable[[StepPlan], None],
) -> StepResult:
    """Compute a plan that failed, and that the executor has taken back.

    Args:
        plan: the oldest outstanding one; every earlier plan was committed.
        error: what it failed with.
        launch: submits a plan.
        rollback: takes back what a failed plan changed in the executor.

    Returns:
        The result of the whole plan, without timings. Rows that fail alone carry their error.
    """
    starts = {row.seq_id: row.start for row in plan.rows}
    # Tokens that earlier plans sampled are known by now.
    rows = tuple(msgspec.structs.replace(row, input_from=None) for row in plan.rows)
    todo = _halves(rows, error) or [rows]
    copies, preempted, finished = plan.copies, plan.preempted, plan.finished
    done: dict[int, RowResult] = {}
    while todo:
        rows = todo.pop()
        if rows[0].seq_id in done and done[rows[0].seq_id].error is not None:
            continue  # the rest of a row whose beginning failed
        first = {row.seq_id for row in rows if row.start == starts[row.seq_id]}
        part = StepPlan(
            step_id=plan.step_id,
            new=tuple(new for new in plan.new if new.seq_id in first),
            rows=rows,
            copies=copies,
            preempted=preempted,
            finished=finished,
        )
        # Said once: a sequence may have been preempted and given a row in the same plan.
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
    """The rows as two parts, the one to be computed first last; none when they cannot be parted."""
    if len(rows) > 1:
        middle = len(rows) // 2
        return [rows[middle:], rows[:middle]]
    (row,) = rows
    if row.count == 1 or not lacks_memory(error):
        return []
    count = row.count // 2
    logits = row.logits if row.logits is LogitsWanted.ALL else LogitsWanted.NONE
    beginning = msgspec.structs.replace(
        row,
        count=count,
        logits=logits,
        sample=False,
        draft_token_ids=(),
        mask_announced=False,
    )
    rest = msgspec.structs.replace(
        row, start=row.start + count, count=row.count - count, new_blocks=()
    )
    return [(rest,), (beginning,)]


def _joined(before: RowResult | None, result: RowResult) -> RowResult:
    """A row's result from those of its parts, in order."""
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
    elif lacks_memory(error):
        kind = ErrorKind.RESOURCE
        message = "memory does not suffice for this request, not even for one token of it at a time"
    return RowResult(seq_id=row.seq_id, error=message, error_kind=str(kind), error_param=param)
