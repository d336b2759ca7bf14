"""Matrix products of drafters, by a backend: a matrix is a model without layers, and what it makes
of an embedding are its logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import (
    LOGITS_LAST,
    LOGITS_NONE,
    Backend,
    EmbeddingOverrides,
    Int32,
    SamplingInputs,
    StepInputs,
    StepOutputs,
)
from tidemill.worker.inputs import InputBuilder

Float32 = NDArray[np.float32]


class Matrix:
    """A matrix [rows, columns].

    Args:
        backend: a model without layers and last norm, its cache allocated.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.steps = 0

    def __call__(self, x: Float32) -> Float32:
        """float32 [N, rows] of x [N, columns]."""
        self.steps += 1
        return scores_of(self.backend, self.steps, x, [np.zeros((len(x), 1), np.int32)], None)


def scores_of(
    backend: Backend, step_id: int, x: Float32, tables: Sequence[Int32], skip: Int32 | None
) -> Float32:
    """Logits float32 [N, vocabulary] of what stands in front of the output matrix, [N, width].

    Args:
        backend: no step of it is in flight.
        step_id: of the step.
        x: the rows.
        tables: per cache group int32 [N, 1]: any block for each row.
        skip: layers and last norm that are left out: see `StepInputs`.
    """
    inputs = bare_step(step_id, np.zeros(len(x), np.int32), tables, skip, x)
    inputs.logits = np.full(len(x), LOGITS_LAST, np.uint8)
    inputs.return_logits = True
    outputs: StepOutputs = backend.submit(inputs).result()
    assert outputs.logits is not None
    return outputs.logits


def sample_of(
    backend: Backend,
    step_id: int,
    x: Float32,
    tables: Sequence[Int32],
    skip: Int32 | None,
    sampling: SamplingInputs,
) -> tuple[Int32, Float32]:
    """Tokens int32 [N] that are sampled from what `scores_of` returns, and their log-probabilities
    float32 [N].

    Args:
        backend, step_id, x, tables, skip: see `scores_of`.
        sampling: of the N positions.
    """
    count = len(x)
    sampling.num_logprobs = np.zeros(count, np.int32)
    inputs = bare_step(step_id, np.zeros(count, np.int32), tables, skip, x)
    inputs.logits = np.full(count, LOGITS_LAST, np.uint8)
    inputs.sample = np.ones(count, np.uint8)
    inputs.sampling = sampling
    outputs: StepOutputs = backend.submit(inputs).result()
    assert outputs.logprobs is not None
    return outputs.sampled, outputs.logprobs.chosen


def any_blocks(inputs: InputBuilder, seq_ids: Sequence[int], groups: int) -> list[Int32]:
    """Per cache group int32 [N, 1]: a block of each sequence, for rows of bare steps: nothing is
    read of it, but every row has some."""
    sequences = inputs.sequences
    slots = np.array([sequences.slot(seq_id) for seq_id in seq_ids], np.int32)
    return [sequences.tables[group][slots, :1] for group in range(groups)]


def bare_step(
    step_id: int,
    tokens: Int32,
    tables: Sequence[Int32],
    skip: Int32 | None,
    x: Float32 | None = None,
    counts: Int32 | None = None,
) -> StepInputs:
    """A step that samples nothing; see `scores_of`.

    Args:
        step_id, tables, skip: see `scores_of`.
        tokens: int32 [T].
        x: [T, width], in place of the tokens' embeddings; None: none.
        counts: int32 [R]: tokens of each row; None: one of each.
    """
    counts = np.ones(len(tokens), np.int32) if counts is None else counts
    count = len(counts)
    return StepInputs(
        step_id=step_id,
        token_ids=tokens,
        row_start=np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)]),
        context_len=np.zeros(count, np.int32),
        block_tables=tuple(np.ascontiguousarray(table) for table in tables),
        logits=np.full(count, LOGITS_NONE, np.uint8),
        sample=np.zeros(count, np.uint8),
        await_mask=np.zeros(count, np.uint8),
        target_ids=np.full(len(tokens), -1, np.int32),
        target_logprobs=np.full(count, -1, np.int32),
        copies=tuple(np.zeros((0, 2), np.int32) for _ in tables),
        sampling=SamplingInputs.neutral(0),
        skip=skip,
        overrides=None
        if x is None
        else EmbeddingOverrides(
            np.arange(len(x), dtype=np.int32), np.ascontiguousarray(x, np.float32)
        ),
    )
