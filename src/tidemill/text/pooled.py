"""Converts pooled vectors to embeddings and scores.

This is a separate module because nothing else in the API process needs numpy. Only models and
requests with vectors import it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.base.vector_data import VectorData

Float32 = NDArray[np.float32]


def finish_embedding(pooled: bytes, data: VectorData, dimensions: int | None) -> Float32:
    """An embedding, cut to its first `dimensions` (Kusupati et al. 2022, Matryoshka) and then
    divided by its length if the model's files say so."""
    vector = np.frombuffer(pooled, np.float32).astype(np.float64)
    if dimensions is not None:
        vector = vector[:dimensions]
    if data.normalize:
        length = float(np.sqrt(np.sum(vector * vector)))
        vector = vector / length if length > 0.0 else vector
    return vector.astype(np.float32)


def finish_score(pooled: bytes, data: VectorData) -> float:
    """A score from the logit of a cross-encoder's head."""
    logit = float(np.frombuffer(pooled, np.float32)[0])
    if not data.sigmoid:
        return logit
    # Sigmoid, in the form whose exponential does not overflow.
    small = float(np.exp(-abs(logit)))
    return 1.0 / (1.0 + small) if logit >= 0 else small / (1.0 + small)


def similarity(a: bytes, b: bytes) -> float:
    """The cosine of two pooled vectors."""
    x, y = (np.frombuffer(v, np.float32).astype(np.float64) for v in (a, b))
    length = float(np.sqrt(np.sum(x * x)) * np.sqrt(np.sum(y * y)))
    return float(np.sum(x * y)) / length if length > 0.0 else 0.0
