"""Decodes GGUF's block types and converts those that no kernel multiplies.

`decode` returns the scales and integers of any type. Their `values` equal ggml's reference
dequantization bit for bit. `repack` writes them in a type that the kernels multiply, if that is
lossless.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tidemill.models.blocks import iq, k, legacy
from tidemill.models.blocks.base import Blocks

# type -> (bytes per block, values per block, decoder)
DECODERS: dict[str, tuple[int, int, Callable[[NDArray[np.uint8]], Blocks]]] = {
    "Q4_0": (18, 32, legacy.q4_0),
    "Q4_1": (20, 32, legacy.q4_1),
    "Q5_0": (22, 32, legacy.q5_0),
    "Q5_1": (24, 32, legacy.q5_1),
    "Q8_0": (34, 32, legacy.q8_0),
    "IQ4_NL": (18, 32, legacy.iq4_nl),
    "MXFP4": (17, 32, legacy.mxfp4),
    "NVFP4": (36, 64, legacy.nvfp4),
    "Q2_K": (84, 256, k.q2_k),
    "Q3_K": (110, 256, k.q3_k),
    "Q4_K": (144, 256, k.q4_k),
    "Q5_K": (176, 256, k.q5_k),
    "Q6_K": (210, 256, k.q6_k),
    "TQ1_0": (54, 256, k.tq1_0),
    "TQ2_0": (66, 256, k.tq2_0),
    "IQ2_XXS": (66, 256, iq.iq2_xxs),
    "IQ2_XS": (74, 256, iq.iq2_xs),
    "IQ2_S": (82, 256, iq.iq2_s),
    "IQ3_XXS": (98, 256, iq.iq3_xxs),
    "IQ3_S": (110, 256, iq.iq3_s),
    "IQ1_S": (50, 256, iq.iq1_s),
    "IQ1_M": (56, 256, iq.iq1_m),
    "IQ4_XS": (136, 256, iq.iq4_xs),
}

_PIECE = 8192  # blocks decoded at once, so that intermediates stay in cache


def decode(dtype: str, data: NDArray[np.uint8]) -> Blocks:
    """Decode whole blocks of a type."""
    size, _, decoder = DECODERS[dtype]
    return decoder(data.reshape(-1, size))


def dequantize(dtype: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """float32 [values] of whole blocks, decoded piece by piece."""
    size, values, decoder = DECODERS[dtype]
    blocks = data.reshape(-1, size)
    out = np.empty((len(blocks), values), np.float32)
    for start in range(0, len(blocks), _PIECE):
        piece = decoder(blocks[start : start + _PIECE]).values()
        out[start : start + _PIECE] = piece.reshape(-1, values)
    return out.reshape(-1)
