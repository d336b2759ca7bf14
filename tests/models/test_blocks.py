"""GGUF's block types: values against the gguf package bit for bit, repacking without loss."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from tidemill.models import blocks
from tidemill.models.blocks.base import Blocks, ones
from tidemill.models.blocks.repack import _HOLDERS, PACKERS, Inexact, pack_q4_0, pack_q8_0


def random_blocks(dtype: str, count: int, seed: int = 0) -> NDArray[np.uint8]:
    """Any bytes: every code, scale and sign that the type can hold."""
    size = blocks.DECODERS[dtype][0]
    return np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8)


def sane_blocks(dtype: str, count: int, seed: int = 0) -> NDArray[np.uint8]:
    """Blocks whose float16 scales are those of real weights."""
    rng = np.random.default_rng(seed)
    data = random_blocks(dtype, count, seed)
    scale = (rng.uniform(0.001, 0.02, count)).astype(np.float16).view(np.uint8).reshape(count, 2)
    if dtype == "MXFP4":
        data[:, 0] = rng.integers(115, 125, count)
    elif dtype == "IQ1_M":
        words = data[:, 48:].copy().view("<u2")
        bits = scale.copy().view("<u2")
        for i in range(4):
            words[:, i] = (words[:, i] & 0x0FFF) | (((bits[:, 0] >> (4 * i)) & 15) << 12)
        data[:, 48:] = words.view(np.uint8)
    else:
        at = data.shape[1] - 2 if dtype in ("Q3_K", "Q6_K", "TQ1_0", "TQ2_0") else 0
        data[:, at : at + 2] = scale
    return data


@pytest.mark.parametrize("dtype", blocks.DECODERS)
def test_values_equal_the_reference_bit_for_bit(dtype: str) -> None:
    data = random_blocks(dtype, 600)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[dtype]).reshape(-1)
        values = blocks.dequantize(dtype, data)
    same = values.view(np.uint32) == expected.astype(np.float32).view(np.uint32)
    assert (same | (np.isnan(values) & np.isnan(expected))).all()


@pytest.mark.parametrize("dtype", _HOLDERS)
def test_repacking_loses_nothing(dtype: str) -> None:
    data = sane_blocks(dtype, 300)
    (target,) = _HOLDERS[dtype]
    packed = PACKERS[target](blocks.decode(dtype, data))
    expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[dtype]).reshape(-1)
    kind = gguf.GGMLQuantizationType[target]
    np.testing.assert_array_equal(gguf.quants.dequantize(packed, kind).reshape(-1), expected)


def test_what_does_not_fit_is_said() -> None:
    q = np.full((2, 1, 32), 5, np.int16)
    scale = np.full((2, 1), 0.1, np.float32)
    with pytest.raises(Inexact, match=r"0\.1\d* does not fit float16"):
        pack_q8_0(Blocks(scale, ones(2), q))
    half = scale.astype(np.float16).astype(np.float32)
    with pytest.raises(Inexact, match="-9 to 5"):
        pack_q4_0(Blocks(half, ones(2), np.where(np.arange(32) == 3, -9, q).astype(np.int16)))
    with pytest.raises(Inexact, match="offsets"):
        pack_q8_0(Blocks(half, ones(2), q, half, ones(2)))
    # The scale of zeros alone says nothing.
    assert not pack_q8_0(Blocks(scale, ones(2), q * 0)).any()
