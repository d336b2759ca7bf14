"""Pooling: hidden states to one vector per input.

A vector must not depend on how its input was chunked into steps (promise 6), so sums run token by
token in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import HIDDEN_ALL, HIDDEN_LAST, HIDDEN_NONE
from tidemill.contract.request import Pooling
from tidemill.models.head import Head, apply_head

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


@dataclass(slots=True)
class _Partial:
    """The partial result of an input's vector after `end` tokens."""

    end: int
    value: Float64


def hidden_wanted(pooling: Pooling, start: int, end: int, length: int) -> int:
    """The hidden states that a row over positions start .. end of an input must return."""
    if pooling.kind == "last":
        return HIDDEN_LAST if end == length else HIDDEN_NONE
    if pooling.kind == "cls":
        return HIDDEN_ALL if start == 0 else HIDDEN_NONE
    return HIDDEN_ALL


class Pooler:
    """Collects the vectors of inputs that are computed over several steps."""

    def __init__(self, head: Head = ()) -> None:
        self.head = head
        self._partial: dict[int, _Partial] = {}

    def take(
        self, seq_id: int, pooling: Pooling, start: int, end: int, length: int, hidden: Float32
    ) -> bytes:
        """Add a row's hidden states.

        Args:
            seq_id, pooling: the sequence and its pooling.
            start, end: positions the row computed.
            length: of the whole input.
            hidden: float32 [tokens as `hidden_wanted` said, hidden_size].

        Returns:
            The vector (or its logits) as float32 bytes; empty before the input's end.

        Raises:
            RuntimeError: a part of the input before `start` was not seen.
        """
        value = self._advance(seq_id, pooling.kind, start, end, hidden)
        if end < length:
            return b""
        self._partial.pop(seq_id, None)
        if pooling.kind == "mean":
            value = value / length
        vector = value.astype(np.float32)
        return (apply_head(self.head, vector) if pooling.head else vector).tobytes()

    def _advance(self, seq_id: int, kind: str, start: int, end: int, hidden: Float32) -> Float64:
        if kind == "last":
            return hidden[-1].astype(np.float64) if len(hidden) else np.zeros(0)
        if start == 0:
            self._partial[seq_id] = _Partial(0, np.zeros(0))
        partial = self._partial.get(seq_id)
        if partial is None or partial.end != start:
            raise RuntimeError(f"the input's first {start} tokens were not pooled")
        if kind == "cls":
            value = hidden[0].astype(np.float64) if start == 0 else partial.value
        else:
            value = partial.value if start else np.zeros(hidden.shape[1])
            for row in hidden:  # token by token: the sum does not depend on the chunking
                value = value + row
        self._partial[seq_id] = _Partial(end, value)
        return value

    def forget(self, seq_ids: Sequence[int]) -> None:
        """Drop the partial results of ended sequences."""
        for seq_id in seq_ids:
            self._partial.pop(seq_id, None)
