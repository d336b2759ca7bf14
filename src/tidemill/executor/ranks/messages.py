"""What rank 0 tells the other ranks: msgpack, arrays as bytes (`channel`).

A step is told without what concerns sampling, which rank 0 does alone.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import (
    EmbeddingOverrides,
    Int32,
    LayerSlice,
    SamplingInputs,
    StepInputs,
)
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import RequestError

# Steps have few numbers of positions.
_unsampled = lru_cache(64)(SamplingInputs.neutral)


class Begin(msgspec.Struct):
    """The first message: what a rank loads.

    Attributes:
        config: the engine's, as it holds where the rank runs.
        rank, ranks: which, of how many.
        layers: first layer of its stage, and the one after its last; None: its part of every layer.
        alone: it is alone on its machine; else it has its share of threads and processors.
    """

    config: EngineConfig
    rank: int
    ranks: int
    layers: tuple[int, int] | None = None
    alone: bool = False


class Table(msgspec.Struct, array_like=True):
    """An int32 matrix."""

    rows: int
    columns: int
    data: bytes


class Overrides(msgspec.Struct, array_like=True):
    """See `backends.base.EmbeddingOverrides`."""

    tokens: bytes
    width: int
    rows: bytes


class Step(msgspec.Struct, array_like=True, tag=True):
    """A step; see `backends.base.StepInputs` for what the fields of these names are."""

    step_id: int
    token_ids: bytes
    row_start: bytes
    context_len: bytes
    block_tables: tuple[Table, ...]
    logits: bytes
    sample: bytes
    target_ids: bytes
    target_logprobs: bytes
    copies: tuple[Table, ...]
    return_logits: bool
    slice: tuple[int, int, int] | None
    skip: bytes | None
    drafts: bytes | None
    second: bytes | None
    overrides: Overrides | None
    states: Table
    snapshots: Table
    hidden: bytes | None = None


class Allocate(msgspec.Struct, array_like=True, tag=True):
    """See `backends.base.Backend.allocate_cache`."""

    num_blocks: tuple[int, ...]
    kv_dtype: str | None
    states: int
    unchecked: bool


class LimitCache(msgspec.Struct, array_like=True, tag=True):
    """See `backends.base.Backend.limit_cache`."""

    blocks: int


class MoveBlocks(msgspec.Struct, array_like=True, tag=True):
    """`copy_blocks`, of pairs, or `give_back_blocks`."""

    group: int
    blocks: Table
    copies: bool


class Do(msgspec.Struct, array_like=True, tag=True):
    """A method of the backend without arguments: one of `CALLS`."""

    method: str


CALLS = ("empty_cache", "release_weights", "restore_weights")

Command = Step | Allocate | LimitCache | MoveBlocks | Do


class Reply(msgspec.Struct, array_like=True, tag=True):
    """That a command (every one but a step), or loading, has ended; memory as of then.

    Attributes:
        error: why it failed, or None.
        memory: weight, KV, mapped and promised bytes; see `backends.base.BackendMemory`.
        identity: of loading: what the bits depend on that it computes.
    """

    error: RequestError | None = None
    memory: tuple[int, int, int, int] = (0, 0, 0, 0)
    identity: str = ""


class Beat(msgspec.Struct, array_like=True, tag=True):
    """That a rank is there, and `backends.base.Backend.progress` of it."""

    progress: int = 0


encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_begin = msgspec.msgpack.Decoder(Begin).decode
decode_reply = msgspec.msgpack.Decoder(Reply | Beat).decode


def table_of(array: Int32) -> Table:
    """A matrix as it is sent."""
    rows, columns = array.shape
    return Table(rows, columns, array.tobytes())


def array_of(table: Table) -> Int32:
    """A matrix that was sent."""
    return np.frombuffer(table.data, np.int32).reshape(table.rows, table.columns)


def step_of(inputs: StepInputs) -> Step:
    """A step as it is sent."""
    given, part = inputs.overrides, inputs.slice
    return Step(
        step_id=inputs.step_id,
        token_ids=inputs.token_ids.tobytes(),
        row_start=inputs.row_start.tobytes(),
        context_len=inputs.context_len.tobytes(),
        block_tables=tuple(map(table_of, inputs.block_tables)),
        logits=inputs.logits.tobytes(),
        sample=inputs.sample.tobytes(),
        target_ids=inputs.target_ids.tobytes(),
        target_logprobs=inputs.target_logprobs.tobytes(),
        copies=tuple(map(table_of, inputs.copies)),
        return_logits=inputs.return_logits,
        slice=None if part is None else (part.sequence, part.begin, part.end),
        skip=_optional(inputs.skip),
        drafts=_optional(inputs.drafts),
        second=_optional(inputs.second),
        overrides=None
        if given is None
        else Overrides(given.tokens.tobytes(), given.rows.shape[1], given.rows.tobytes()),
        states=table_of(inputs.states),
        snapshots=table_of(inputs.snapshots),
        hidden=None if inputs.hidden is None else inputs.hidden.tobytes(),
    )


def inputs_of(step: Step) -> StepInputs:
    """A step that was sent, for a backend that does not sample."""
    sample = np.frombuffer(step.sample, np.uint8)
    drafts, given = _int32s(step.drafts), step.overrides
    positions = sample.astype(np.int64) * (1 if drafts is None else 1 + drafts)
    return StepInputs(
        step_id=step.step_id,
        token_ids=np.frombuffer(step.token_ids, np.int32),
        row_start=np.frombuffer(step.row_start, np.int32),
        context_len=np.frombuffer(step.context_len, np.int32),
        block_tables=tuple(map(array_of, step.block_tables)),
        logits=np.frombuffer(step.logits, np.uint8),
        sample=sample,
        await_mask=np.zeros(len(sample), np.uint8),
        target_ids=np.frombuffer(step.target_ids, np.int32),
        target_logprobs=np.frombuffer(step.target_logprobs, np.int32),
        copies=tuple(map(array_of, step.copies)),
        sampling=_unsampled(int(positions.sum())),
        states=array_of(step.states),
        snapshots=array_of(step.snapshots),
        slice=None if step.slice is None else LayerSlice(*step.slice),
        skip=_int32s(step.skip),
        return_logits=step.return_logits,
        overrides=None if given is None else _overrides(given),
        second=_int32s(step.second),
        drafts=drafts,
        hidden=None if step.hidden is None else np.frombuffer(step.hidden, np.uint8),
    )


def _overrides(given: Overrides) -> EmbeddingOverrides:
    rows = np.frombuffer(given.rows, np.float32).reshape(-1, given.width)
    return EmbeddingOverrides(np.frombuffer(given.tokens, np.int32), rows)


def _optional(array: NDArray[np.int32] | None) -> bytes | None:
    return None if array is None else array.tobytes()


def _int32s(data: bytes | None) -> Int32 | None:
    return None if data is None else np.frombuffer(data, np.int32)
