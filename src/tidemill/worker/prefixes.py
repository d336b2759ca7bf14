"""Keys and values that an adapter brings (prefix tuning), as blocks of the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import Backend, ExportedBlocks
from tidemill.base.errors import unsupported
from tidemill.models.adapters import Prefix
from tidemill.models.small_floats import bf16_bytes, rounded_bf16
from tidemill.worker.inputs import PreparedStep
from tidemill.worker.sequences import SequenceSlots

# Per cache group, blocks of a prefix from position 0 on.
PrefixBlocks = tuple[ExportedBlocks, ...]


def blocks_of(prefix: Prefix, backend: Backend) -> PrefixBlocks:
    """A prefix as blocks of a backend's cache, the last one filled with zeros.

    Raises:
        TidemillError: UNSUPPORTED for a cache in integers.
    """
    kv_dtype, size = backend.options.kv_dtype, backend.options.block_size
    if kv_dtype not in ("float32", "bfloat16"):
        raise unsupported(
            "kv_dtype",
            f"prefix tuning in a KV cache of {kv_dtype} is not supported: give --kv-dtype bfloat16",
        )
    count = -(-prefix.count // size)

    def paged(values: NDArray[np.float32]) -> NDArray[np.generic]:
        whole = np.zeros((count * size, *values.shape[1:]), np.float32)
        whole[: len(values)] = values
        found = whole.reshape(count, size, *values.shape[1:])
        if kv_dtype == "float32":
            return found
        return np.frombuffer(bf16_bytes(rounded_bf16(found)), np.uint16).reshape(found.shape)

    return tuple(
        ExportedBlocks(
            kv_dtype,
            [paged(prefix.keys[layer]) for layer in group.layers],
            [paged(prefix.values[layer]) for layer in group.layers],
        )
        for group in backend.spec.cache_groups()
    )


def nbytes(blocks: PrefixBlocks) -> int:
    """Bytes that they take."""
    return sum(array.nbytes for group in blocks for array in (*group.keys, *group.values))


def place(
    backend: Backend,
    sequences: SequenceSlots,
    step: PreparedStep,
    prefixes: Mapping[int, PrefixBlocks],
) -> None:
    """After a step: put keys and values where its rows computed the tokens that stand for them.
    No step is in flight, since none is launched behind a row of a prompt."""
    size, layers = backend.options.block_size, len(backend.spec.layers)
    for row, slot in zip(step.rows, step.slots.tolist(), strict=True):
        blocks = prefixes.get(row.adapter_slot)
        if blocks is None or row.start >= int(sequences.virtual[slot]):
            continue
        if row.layers is not None and row.layers.end < layers:
            continue
        begin, end = row.start // size, -(-(row.start + row.count) // size)
        for group, data in enumerate(blocks):
            part = replace(
                data,
                keys=[array[begin:end] for array in data.keys],
                values=[array[begin:end] for array in data.values],
            )
            table = sequences.tables[group][slot, begin:end]
            backend.import_blocks(group, np.ascontiguousarray(table), part)
