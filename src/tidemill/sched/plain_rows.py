"""PlainRows: rows that give streams their next token and nothing else, planned and committed
together.

Whoever knows what such rows return (a simulation) need not have a `Row` and a result for each. What
they do to sequences, blocks and tenants is what one row after another would do, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tidemill.contract.request import ChoiceOutput, FinishReason, Status
from tidemill.sched.commit import finish, publish
from tidemill.sched.sequence import Emission, Sequence

if TYPE_CHECKING:
    from tidemill.sched.plan_builder import PlanBuilder
    from tidemill.sched.state import State


class PlainRow(NamedTuple):
    """A stream's row of one known token, which samples the next: as in `InFlightRow`."""

    seq: Sequence
    epoch: int
    start: int


class PlainRows:
    """See the module docstring.

    Args:
        token: what a sequence samples at a position.
    """

    def __init__(self, token: Callable[[int, int], int]) -> None:
        self._token = token

    def plan(self, state: State, builder: PlanBuilder, due: list[Sequence]) -> bool:
        """Plan a row for each of these streams, which are in order; False, and nothing is done,
        where one of them is more than that, or there is not memory for all."""
        if not due or len(due) > builder.budget or len(state.tenants) != 1:
            return False
        size, growing = state.memory.block_size, list[Sequence]()
        needed = 0
        for seq in due:
            lease = seq.lease
            if not seq.first_sent or lease is None or not _is_plain(seq):
                return False
            if seq.planned >= len(lease.tables[0]) * size:
                growing.append(seq)
                needed += lease.needed(seq.planned + 1)
            elif lease.borrows:
                return False
        if needed > state.memory.num_free:
            return False
        for seq in growing:
            assert seq.lease is not None
            seq.lease.grow(seq.planned + 1)
        self._add(state, builder, due)
        return True

    def _add(self, state: State, builder: PlanBuilder, due: list[Sequence]) -> None:
        load, step, reach, fresh = builder.load, builder.step_id, 0, 0
        rows = builder.plain
        for seq in due:
            start = seq.planned
            rows.append(PlainRow(seq, seq.epoch, start))
            end = start + 1
            reach += end
            owner = seq.owner
            if owner.adapter_slot:
                load.add_adapter(owner.slot_at(start), owner.adapter_bytes)
            if seq.charged < end:
                seq.charged = end
                fresh += 1
            seq.num_sent = len(seq.tokens)
            seq.last_row = step
            seq.planned = end
            seq.pending += 1
        count = len(due)
        builder.planned.update([seq.seq_id for seq in due])
        builder.budget -= count
        load.tokens += float(count)
        load.pairs += float(reach)
        load.reach += float(reach)
        state.tenants.charge_each(due[0].owner.request.tenant, fresh)

    def commit(
        self, state: State, rows: list[PlainRow], ended: Callable[[Sequence], None]
    ) -> list[Emission]:
        """Apply the results of such rows; `ended` is called with each stream that ends."""
        size, token_at, found = state.memory.block_size, self._token, list[Emission]()
        for seq, epoch, start in rows:
            seq.pending -= 1
            if seq.status is Status.FINISHED:
                continue
            tokens = seq.tokens
            token = token_at(seq.seq_id, start)
            tokens.append(token)
            seq.num_sent = len(tokens)
            if epoch == seq.epoch:
                seq.computed = start + 1
                if seq.computed // size > seq.published:
                    publish(state, seq)
            if len(tokens) >= seq.max_len:
                found.append(finish(state, seq, FinishReason.LENGTH, tokens=(token,)))
                ended(seq)
                continue
            owner = seq.owner
            found.append(
                Emission(
                    owner.client,
                    ChoiceOutput(
                        request_id=owner.request.request_id, choice=seq.choice, token_ids=(token,)
                    ),
                )
            )
        return found


def _is_plain(seq: Sequence) -> bool:
    if seq.serial or seq.drafters or seq.stop_ids or seq.slice is not None:
        return False
    if len(seq.tokens) + seq.pending - seq.planned != 1 or not seq.on_worker:
        return False
    owner = seq.owner
    if seq.constraint is not None or seq.history is not None or owner.held:
        return False
    return owner.beams is None and owner.request.pooling is None and not owner.prompt_logprobs
