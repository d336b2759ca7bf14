"""Steps over one text that sample nothing, to compare a model's next-token distributions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import LOGITS_ALL, SamplingInputs, StepInputs
from tidemill.models.spec import DecoderSpec
from tidemill.worker.states import StateTable


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities in double precision: [rows, vocab]."""
    values = logits.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    found: NDArray[np.float64] = values - np.log(np.exp(values).sum(axis=1, keepdims=True))
    return found


def text_states(spec: DecoderSpec) -> StateTable | None:
    """For `text_step`, of a model with recurrent layers."""
    return StateTable(1) if spec.state_bytes else None


def text_step(
    step: int,
    chunk: Sequence[int],
    start: int,
    blocks: int,
    groups: int,
    states: StateTable | None = None,
) -> StepInputs:
    """The arrays of one row that samples nothing and returns all its logits.

    Args:
        step: the step's id.
        chunk: the tokens to compute.
        start: number of tokens before them, already computed.
        blocks: length of the text's block table in each of the `groups`.
        states: the result of `text_states`, the same for all steps.
    """
    floats, ints = np.zeros(0, np.float32), np.zeros(0, np.int32)
    starts = np.zeros(1, np.int32)
    sampling = SamplingInputs(
        floats, floats, floats, floats, floats, floats, ints, np.zeros(0, np.uint64), ints, ints,
        ints, starts, ints, floats, starts, ints, ints,
    )  # fmt: skip
    pair = [] if states is None else [states.advance(0, start, start + len(chunk))]
    table = np.arange(blocks, dtype=np.int32)[None, :]
    return StepInputs(
        step_id=step,
        token_ids=np.array(chunk, np.int32),
        row_start=np.array([0, len(chunk)], np.int32),
        context_len=np.array([start], np.int32),
        block_tables=(table,) * groups,
        logits=np.array([LOGITS_ALL], np.uint8),
        sample=np.zeros(1, np.uint8),
        await_mask=np.zeros(1, np.uint8),
        target_ids=np.full(len(chunk), -1, np.int32),
        target_logprobs=np.full(1, -1, np.int32),
        copies=(np.zeros((0, 2), np.int32),) * groups,
        sampling=sampling,
        states=np.array(pair, np.int32).reshape(-1, 2),
        return_logits=True,
    )
