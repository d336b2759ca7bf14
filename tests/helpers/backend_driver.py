"""Drives a backend directly: sequences in, logits and tokens out, no engine between.

A driver owns the block tables (every sequence gets fresh blocks, one table per cache group) and
builds `StepInputs` for any mix of prefill chunks and single tokens.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tidemill.backends.base import (
    LOGITS_ALL,
    LOGITS_LAST,
    Backend,
    BackendOptions,
    SamplingInputs,
    StepInputs,
    StepOutputs,
)
from tidemill.base.errors import TidemillError
from tidemill.worker.states import StateTable

_SEQUENCES = 40  # that may hold recurrent states at once
_DRAFTS = 20  # that a step verifies


def options(**changes: object) -> BackendOptions:
    """Float32 everywhere, small blocks, one thread, unless told otherwise."""
    values: dict[str, object] = {
        "dtype": "float32",
        "quantize": "none",
        "kv_dtype": "float32",
        "block_size": 16,
        "max_positions": 512,
        "threads": 1,
        **changes,
    }
    return BackendOptions(**values)  # type: ignore[arg-type]


def sampling_inputs(count: int, **changes: object) -> SamplingInputs:
    """Greedy sampling of `count` rows; `changes` are whole arrays or numbers that fill them."""

    def full(name: str, value: float, dtype: type) -> np.ndarray:
        given = changes.pop(name, value)
        return np.ascontiguousarray(np.broadcast_to(np.asarray(given, dtype), (count,)))

    inputs = SamplingInputs(
        temperature=full("temperature", 0.0, np.float32),
        top_p=full("top_p", 1.0, np.float32),
        min_p=full("min_p", 0.0, np.float32),
        presence=full("presence", 0.0, np.float32),
        frequency=full("frequency", 0.0, np.float32),
        repetition=full("repetition", 1.0, np.float32),
        top_k=full("top_k", 0, np.int32),
        seed=full("seed", 0, np.uint64),
        choice=full("choice", 0, np.int32),
        position=full("position", 0, np.int32),
        num_logprobs=full("num_logprobs", -1, np.int32),
        bias_start=np.zeros(count + 1, np.int32),
        bias_id=np.zeros(0, np.int32),
        bias_value=np.zeros(0, np.float32),
        history_start=np.zeros(count + 1, np.int32),
        history=np.zeros(0, np.int32),
        history_prompt=np.zeros(count, np.int32),
    )
    for name, value in changes.items():
        setattr(inputs, name, value)
    return inputs


@dataclass
class DrivenSequence:
    """A sequence: its tokens, how many are in the cache, its block table per group."""

    tokens: list[int]
    computed: int = 0
    tables: list[list[int]] = field(default_factory=list)


def wait_loaded(backend: Backend, seconds: float = 60.0) -> TidemillError | None:
    """Wait until a backend's weights are loaded; returns why they are not."""
    ended: queue.SimpleQueue[TidemillError | None] = queue.SimpleQueue()
    backend.when_loaded(ended.put)
    return ended.get(timeout=seconds)


class BackendDriver:
    """Runs steps of a backend.

    Args:
        backend: a fresh backend; its cache is allocated here.
        num_blocks: blocks per cache group.
    """

    def __init__(self, backend: Backend, num_blocks: int = 64) -> None:
        self.backend = backend
        self.groups = len(backend.spec.cache_groups())
        states = 2 * _SEQUENCES + _DRAFTS
        backend.allocate_cache((num_blocks,) * self.groups, states=states)
        self._states = StateTable(_SEQUENCES, drafts=_DRAFTS) if backend.spec.state_bytes else None
        # Handed out from the end, so that block ids and positions never coincide.
        self._free = [list(range(num_blocks)) for _ in range(self.groups)]
        self._step = 0

    def sequence(self, tokens: Sequence[int]) -> DrivenSequence:
        """A new sequence with these known tokens and no blocks yet."""
        return DrivenSequence(list(tokens), tables=[[] for _ in range(self.groups)])

    def free(self, sequence: DrivenSequence) -> None:
        """Give the sequence's blocks back."""
        for group, table in enumerate(sequence.tables):
            self._free[group].extend(table)
            table.clear()
        sequence.computed = 0
        if self._states is not None:
            self._states.release(id(sequence))

    def inputs(
        self,
        rows: Sequence[tuple[DrivenSequence, int]],
        *,
        logits: int = LOGITS_LAST,
        sample: bool = False,
        return_logits: bool = True,
        future: Sequence[int | None] | None = None,
        sampling: SamplingInputs | None = None,
        drafts: Sequence[int] | None = None,
    ) -> StepInputs:
        """The arrays of a step that computes the next `count` tokens of each (sequence, count).

        `future`: per row the row of the step before whose sampled token is its single input.
        `drafts`: how many of each row's tokens are drafts. The sequences' `computed` advances.
        """
        tokens: list[int] = []
        starts, contexts = [0], []
        states: list[tuple[int, int]] = []
        behind: list[tuple[int, int, int]] = []
        for r, (sequence, count) in enumerate(rows):
            begin = sequence.computed
            source = None if future is None else future[r]
            chunk = [-1 - source] if source is not None else sequence.tokens[begin : begin + count]
            assert len(chunk) == count, "the sequence has no more known tokens"
            tokens += chunk
            starts.append(len(tokens))
            contexts.append(begin)
            self._grow(sequence, begin + count)
            sequence.computed = begin + count
            if self._states is not None:
                draft = 0 if drafts is None else drafts[r]
                known = begin + count - draft
                read, *to = self._states.advance(id(sequence), begin, known)
                to += self._states.draft(id(sequence), known, draft)
                states.append((read, to.pop()))
                behind += [(r, count - draft + n, state) for n, state in enumerate(to)]
        self._step += 1
        count = len(rows)
        if sampling is None:
            positions = np.array([s.computed for s, _ in rows], np.int32)
            sampling = sampling_inputs(count if sample else 0)
            if sample:
                sampling.position = positions
        return StepInputs(
            step_id=self._step,
            token_ids=np.array(tokens, np.int32),
            row_start=np.array(starts, np.int32),
            context_len=np.array(contexts, np.int32),
            block_tables=tuple(self._table(rows, g) for g in range(self.groups)),
            logits=np.full(count, logits, np.uint8),
            sample=np.full(count, int(sample), np.uint8),
            await_mask=np.zeros(count, np.uint8),
            target_ids=np.full(len(tokens), -1, np.int32),
            target_logprobs=np.full(count, -1, np.int32),
            copies=tuple(np.zeros((0, 2), np.int32) for _ in range(self.groups)),
            sampling=sampling,
            states=np.array(states, np.int32).reshape(-1, 2),
            snapshots=np.array(behind, np.int32).reshape(-1, 3),
            drafts=None if drafts is None else np.array(drafts, np.int32),
            return_logits=return_logits,
        )

    def _grow(self, sequence: DrivenSequence, tokens: int) -> None:
        need = -(-tokens // self.backend.options.block_size)
        for group, table in enumerate(sequence.tables):
            while len(table) < need:
                table.append(self._free[group].pop())

    def _table(self, rows: Sequence[tuple[DrivenSequence, int]], group: int) -> np.ndarray:
        width = max(len(s.tables[group]) for s, _ in rows)
        table = np.full((len(rows), width), -1, np.int32)
        for r, (sequence, _) in enumerate(rows):
            blocks = sequence.tables[group]
            table[r, : len(blocks)] = blocks
        return table

    def run(self, rows: Sequence[tuple[DrivenSequence, int]], **kwargs: object) -> StepOutputs:
        """Build, submit and wait."""
        return self.backend.submit(self.inputs(rows, **kwargs)).result()  # type: ignore[arg-type]

    def all_logits(self, tokens: Sequence[int], chunk: int | None = None) -> np.ndarray:
        """float32 [len(tokens), vocab]: logits of every position, the prompt cut into chunks."""
        sequence = self.sequence(tokens)
        step = chunk or len(tokens)
        parts = []
        while sequence.computed < len(tokens):
            count = min(step, len(tokens) - sequence.computed)
            outputs = self.run([(sequence, count)], logits=LOGITS_ALL)
            assert outputs.logits is not None
            parts.append(outputs.logits)
        self.free(sequence)
        return np.concatenate(parts)

    def greedy(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        """Greedy continuations of several prompts, batched; sampled by the backend."""
        sequences = [self.sequence(p) for p in prompts]
        first = self.run([(s, len(s.tokens)) for s in sequences], sample=True)
        outputs: list[list[int]] = [[] for _ in sequences]
        self._take(sequences, outputs, first)
        for _ in range(count - 1):
            self._take(sequences, outputs, self.run([(s, 1) for s in sequences], sample=True))
        for sequence in sequences:
            self.free(sequence)
        return outputs

    @staticmethod
    def _take(sequences: list[DrivenSequence], outputs: list[list[int]], step: StepOutputs) -> None:
        for sequence, output, token in zip(sequences, outputs, step.sampled.tolist(), strict=True):
            sequence.tokens.append(token)
            output.append(token)
