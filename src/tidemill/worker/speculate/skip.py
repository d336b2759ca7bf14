"""Drafts from the model itself, some of its layers left out (Zhang et al. 2024, "Draft & Verify").

Which layers is found by measurement (`layers.py`). A drafting step reads the model's own cache and
writes to it at the positions that it drafts from, of the layers that it computes. These lie behind
the tokens that are computed, so nobody reads them before the step that verifies has written all
layers there anew; a draft that reaches beyond the sequence's blocks is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from tidemill.backends.base import Backend, Int32, StepHandle, StepInputs
from tidemill.contract.plan import LogitsWanted, NewSequence, Row, RowResult
from tidemill.worker.inputs import InputBuilder
from tidemill.worker.runner import Runner
from tidemill.worker.speculate.drafter import NOTHING, Proposal, Wanted
from tidemill.worker.speculate.rounds import Rounds, drafts_of


class Skipping:
    """A backend whose steps leave layers out, and return the logprobs of what they sample."""

    def __init__(self, backend: Backend, layers: tuple[int, ...]) -> None:
        self.spec, self.options = backend.spec, backend.options
        self._backend = backend
        self._layers = np.array(layers, np.int32)

    def submit(self, inputs: StepInputs) -> StepHandle:
        """See Backend."""
        inputs.skip = self._layers
        inputs.sampling.num_logprobs = np.zeros_like(inputs.sampling.num_logprobs)
        return self._backend.submit(inputs)


class SkipDrafter:
    """See the module and `drafter.Drafter`.

    Args:
        backend: the model's.
        inputs: the model's sequences.
        layers: those that are left out; none: nothing is drafted.
        idle: whether no step of the model is in flight. What another step samples is taken from the
            one submitted before it, so none may come between.
    """

    reads_hidden = False

    def __init__(
        self,
        backend: Backend,
        inputs: InputBuilder,
        layers: tuple[int, ...],
        idle: Callable[[], bool],
    ) -> None:
        self._sequences = inputs.sequences
        self._size = backend.options.block_size
        self._vocab = backend.spec.vocab_size
        self._idle = idle
        runner = Runner(cast(Backend, Skipping(backend, layers)), 1)
        runner.inputs = inputs
        self._rounds = Rounds(runner) if layers else None

    def add(self, new: NewSequence, cached: int) -> None:
        """See Drafter. The model's sequences are used."""

    def read(self, seq_id: int, tokens: Int32) -> None:
        """See Drafter. There is nothing to read."""

    def forget(self, seq_id: int) -> None:
        """See Drafter."""

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """See Drafter."""
        if self._rounds is None:
            return [NOTHING._replace(quiet=True)] * len(wanted)
        if not self._idle():
            return [NOTHING] * len(wanted)
        lengths = {one.seq_id: length for one in wanted if (length := self._room(one)) > 0}
        ends = {one.seq_id: len(one.tokens) for one in wanted}
        rows = [_row(one) for one in wanted if one.seq_id in lengths]
        try:
            least = {one.seq_id: one.least for one in wanted}
            found = self._rounds.draft(rows, ends, lengths, least)
        finally:
            for one in wanted:  # drafts are not known tokens
                self._sequences.length[self._sequences.slot(one.seq_id)] = len(one.tokens)
        return [self._proposal(one, found.get(one.seq_id, [])) for one in wanted]

    def _room(self, one: Wanted) -> int:
        """Drafts that the blocks of a sequence have room for: each but the last is computed."""
        blocks = -(-one.end // self._size)
        return min(one.most, blocks * self._size - len(one.tokens) + 1)

    def _proposal(self, one: Wanted, results: list[RowResult]) -> Proposal:
        drafts, confidence = drafts_of(results, self._vocab, one.least)
        return Proposal(drafts, confidence=confidence)


def _row(one: Wanted) -> Row:
    return Row(
        seq_id=one.seq_id,
        start=len(one.tokens) - 1,
        count=1,
        logits=LogitsWanted.LAST,
        sample=True,
        adapter_slot=one.adapter_slot,
    )
