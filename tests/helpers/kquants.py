"""Random tensors of GGUF's K types, made of their bytes: no quantizer is needed for them."""

from __future__ import annotations

import numpy as np

from tidemill.models.tensors import DTYPE_BLOCKS, RawTensor

# Where d and dmin lie, dmin as a multiple of d that makes the mean zero, and the values' standard
# deviation in units of d when scales, minima and q are uniformly random.
_HALVES: dict[str, tuple[int, int | None, float, float]] = {
    "Q4_K": (0, 2, 7.5, 257.0),
    "Q5_K": (0, 2, 15.5, 524.0),
    "Q6_K": (208, None, 0.0, 1365.0),
}
K_TYPES = tuple(_HALVES)


def random_k_tensor(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> RawTensor:
    """A matrix [n, k] of random blocks whose values have a standard deviation near 1 / sqrt(k)."""
    size, values = DTYPE_BLOCKS[dtype]
    count = shape[0] * shape[1] // values
    blocks = rng.integers(0, 256, (count, size), np.uint8)
    d_at, dmin_at, ratio, deviation = _HALVES[dtype]
    d = rng.uniform(0.7, 1.3, (count, 1)) / (deviation * np.sqrt(shape[1]))
    blocks[:, d_at : d_at + 2] = d.astype(np.float16).view(np.uint8)
    if dmin_at is not None:
        blocks[:, dmin_at : dmin_at + 2] = (d * ratio).astype(np.float16).view(np.uint8)
    return RawTensor(dtype, shape, blocks.data.cast("B"))


def mixed_type(name: str) -> str:
    """Type of a matrix in a file like llama.cpp's Q4_K_M, by its canonical name: six bits for the
    ends, the values and the MLP's way down, four for the rest."""
    six = name.startswith(("embed.", "lm_head.")) or ".v." in name or ".down." in name
    return "Q6_K" if six else "Q4_K"
