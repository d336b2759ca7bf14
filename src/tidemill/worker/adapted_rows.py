"""What the adapters of a step's rows mean for its arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import EmbeddingOverrides, StepInputs
from tidemill.contract.plan import Row

Float32 = NDArray[np.float32]


def adapt(inputs: StepInputs, rows: Sequence[Row], soft_prompts: Mapping[int, Float32]) -> None:
    """Fill in `adapters`, and `overrides` where rows compute vectors of prompt adapters. A row of
    a prompt adapter is the base's but for these vectors.

    Args:
        inputs: of these rows.
        soft_prompts: float32 [vectors, hidden_size] by adapter slot; other slots are the backend's.
    """
    slots = (-1 if row.adapter_slot in soft_prompts else row.adapter_slot - 1 for row in rows)
    adapters = np.fromiter(slots, np.int32, len(rows))
    if (adapters >= 0).any():
        inputs.adapters = adapters
    tokens, vectors = [], []
    for row, begin in zip(rows, inputs.row_start.tolist(), strict=False):
        found = soft_prompts.get(row.adapter_slot)
        if found is not None and row.start < len(found):
            part = found[row.start : row.start + row.count]
            tokens.append(np.arange(begin, begin + len(part), dtype=np.int32))
            vectors.append(part)
    if tokens:
        inputs.overrides = EmbeddingOverrides(np.concatenate(tokens), np.concatenate(vectors))
