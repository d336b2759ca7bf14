"""Drafts of Medusa heads: head k guesses the token k + 2 places behind the last hidden state.

The residual blocks are computed here, the output matrices by backends, which sample as well: with
the sequence's parameters and the random keys of the positions, as the model will. Heads that share
the model's output matrix are rows of one step of the model without layers and last norm; a head
with an output matrix of its own is a model without layers.

The heads know nothing of each other's draws, so their drafts are a chain of guesses; trees of
several guesses per position are not verified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import Backend, Int32
from tidemill.contract.plan import NewSequence
from tidemill.worker.inputs import InputBuilder
from tidemill.worker.speculate.drafter import NOTHING, Proposal, Wanted
from tidemill.worker.speculate.heads import Head
from tidemill.worker.speculate.matrices import any_blocks, sample_of
from tidemill.worker.speculate.rounds import confidence_of

Float32 = NDArray[np.float32]


class MedusaDrafter:
    """See the module and `drafter.LoadedDrafter`.

    Args:
        backend: the model's.
        inputs: the model's sequences.
        heads: in order.
        outputs: of heads with an output matrix of their own, what computes it; None for the others.
        idle: whether no step of the model is in flight; what another step samples is taken from
            the one submitted before it, so none may come between.
    """

    reads_hidden = True

    def __init__(
        self,
        backend: Backend,
        inputs: InputBuilder,
        heads: Sequence[Head],
        outputs: Sequence[Backend | None],
        idle: Callable[[], bool],
    ) -> None:
        self._backend = backend
        self._inputs = inputs
        self._heads = list(heads)
        # Read here, not amid a step.
        self._block_bytes = sum(w.nbytes + b.nbytes for head in heads for w, b in head.blocks)
        self._maps = [None if head.own else head.score.values().T for head in heads]
        self._outputs = list(outputs)
        self._idle = idle
        self._steps = 0
        self._skip = np.arange(len(backend.spec.layers) + 1, dtype=np.int32)

    def add(self, new: NewSequence, cached: int) -> None:
        """See Drafter."""

    def read(self, seq_id: int, tokens: Int32) -> None:
        """See Drafter."""

    def forget(self, seq_id: int) -> None:
        """See Drafter."""

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """See Drafter."""
        asked = [one for one in wanted if one.hidden is not None and one.most > 0]
        if not asked or not (self._idle() or all(h.own for h in self._heads)):
            return [NOTHING] * len(wanted)
        hidden = np.stack([one.hidden for one in asked if one.hidden is not None])
        count = min(len(self._heads), max(one.most for one in asked))
        own = [k for k in range(count) if self._heads[k].own]
        shared = [k for k in range(count) if not self._heads[k].own]
        tokens = np.full((count, len(asked)), -1, np.int32)
        logprobs = np.zeros((count, len(asked)), np.float32)
        for k in own:
            output = self._outputs[k]
            assert output is not None
            x = self._heads[k].hidden(hidden)
            tokens[k], logprobs[k] = self._sample(output, asked, [k], x, skip=None)
        if shared:
            x = np.concatenate([self._mapped(k, hidden) for k in shared])
            found = self._sample(self._backend, asked, shared, x, skip=self._skip)
            tokens[shared], logprobs[shared] = (a.reshape(len(shared), -1) for a in found)
        vocab = self._backend.spec.vocab_size
        proposals = {
            one.seq_id: _proposal(one, tokens[: one.most, i], logprobs[:, i], vocab)
            for i, one in enumerate(asked)
        }
        return [proposals.get(one.seq_id, NOTHING) for one in wanted]

    def _mapped(self, k: int, hidden: Float32) -> Float32:
        """What the model's output matrix scores for head k."""
        found, to = self._heads[k].hidden(hidden), self._maps[k]
        return found if to is None else found @ to

    def _sample(
        self,
        backend: Backend,
        asked: list[Wanted],
        heads: list[int],
        x: Float32,
        skip: Int32 | None,
    ) -> tuple[Int32, Float32]:
        """Sample heads' tokens of all sequences; x [heads * sequences, width] is scored by the
        backend's output matrix."""
        count = len(x)
        ids = [one.seq_id for _ in heads for one in asked]
        positions = [len(one.tokens) + k for k in heads for one in asked]
        sampling = self._inputs.sampling_at(ids, np.array(positions, np.int32))
        tables = [np.zeros((count, 1), np.int32)]  # an own output matrix has a cache of its own
        if skip is not None:
            tables = any_blocks(self._inputs, ids, len(backend.spec.cache_groups()))
        self._steps += 1
        return sample_of(backend, self._steps, x, tables, skip, sampling)

    def _own(self) -> list[Backend]:
        return [output for output in self._outputs if output is not None]

    def limit_cache(self, blocks: int) -> None:
        """See LoadedDrafter. There is no cache."""

    def empty_cache(self) -> None:
        """See LoadedDrafter. There is no cache."""

    def release_weights(self) -> None:
        """See LoadedDrafter. Heads are in no file as they are computed with, and stay."""

    def restore_weights(self) -> None:
        """See LoadedDrafter."""

    def stop_loading(self) -> None:
        """See LoadedDrafter."""
        for output in self._own():
            output.stop_loading()

    def weight_bytes(self) -> int:
        """See LoadedDrafter."""
        maps = sum(one.nbytes for one in self._maps if one is not None)
        return (
            maps + self._block_bytes + sum(output.memory().weight_bytes for output in self._own())
        )

    def kv_bytes(self) -> int:
        """See LoadedDrafter."""
        return 0

    def unloaded_bytes(self) -> int:
        """See LoadedDrafter."""
        return sum(output.memory().promised_bytes for output in self._own())

    def progress(self) -> int:
        """See LoadedDrafter."""
        return sum(output.progress() for output in self._own())

    def close(self) -> None:
        """See LoadedDrafter."""
        for output in self._own():
            output.close()


def _proposal(one: Wanted, tokens: Int32, logprobs: Float32, vocab: int) -> Proposal:
    count = 0
    while count < len(tokens) and 0 <= tokens[count] < vocab:
        count += 1
    confidence = tuple(confidence_of(float(value)) for value in logprobs[:count])
    if confidence and confidence[0] < one.least:
        return NOTHING
    return Proposal(tuple(tokens[:count].tolist()), confidence=confidence)
