"""Token masks of the constrained rows of a step, computed while the step computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import TidemillError
from tidemill.base.log import get_logger
from tidemill.contract.plan import StepPlan
from tidemill.executor.base import PlanHandle
from tidemill.grammar.service import GrammarService

if TYPE_CHECKING:
    from tidemill.grammar.phases import ProgramState

_log = get_logger(__name__)


def give_masks(
    plan: StepPlan,
    handle: PlanHandle,
    states: dict[int, ProgramState],
    grammars: GrammarService,
    vocab_size: int,
) -> None:
    """Give each constrained row its masks: of the token after its known ones, and of the one after
    each of its drafts.

    Args:
        plan, handle: the step and its handle.
        states: by index of the row, where its choice is in its program; left there.
        grammars: computes masks.
        vocab_size: of the model.
    """
    nothing = np.zeros(-(-vocab_size // 8), np.uint8)
    drafts = {i: plan.rows[i].draft_token_ids for i in states}
    marks = {i: states[i].mark() for i, of_row in drafts.items() if of_row}
    ended: set[int] = set()  # rows whose grammar met a limit at a draft
    try:
        for draft in range(1 + max(map(len, drafts.values()))):
            due = [i for i, of_row in drafts.items() if len(of_row) >= draft]
            if draft:
                ended.update(i for i in due if not _accepts(states[i], drafts[i][draft - 1]))
            able = [i for i in due if i not in ended]
            found = _masks([states[i] for i in able], grammars, nothing, plan.step_id)
            for i, mask in zip(able, found, strict=True):
                handle.set_mask(i, draft, mask)
            for i in ended.intersection(due):
                # Without a token there the row ends before it; its next step meets the limit.
                handle.set_mask(i, draft, nothing)
    finally:
        for i, mark in marks.items():
            states[i].rollback(mark)


def _accepts(state: ProgramState, token: int) -> bool:
    try:
        state.accept(token)
    except TidemillError:
        return False
    return True


def _masks(
    states: list[ProgramState],
    grammars: GrammarService,
    nothing: NDArray[np.uint8],
    step_id: int,
) -> list[NDArray[np.uint8]]:
    """The masks of the next token of each state; everything is allowed where none is needed."""
    masked = [state for state in states if state.masked]
    try:
        found = iter(grammars.masks(masked))
    except Exception:
        # The step waits for the masks. With no token allowed, these rows end with an error.
        _log.exception("the masks of step %d could not be computed", step_id)
        return [nothing for _ in states]
    return [next(found) if state.masked else ~nothing for state in states]
