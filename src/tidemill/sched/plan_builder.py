"""PlanBuilder: a plan under construction; InFlightRow: the state needed to undo a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.contract.plan import BlockCopy, DraftsWanted, NewSequence, Row, StepPlan
from tidemill.memory.prefix import BlockKey
from tidemill.sched.cost import Load
from tidemill.sched.sequence import Sequence, Slice
from tidemill.sched.speculation.chosen import NO_CHOICE, Chosen

if TYPE_CHECKING:
    from tidemill.sched.plain_rows import PlainRow


@dataclass(slots=True)
class InFlightRow:
    """A row of a plan in flight, and the state needed to undo it.

    Attributes:
        seq, epoch: its sequence, and the sequence's epoch when the row was planned.
        start, sample: as in `Row`.
        count: known tokens whose computation it completes; 0 while some layers of them are left.
        drafts: drafts that it verifies.
        drafts_wanted: as `Row.drafts_wanted`.
        slice_before: the sequence's slice before this row.
        blocks_before: blocks its lease held before.
        charged_before: positions charged to its tenant before.
        sent_before: tokens sent to the executor before.
        snapshot_keys: keys of the block boundaries at which the step stores a state snapshot.
        source: slot of the snapshot that the row starts from, or -1.
        admitted: the sequence was admitted by this plan.
        introduced: this plan sends the sequence's static data to the executor.
    """

    seq: Sequence
    epoch: int
    start: int
    count: int
    sample: bool
    slice_before: Slice | None
    blocks_before: int
    charged_before: int
    sent_before: int
    admitted: bool
    introduced: bool
    snapshot_keys: tuple[BlockKey, ...] = ()
    source: int = -1
    drafts: int = 0
    drafts_wanted: tuple[DraftsWanted, ...] = ()


@dataclass(slots=True)
class PlanBuilder:
    """A plan under construction.

    Attributes:
        budget: tokens left.
        load: the work planned so far, as features of the cost model.
        planned: ids of sequences that have a row.
        preempted: a sequence was preempted for the blocks of a running one.
        first: the sequence to admit first, because another was preempted for it.
        drafts: drafts that its rows may still have.
        chosen: how many each stream was to have.
        tried: ids of sequences for which no blocks could be freed; not tried again.
        plain: rows that are planned together (`sched.plain_rows`), before all others.
    """

    step_id: int
    budget: int
    rows: list[Row] = field(default_factory=list)
    new: list[NewSequence] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    rows_in_flight: list[InFlightRow] = field(default_factory=list)
    planned: set[int] = field(default_factory=set)
    load: Load = field(default_factory=Load)
    preempted: bool = False
    drafts: int = 0
    chosen: Chosen = NO_CHOICE
    first: Sequence | None = None
    tried: set[int] = field(default_factory=set)
    plain: list[PlainRow] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        """All rows."""
        return len(self.rows) + len(self.plain)

    def plan(self, preempted: tuple[int, ...], finished: tuple[int, ...]) -> StepPlan:
        """The finished plan. A row that computes only some of its layers is placed last."""
        cut = next((i for i, row in enumerate(self.rows) if row.layers is not None), None)
        if cut is not None:
            self.rows.append(self.rows.pop(cut))
            self.rows_in_flight.append(self.rows_in_flight.pop(cut))
        return StepPlan(
            step_id=self.step_id,
            new=tuple(self.new),
            rows=tuple(self.rows),
            copies=tuple(self.copies),
            preempted=preempted,
            finished=finished,
        )
