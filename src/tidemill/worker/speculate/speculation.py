"""Speculation in the worker: which drafter a sequence has, and when drafters are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidemill.base.log import get_logger
from tidemill.contract.plan import StepPlan
from tidemill.contract.request import LOOKUP
from tidemill.worker.sequences import SequenceSlots
from tidemill.worker.speculate.drafter import NOTHING, Drafter, Int32, Proposal, Wanted
from tidemill.worker.speculate.lookup import LookupDrafter

_log = get_logger(__name__)

DRAFTERS: dict[str, Callable[[], Drafter]] = {LOOKUP: LookupDrafter}


class Speculation:
    """The drafters of one worker, made when a sequence first has them.

    A drafter that fails ends drafting for the sequences it was called for, and nothing else.

    Args:
        sequences: the worker's.
        made_by: makes the drafter of each name.
    """

    def __init__(
        self, sequences: SequenceSlots, made_by: Mapping[str, Callable[[], Drafter]] = DRAFTERS
    ) -> None:
        self._sequences = sequences
        self._made_by = made_by
        self._drafters: dict[str, Drafter] = {}
        self._of: dict[int, str] = {}

    def begin(self, plan: StepPlan) -> None:
        """Forget the sequences that have ended, and learn the plan's new ones."""
        for seq_id in plan.finished:
            self._forget(seq_id)
        for new in plan.new:
            if new.drafter:
                self._forget(new.seq_id)
                if new.drafter not in self._drafters:
                    self._drafters[new.drafter] = self._made_by[new.drafter]()
                self._of[new.seq_id] = new.drafter
                self._drafters[new.drafter].add(new)

    def forget_new(self, plan: StepPlan) -> None:
        """Forget the sequences that a failed plan introduced; a later one introduces them again."""
        for new in plan.new:
            self._forget(new.seq_id)

    def read(self, plan: StepPlan) -> None:
        """Have drafters read, while the step computes, what is known of the sequences that will
        want drafts."""
        for row in plan.rows:
            if (name := self._of.get(row.seq_id)) is not None:
                try:
                    self._drafters[name].read(row.seq_id, self._tokens(row.seq_id))
                except Exception:
                    self._give_up([row.seq_id])

    def proposals(self, plan: StepPlan) -> dict[int, Proposal]:
        """After the step's tokens are known: the drafts of each sequence that wants some."""
        wanted: dict[str, list[Wanted]] = {}
        for row in plan.rows:
            name = self._of.get(row.seq_id)
            if row.drafts_wanted and name is not None:
                wanted.setdefault(name, []).append(
                    Wanted(row.seq_id, self._tokens(row.seq_id), row.drafts_wanted)
                )
        found: dict[int, Proposal] = {}
        for name, of_drafter in wanted.items():
            ids = [one.seq_id for one in of_drafter]
            try:
                found.update(zip(ids, self._drafters[name].propose(of_drafter), strict=True))
            except Exception:
                self._give_up(ids)
                found.update(dict.fromkeys(ids, NOTHING._replace(quiet=True)))
        return found

    def _tokens(self, seq_id: int) -> Int32:
        sequences = self._sequences
        slot = sequences.slot(seq_id)
        return sequences.tokens[slot, : sequences.length[slot]]

    def _give_up(self, seq_ids: list[int]) -> None:
        _log.exception("a drafter failed; %d sequences go on without drafts", len(seq_ids))
        for seq_id in seq_ids:
            self._forget(seq_id)

    def _forget(self, seq_id: int) -> None:
        name = self._of.pop(seq_id, None)
        if name is not None:
            self._drafters[name].forget(seq_id)
