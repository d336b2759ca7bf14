"""StepPlan -> StepInputs: applies a plan's differences and gathers the step's arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import (
    LOGITS_ALL,
    LOGITS_LAST,
    LOGITS_NONE,
    LayerSlice,
    SamplingInputs,
    StepInputs,
)
from tidemill.contract.plan import LogitsWanted, Row, RowResult, StepPlan
from tidemill.contract.request import Pooling
from tidemill.worker.adapted_rows import adapt
from tidemill.worker.hidden import layer_of, request_hidden
from tidemill.worker.pooling import hidden_wanted
from tidemill.worker.sampler_options import gather_extras
from tidemill.worker.sequences import SequenceSlots
from tidemill.worker.states import StateTable

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]

_LOGITS = {
    LogitsWanted.NONE: LOGITS_NONE,
    LogitsWanted.LAST: LOGITS_LAST,
    LogitsWanted.ALL: LOGITS_ALL,
}

# Row fields that are not computed yet: field -> its name in error messages. Whoever builds the
# capability deletes the line.
UNSUPPORTED = {
    "embedding_overrides": "embedding overrides",  # images
}


@dataclass(slots=True)
class PreparedStep:
    """A plan as arrays, with the state needed to read its outputs or to undo it.

    Attributes:
        plan, inputs: the plan and its arrays.
        rows: the plan's rows that are computed, in the arrays' order.
        refused: results of rows that are not computed, by sequence.
        slots, ends: int32 [R]: slot, and position after the last computed token.
        sampling: [S], per sampled position the index of its row.
        blocks_before: table lengths before the plan, for `undo`.
        poolings: the pooling of rows that contribute to a vector, by index.
    """

    plan: StepPlan
    inputs: StepInputs
    rows: list[Row]
    refused: dict[int, RowResult]
    slots: Int32
    ends: Int32
    sampling: NDArray[np.intp]
    blocks_before: Int32
    poolings: dict[int, Pooling]


class InputBuilder:
    """Keeps the sequences and builds each step's inputs.

    Args:
        groups: cache groups of the model.
        max_len: positions a sequence may have.
        block_size: tokens per KV block.
        slots: initial capacity in sequences; it grows.
        states: of a recurrent model, how many sequences may hold states; 0 for other models.
        snapshots, draft_states: of a recurrent model, how many snapshots of states there are, and
            how many drafts a step may verify.
        layers: of the model.
        soft_prompts: float32 [vectors, hidden_size] of each prompt adapter in memory, by
            `Row.adapter_slot`.
    """

    def __init__(
        self,
        groups: int,
        max_len: int,
        block_size: int,
        slots: int = 64,
        states: int = 0,
        layers: int = 0,
        soft_prompts: Mapping[int, Float32] | None = None,
        snapshots: int = 0,
        draft_states: int = 0,
    ) -> None:
        self._layers = layers
        self._soft_prompts = {} if soft_prompts is None else soft_prompts
        self.sequences = SequenceSlots(groups, max_len, block_size, slots)
        self._groups = groups
        self._states = StateTable(states, snapshots, draft_states) if states else None
        self._block_size = block_size
        self._last: tuple[int, dict[int, int]] = (-1, {})

    @property
    def first_snapshot(self) -> int:
        """Of a recurrent model, the state that snapshot 0 is; 0 for others."""
        return 0 if self._states is None else self._states.snapshot(0)

    def prepare(self, plan: StepPlan) -> PreparedStep:
        """Apply the plan's differences and build its arrays."""
        seqs = self.sequences
        for seq_id in plan.finished:
            self._forget(seq_id)
        for seq_id in plan.preempted:
            if seq_id in seqs:
                seqs.truncate_blocks(seqs.slot(seq_id), 0)
            if self._states is not None:
                self._states.release(seq_id)
        for new in plan.new:
            seqs.add(new)
        refused = {
            row.seq_id: error for row in plan.rows if (error := _rejection(row, self._layers))
        }
        rows = [row for row in plan.rows if row.seq_id not in refused] if refused else [*plan.rows]
        slots = np.fromiter((seqs.slot(row.seq_id) for row in rows), np.int32, len(rows))
        blocks_before = seqs.table_len[slots]
        try:
            for row, slot in zip(rows, slots.tolist(), strict=True):
                if row.new_blocks:
                    # A chunk discarded between its layers may have left more blocks.
                    held = -(-row.start // self._block_size)
                    seqs.truncate_blocks(slot, min(held, int(seqs.table_len[slot])))
                    seqs.append_block_ids(slot, row.new_blocks)
                if row.new_token_ids:
                    seqs.learn(slot, row.new_token_start, row.new_token_ids)
            return self._prepared(plan, rows, refused, slots, blocks_before)
        except Exception:
            # Undo everything, since the plan may be submitted again in parts.
            for slot, before in zip(slots.tolist(), blocks_before.tolist(), strict=True):
                seqs.truncate_blocks(slot, before)
            raise

    def _prepared(
        self,
        plan: StepPlan,
        rows: list[Row],
        refused: dict[int, RowResult],
        slots: Int32,
        blocks_before: Int32,
    ) -> PreparedStep:
        starts = np.fromiter((row.start for row in rows), np.int32, len(rows))
        counts = np.fromiter((row.count for row in rows), np.int32, len(rows))
        sample = np.fromiter((row.sample for row in rows), np.uint8, len(rows))
        sampling = np.flatnonzero(sample)
        sampled_at = (starts + counts)[sampling]
        drafts = self._drafts(rows, slots, starts + counts)
        if drafts is not None:
            counts += drafts
            first = np.repeat(sampled_at, 1 + drafts[sampling])
            sampling = np.repeat(sampling, 1 + drafts[sampling])
            # The n-th position of a row is n after its first one.
            sampled_at = first + np.arange(len(sampling), dtype=np.int32)
            sampled_at -= np.searchsorted(sampling, sampling).astype(np.int32)
        inputs = self._inputs(plan, rows, slots, starts, counts, sample, (sampling, sampled_at))
        inputs.drafts = drafts
        ends = starts + counts
        poolings = self._poolings(rows, slots)
        if poolings:
            inputs.hidden = self._hidden(slots, starts, ends, poolings)
        request_hidden(inputs, rows, self._layers)
        if any(row.adapter_slot for row in rows):
            adapt(inputs, rows, self._soft_prompts)
        inputs.second = self._second(slots)
        return PreparedStep(
            plan, inputs, rows, refused, slots, ends, sampling, blocks_before, poolings
        )

    def _drafts(self, rows: list[Row], slots: Int32, ends: Int32) -> Int32 | None:
        """How many drafts each row has, None if no row has any. They are stored behind the known
        tokens of their sequences, where they are meaningless after the step."""
        if not any(row.draft_token_ids for row in rows):
            return None
        for row, slot, end in zip(rows, slots.tolist(), ends.tolist(), strict=True):
            if row.draft_token_ids:
                self.sequences.tokens[slot, end : end + len(row.draft_token_ids)] = (
                    row.draft_token_ids
                )
        return np.fromiter((len(row.draft_token_ids) for row in rows), np.int32, len(rows))

    def _poolings(self, rows: list[Row], slots: Int32) -> dict[int, Pooling]:
        """The pooling of rows that contribute to a vector, by index; a row whose last layer is
        computed in a later step contributes nothing yet."""
        known = self.sequences.pooling
        if not known:
            return {}
        return {
            i: known[slot]
            for i, (row, slot) in enumerate(zip(rows, slots.tolist(), strict=True))
            if slot in known and (row.layers is None or row.layers.end == self._layers)
        }

    def _second(self, slots: Int32) -> Int32 | None:
        """int32 [R]: start of each row's tokens of type 1; None if no row has any."""
        known = self.sequences.pooling
        if not known:
            return None
        found = [known[slot].second if slot in known else 0 for slot in slots.tolist()]
        return np.array(found, np.int32) if any(found) else None

    def _hidden(
        self, slots: Int32, starts: Int32, ends: Int32, poolings: dict[int, Pooling]
    ) -> NDArray[np.uint8]:
        """Which hidden states each row returns."""
        found = np.zeros(len(slots), np.uint8)
        for i, pooling in poolings.items():
            length = int(self.sequences.prompt_len[slots[i]])
            found[i] = hidden_wanted(pooling, int(starts[i]), int(ends[i]), length)
        return found

    def _inputs(
        self,
        plan: StepPlan,
        rows: list[Row],
        slots: Int32,
        starts: Int32,
        counts: Int32,
        sample: NDArray[np.uint8],
        sampled: tuple[NDArray[np.intp], Int32],
    ) -> StepInputs:
        seqs = self.sequences
        row_start = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(counts, out=row_start[1:])
        token_slot = np.repeat(slots, counts)
        position = np.arange(row_start[-1], dtype=np.int32)
        position += np.repeat(starts - row_start[:-1], counts)
        token_ids = seqs.tokens[token_slot, position]
        future = self._fill_futures(rows, token_ids, row_start)
        logits = np.fromiter((_LOGITS[row.logits] for row in rows), np.uint8, len(rows))
        target_ids, target_logprobs = self._targets(slots, counts, token_slot, position, logits)
        sampling, sampled_at = sampled
        width = max(1, int(seqs.table_len[slots].max(initial=0)))
        states, snapshots = self._advance_states(rows)
        self._last = (plan.step_id, {row.seq_id: i for i, row in enumerate(rows)})
        return StepInputs(
            step_id=plan.step_id,
            token_ids=token_ids,
            row_start=row_start,
            context_len=starts,
            block_tables=tuple(np.ascontiguousarray(t[slots, :width]) for t in seqs.tables),
            logits=logits,
            sample=sample,
            await_mask=np.fromiter((row.mask_announced for row in rows), np.uint8, len(rows)),
            target_ids=target_ids,
            target_logprobs=target_logprobs,
            copies=self._copies(plan),
            sampling=self._sampling(slots[sampling], sampled_at, future[sampling]),
            states=states,
            snapshots=snapshots,
            slice=_slice_of(rows[-1]) if rows else None,
        )

    def _advance_states(self, rows: list[Row]) -> tuple[Int32, Int32]:
        """`StepInputs.states` and `StepInputs.snapshots`."""
        pairs, kept = [], []
        if (table := self._states) is not None:
            for i, row in enumerate(rows):
                end = row.start + row.count
                read, to = table.advance(row.seq_id, row.start, end, row.state_from, row.fork_of)
                for position, number in row.snapshots:
                    # A row computed in parts has those of all of it.
                    if row.start < position <= end:
                        kept.append((i, position - row.start, table.snapshot(number)))
                if row.draft_token_ids:
                    behind = [to, *table.draft(row.seq_id, end, len(row.draft_token_ids))]
                    to = behind.pop()
                    kept += [(i, row.count + n, state) for n, state in enumerate(behind)]
                pairs.append((read, to))
        return np.array(pairs, np.int32).reshape(-1, 2), np.array(kept, np.int32).reshape(-1, 3)

    def _fill_futures(
        self, rows: list[Row], token_ids: Int32, row_start: Int32
    ) -> NDArray[np.bool_]:
        future = np.zeros(len(rows), bool)
        step_id, row_of = self._last
        for i, row in enumerate(rows):
            if row.input_from is not None:
                if row.input_from != step_id:
                    raise RuntimeError(
                        f"step {row.input_from} is not the previously submitted step"
                    )
                token_ids[row_start[i]] = -1 - row_of[row.seq_id]
                future[i] = True
        return future

    def _targets(
        self,
        slots: Int32,
        counts: Int32,
        token_slot: Int32,
        position: Int32,
        logits: NDArray[np.uint8],
    ) -> tuple[Int32, Int32]:
        """Known next tokens within the prompt, for rows with requested prompt logprobs."""
        seqs = self.sequences
        target_ids = np.full(len(position), -1, np.int32)
        target_logprobs = np.full(len(slots), -1, np.int32)
        every = logits == LOGITS_ALL
        if every.any():
            wanted = np.repeat(every, counts) & (position + 1 < seqs.prompt_len[token_slot])
            target_ids[wanted] = seqs.tokens[token_slot[wanted], position[wanted] + 1]
            target_logprobs[every] = seqs.prompt_logprobs[slots[every]]
        return target_ids, target_logprobs

    def _copies(self, plan: StepPlan) -> tuple[Int32, ...]:
        if not plan.copies:
            return tuple(np.zeros((0, 2), np.int32) for _ in range(self._groups))
        return tuple(
            np.array(
                [(c.source, c.target) for c in plan.copies if c.group == group], np.int32
            ).reshape(-1, 2)
            for group in range(self._groups)
        )

    def _sampling(
        self, slots: Int32, positions: Int32, future: NDArray[np.bool_]
    ) -> SamplingInputs:
        seqs = self.sequences
        floats = np.ascontiguousarray(seqs.floats[slots].T)
        bias_start, bias_id, bias_value = self._biases(slots, positions)
        history_start, history = self._histories(slots, positions, future)
        return SamplingInputs(
            temperature=floats[0],
            top_p=floats[1],
            min_p=floats[2],
            presence=floats[3],
            frequency=floats[4],
            repetition=floats[5],
            top_k=seqs.top_k[slots],
            seed=seqs.seed[slots],
            choice=seqs.choice[slots],
            position=positions,
            num_logprobs=seqs.num_logprobs[slots],
            bias_start=bias_start,
            bias_id=bias_id,
            bias_value=bias_value,
            history_start=history_start,
            history=history,
            history_prompt=np.where(
                seqs.penalized[slots], seqs.prompt_len[slots] - seqs.virtual[slots], 0
            ).astype(np.int32),
            candidates=seqs.candidates[slots] if seqs.num_beams else None,
            extras=gather_extras(seqs.extras, slots) if seqs.extras else None,
        )

    def sampling_at(self, seq_ids: Sequence[int], positions: Int32) -> SamplingInputs:
        """The sampling arguments of sequences at positions, int32. Tokens in front of a position
        that are not known yet are those that were drafted there last."""
        slots = np.array([self.sequences.slot(seq_id) for seq_id in seq_ids], np.int32)
        return self._sampling(slots, positions, np.zeros(len(slots), bool))

    def _biases(self, slots: Int32, positions: Int32) -> tuple[Int32, Int32, NDArray[np.float32]]:
        seqs = self.sequences
        starts = np.zeros(len(slots) + 1, np.int32)
        banned = positions - seqs.prompt_len[slots] < seqs.min_tokens[slots]
        affected = np.flatnonzero(seqs.biased[slots] | banned)
        ids, values = [], []
        for s in affected.tolist():
            row_ids, row_values = seqs.bias_of(int(slots[s]), int(positions[s]))
            starts[s + 1] = len(row_ids)
            ids.append(row_ids)
            values.append(row_values)
        np.cumsum(starts, out=starts)
        if not ids:
            return starts, np.zeros(0, np.int32), np.zeros(0, np.float32)
        return starts, np.concatenate(ids), np.concatenate(values)

    def _histories(
        self, slots: Int32, positions: Int32, future: NDArray[np.bool_]
    ) -> tuple[Int32, Int32]:
        seqs = self.sequences
        starts = np.zeros(len(slots) + 1, np.int32)
        pieces = []
        for s in np.flatnonzero(seqs.penalized[slots]).tolist():
            # The last input token of a FUTURE row is not known here; the backend counts it.
            begin, end = int(seqs.virtual[slots[s]]), int(positions[s]) - int(future[s])
            starts[s + 1] = end - begin
            pieces.append(seqs.tokens[slots[s], begin:end])
        np.cumsum(starts, out=starts)
        history = np.concatenate(pieces) if pieces else np.zeros(0, np.int32)
        return starts, history

    def accept(self, step: PreparedStep, sampled: Int32) -> None:
        """Store the tokens of the positions that the step reached, except those of sequences that
        have ended."""
        seqs = self.sequences
        slots, ends = step.slots[step.sampling], step.inputs.sampling.position
        ids = np.fromiter((step.rows[i].seq_id for i in step.sampling), np.int64, len(slots))
        good = (sampled >= 0) & (seqs.seq_id[slots] == ids)
        slots, ends = slots[good], ends[good]
        seqs.tokens[slots, ends] = sampled[good]
        seqs.length[slots] = ends + 1  # of a row's positions the last one counts
        if self._states is not None and step.inputs.drafts is not None:
            reached = np.bincount(step.sampling[sampled >= 0], minlength=len(step.rows))
            for row, count in zip(step.rows, reached.tolist(), strict=True):
                computed = row.start + row.count + max(0, count - 1)
                self._states.settle(row.seq_id, computed)

    def undo(self, step: PreparedStep) -> None:
        """Undo what `prepare` applied for a failed step; the newest step is undone first.

        Finished and preempted sequences stay so. The scheduler repeats both lists, and applying
        them twice has no effect.
        """
        seqs = self.sequences
        for row, slot, before in zip(
            step.rows, step.slots.tolist(), step.blocks_before.tolist(), strict=True
        ):
            if seqs.seq_id[slot] == row.seq_id:
                seqs.truncate_blocks(slot, min(before, int(seqs.table_len[slot])))
            if self._states is not None:
                self._states.settle(row.seq_id, row.start)
        self.forget_new(step.plan)

    def forget_new(self, plan: StepPlan) -> None:
        """Remove the sequences that a plan introduced."""
        for new in plan.new:
            self._forget(new.seq_id)

    def _forget(self, seq_id: int) -> None:
        self.sequences.remove(seq_id)
        if self._states is not None:
            self._states.release(seq_id)


def _slice_of(row: Row) -> LayerSlice | None:
    layers = row.layers
    return None if layers is None else LayerSlice(row.seq_id, layers.begin, layers.end)


def _rejection(row: Row, layers: int) -> RowResult | None:
    for name in row.hidden_states:
        if layer_of(name, layers) is None:
            return RowResult(
                seq_id=row.seq_id,
                error=f"no hidden states are called {name!r}: final, or layer.0 to layer.{layers}",
                error_kind="bad_request",
                error_param="hidden_states",
            )
    for name, words in UNSUPPORTED.items():
        if getattr(row, name):
            return RowResult(
                seq_id=row.seq_id,
                error=f"this executor does not support {words}",
                error_kind="unsupported",
                error_param=name,
            )
    return None
