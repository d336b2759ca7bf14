"""Layers applied to the pooled vector: a classifier, or a projection of embeddings.

The products are small. They are computed in double precision and in a fixed order, independent of
concurrent work (promise 6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

HEAD_ACTIVATIONS = ("none", "tanh", "gelu", "relu", "silu")


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """activation(weight @ x + bias), then an optional layer norm.

    Attributes:
        weight: float32 [out, in].
        bias: float32 [out], or None.
        activation: one of `HEAD_ACTIVATIONS`.
        norm: weight and bias (or None) of the norm, float32 [out], or None.
        norm_eps: its epsilon.
    """

    weight: Float32
    bias: Float32 | None = None
    activation: str = "none"
    norm: tuple[Float32, Float32 | None] | None = None
    norm_eps: float = 1e-5

    def apply(self, x: Float64) -> Float64:
        """float64 [in] -> [out]."""
        # einsum without optimisation sums in a fixed order; BLAS picks an order by shape and
        # threads.
        y: Float64 = np.einsum("oi,i->o", self.weight, x, dtype=np.float64)
        if self.bias is not None:
            y = y + self.bias
        y = _activate(self.activation, y)
        if self.norm is None:
            return y
        weight, bias = self.norm
        y = (y - y.mean()) / np.sqrt(y.var() + self.norm_eps) * weight
        return y if bias is None else y + bias


Head = tuple[HeadLayer, ...]


def apply_head(head: Head, vector: Float32) -> Float32:
    """Logits of a head for a pooled vector, float32 [labels]."""
    x = vector.astype(np.float64)
    for layer in head:
        x = layer.apply(x)
    return x.astype(np.float32)


def _activate(name: str, x: Float64) -> Float64:
    y = x
    if name == "tanh":
        y = np.tanh(x)
    elif name == "relu":
        y = np.maximum(x, 0.0)
    elif name == "silu":
        y = x / (1.0 + np.exp(-x))
    elif name == "gelu":
        y = x * np.array([0.5 * (1.0 + math.erf(v / 2.0**0.5)) for v in x.tolist()])
    return y
