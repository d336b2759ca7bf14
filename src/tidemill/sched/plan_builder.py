"""A plan under construction, and what undoing it takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.contract.plan import BlockCopy, NewSequence, Row, StepPlan
from tidemill.memory.prefix import BlockKey
from tidemill.sched.cost import Load
from tidemill.sched.sequence import Sequence, Slice


@dataclass(slots=True)
class InFlightRow:
    """A row of an outstanding plan, and what undoing it takes.

    Attributes:
        seq, epoch: whose row, planned when.
        start, sample: as in the row.
        count: tokens that are computed with it: none while layers of them are left.
        slice_before: the sequence's slice before.
        blocks_before: blocks its lease held before.
        charged_before: positions its tenant had paid for before.
        told_before: tokens the executor knew before.
        keeps: boundaries whose states the step keeps.
        source: the snapshot it starts from, or -1.
        admitted: the sequence was admitted by this plan.
        introduced: the executor learns of it in this plan.
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
    keeps: tuple[BlockKey, ...] = ()
    source: int = -1


@dataclass(slots=True)
class PlanBuilder:
    """A plan under construction.

    Attributes:
        budget: tokens left.
        load: what it computes so far, as the cost model sees it.
        preempted: somebody had to make room for a running sequence.
        first: admitted before anybody else is looked at: room was made for it.
        tried: sequences without room for a row; not asked again.
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
    first: Sequence | None = None
    tried: set[int] = field(default_factory=set)

    def plan(self, preempted: tuple[int, ...], finished: tuple[int, ...]) -> StepPlan:
        """The finished plan; a row that computes some of its layers is its last one."""
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
