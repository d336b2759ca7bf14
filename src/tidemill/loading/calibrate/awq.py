"""AWQ (Lin et al. 2024): inputs that are large get larger weights before these are rounded, and
whatever makes the inputs gives them that much smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.loading.calibrate.rounding import Float32, change, nearest
from tidemill.models.spec import Attention, Layer, Mlp

_STEPS = 20
_ROWS = 512  # of a matrix that the search looks at
_MAX_SCALE = 1e4


@dataclass(frozen=True, slots=True)
class Source:
    """What makes the inputs of some matrices.

    Attributes:
        name: a norm (``attn_norm``), or a matrix whose rows are the inputs (``mlp.up``).
        matrices: those that read it.
    """

    name: str
    matrices: tuple[str, ...]


def sources(layer: Layer) -> list[Source]:
    """The layer's matrices by what makes their inputs, where that can be made smaller."""
    mixer, mlp = layer.mixer, layer.mlp
    assert isinstance(mixer, Attention) and isinstance(mlp, Mlp)
    attention = tuple(f"attn.{part}" for part in ("q", "k", "v", *["gate"] * mixer.gated))
    fed = ("mlp.gate", "mlp.up") if mlp.gated else ("mlp.up",)
    found = []
    if layer.pre_norm and layer.shared_norm:
        found.append(Source("attn_norm", attention + fed))
    elif layer.pre_norm:
        found += [Source("attn_norm", attention), Source("mlp_norm", fed)]
    if mixer.kv_heads == mixer.heads and mixer.clip is None:
        found.append(Source("attn.v", ("attn.o",)))
    if mlp.gated:
        found.append(Source("mlp.up", ("mlp.down",)))
    return found


def search(
    matrices: Mapping[str, Float32], hessian: Float32, typical: NDArray[np.float64], group: int
) -> Float32:
    """The scales [k] among powers of the typical inputs that change least.

    Args:
        matrices: name -> float32 [n, k], which share their inputs.
        hessian: H of these.
        typical: [k], the mean size of each input.
        group: columns that share a scale.
    """
    size = np.maximum(typical, 1e-8 * max(float(typical.max()), 1e-30)).astype(np.float32)
    sample = [w[:: max(1, len(w) // _ROWS)] for w in matrices.values()]
    best, chosen = np.inf, np.ones_like(size)
    for step in range(_STEPS):
        scales = size ** np.float32(step / _STEPS)
        scales = scales / np.sqrt(scales.max() * scales.min())
        scales = scales.clip(1 / _MAX_SCALE, _MAX_SCALE)
        cost = sum(
            change(nearest(w * scales, group, False).values() / scales - w, hessian) for w in sample
        )
        if cost < best:
            best, chosen = cost, scales
    return chosen
