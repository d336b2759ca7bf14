"""AWQ (Lin et al. 2024): weights of large inputs are scaled up before rounding, and the source of
these inputs is scaled down by the same factor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.convert.calibrate.rounding import Float32, change, nearest
from tidemill.models.spec import Attention, Layer, Mlp

_STEPS = 20
_ROWS = 512  # rows of a matrix that the search uses
_MAX_SCALE = 1e4


@dataclass(frozen=True, slots=True)
class Source:
    """The source of the inputs of some matrices.

    Attributes:
        name: a norm (``attn_norm``), or a matrix whose output rows are the inputs (``mlp.up``).
        matrices: the matrices that read the inputs.
    """

    name: str
    matrices: tuple[str, ...]


def sources(layer: Layer) -> list[Source]:
    """The layer's matrices grouped by the source of their inputs, for sources that can be
    scaled."""
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
    """The scales [k], among powers of the mean input sizes, that change the output least.

    Args:
        matrices: name -> float32 [n, k], which share their inputs.
        hessian: H of these inputs.
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
