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
    inputs = bare_step(step_id, np.zeros(len(x), np.int32), tables, skip)
    inputs.logits = np.full(len(x), LOGITS_LAST, np.uint8)
    inputs.return_logits = True
    rows = np.arange(len(x), dtype=np.int32)
    inputs.overrides = EmbeddingOverrides(rows, np.ascontiguousarray(x, np.float32))
    outputs: StepOutputs = backend.submit(inputs).result()
    assert outputs.logits is not None
    return outputs.logits


def any_blocks(inputs: InputBuilder, seq_ids: Sequence[int], groups: int) -> list[Int32]:
    """Per cache group int32 [N, 1]: a block of each sequence, for rows of bare steps: nothing is
    read of it, but every row has some."""
    sequences = inputs.sequences
    slots = np.array([sequences.slot(seq_id) for seq_id in seq_ids], np.int32)
    return [sequences.tables[group][slots, :1] for group in range(groups)]


def bare_step(
    step_id: int, tokens: Int32, tables: Sequence[Int32], skip: Int32 | None
) -> StepInputs:
    """A step of a token per row that samples nothing; see `scores_of`."""
    count = len(tokens)
    return StepInputs(
        step_id=step_id,
        token_ids=tokens,
        row_start=np.arange(count + 1, dtype=np.int32),
        context_len=np.zeros(count, np.int32),
        block_tables=tuple(np.ascontiguousarray(table) for table in tables),
        logits=np.full(count, LOGITS_NONE, np.uint8),
        sample=np.zeros(count, np.uint8),
        await_mask=np.zeros(count, np.uint8),
        target_ids=np.full(count, -1, np.int32),
        target_logprobs=np.full(count, -1, np.int32),
        copies=tuple(np.zeros((0, 2), np.int32) for _ in tables),
        sampling=SamplingInputs.neutral(0),
        skip=skip,
    )
