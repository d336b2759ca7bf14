"""A step as the other ranks receive it: everything but what sampling needs."""

from __future__ import annotations

import dataclasses

import numpy as np
from helpers.backend_driver import sampling_inputs

from tidemill.backends.base import EmbeddingOverrides, LayerSlice, StepInputs
from tidemill.executor.ranks.messages import decode_command, encode, inputs_of, step_of

# What rank 0 alone needs; adapters are refused where there are ranks.
OF_RANK_0 = {"sampling", "await_mask", "hidden_layers", "adapters"}


def _inputs() -> StepInputs:
    def ints(*values: int) -> np.ndarray:
        return np.array(values, np.int32)

    return StepInputs(
        step_id=7,
        token_ids=ints(5, 6, -1, 8),
        row_start=ints(0, 3, 4),
        context_len=ints(2, 9),
        block_tables=(np.array([[1, 2], [3, -1]], np.int32),),
        logits=np.array([1, 2], np.uint8),
        sample=np.array([1, 1], np.uint8),
        await_mask=np.array([1, 0], np.uint8),
        target_ids=ints(-1, 3, -1, 4),
        target_logprobs=ints(-1, 2),
        copies=(np.array([[4, 5]], np.int32),),
        sampling=sampling_inputs(3, temperature=0.7),
        states=np.array([[-1, 2], [3, 4]], np.int32),
        snapshots=np.array([[0, 2, 9]], np.int32),
        slice=LayerSlice(11, 2, 4),
        skip=ints(1, 3),
        return_logits=True,
        overrides=EmbeddingOverrides(ints(1), np.array([[0.5, -1.5]], np.float32)),
        second=ints(0, 4),
        drafts=ints(1, 0),
        hidden=np.array([2, 0], np.uint8),
    )


def test_a_step_arrives_whole_but_for_sampling() -> None:
    sent = _inputs()
    received = inputs_of(decode_command(encode(step_of(sent))))  # type: ignore[arg-type]
    for field in dataclasses.fields(StepInputs):
        if field.name in OF_RANK_0:
            continue
        mine, theirs = getattr(sent, field.name), getattr(received, field.name)
        assert _flat(mine) == _flat(theirs), field.name
    assert not received.await_mask.any()
    assert len(received.sampling.temperature) == 3  # two of the row with a draft


def _flat(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    if isinstance(value, tuple):
        return [_flat(one) for one in value]
    if isinstance(value, EmbeddingOverrides):
        return _flat(value.tokens), _flat(value.rows)
    return value


def test_what_is_not_there_stays_away() -> None:
    bare = dataclasses.replace(
        _inputs(), slice=None, skip=None, overrides=None, second=None, drafts=None, hidden=None
    )
    received = inputs_of(decode_command(encode(step_of(bare))))  # type: ignore[arg-type]
    names = ("slice", "skip", "overrides", "second", "drafts", "hidden")
    assert [getattr(received, name) for name in names] == [None] * 6
