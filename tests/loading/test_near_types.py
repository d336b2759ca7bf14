"""GGUF's types without a kernel: held in one that has, and what that loses."""

from __future__ import annotations

from pathlib import Path

import gguf as package
import numpy as np
import pytest

from tests.loading.test_gguf_models import METADATA, tensors
from tests.models.test_blocks import sane_blocks
from tidemill.loading import open_model
from tidemill.loading.formats.gguf import TENSOR_TYPES
from tidemill.loading.lazy import Holding
from tidemill.models.blocks import DECODERS
from tidemill.models.quantization import convert, stored_type, to_float32
from tidemill.models.tensors import RawTensor

UP = "layers.0.mlp.up.weight"
# What each is held in, and how far that may be from it (relative, root mean square).
HELD = {
    "NVFP4": ("Q8_0", 0.007), "Q2_K": ("Q8_0", 0.007), "IQ2_XXS": ("Q8_0", 3e-4),
    "IQ2_XS": ("Q8_0", 0.007), "IQ2_S": ("Q8_0", 0.007), "IQ4_XS": ("IQ4_NL", 3e-4),
}  # fmt: skip


def model(dtype: str, path: Path) -> tuple[Path, np.ndarray]:
    """A model with one matrix in a type, and the values of that."""
    size, count, _ = DECODERS[dtype]
    raw = sane_blocks(dtype, 64 * 256 // count).reshape(64, -1)
    block = raw.reshape(-1, size)
    if dtype == "NVFP4":
        block[:, :4] %= 0x70
    elif dtype == "Q2_K":
        block[:, 80:84] = np.array((0.01, 0.015), np.float16).view(np.uint8)
    weights = {
        name: np.resize(value, tuple(256 if n == 32 else n for n in value.shape)).astype("f4")
        for name, value in tensors().items()
    }
    metadata = {**METADATA, "embedding_length": 256, "rope.dimension_count": 64}
    kinds = package.GGMLQuantizationType
    writer = package.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"llama.{key}", value)
    for name, array in weights.items():
        shape = {"blk.0.attn_k.weight": (128, 256), "blk.0.attn_v.weight": (128, 256)}.get(name)
        if name == "blk.0.ffn_up.weight":
            writer.add_tensor(name, raw, raw_dtype=kinds[dtype])
        else:
            writer.add_tensor(name, array if shape is None else np.resize(array, shape))
    for part in (writer.write_header_to_file, writer.write_kv_data_to_file):
        part()
    writer.write_tensors_to_file()
    writer.close()
    return path, package.quants.dequantize(raw, kinds[dtype]).astype(np.float32)


@pytest.mark.parametrize("dtype", HELD)
def test_a_type_without_a_kernel_is_held_in_the_nearest(dtype: str, tmp_path: Path) -> None:
    path, values = model(dtype, tmp_path / "m.gguf")
    files = open_model(path)
    np.testing.assert_array_equal(
        to_float32(files.tensors.held(Holding(wide=True))[UP]), values
    )  # bit for bit
    held = files.tensors.held(Holding(wide=False))
    assert {number[0] for number in TENSOR_TYPES.values()} >= HELD.keys()
    kind, bound = HELD[dtype]
    tensor = held[UP]
    assert stored_type(UP, held.header(UP), "none") == stored_type(UP, tensor, "none") == kind
    data = RawTensor(tensor.dtype, tensor.shape, tensor.data)
    lost = to_float32(data if tensor.dtype == kind else convert(data, kind)) - values
    relative = float(np.sqrt((lost**2).mean() / (values**2).mean()))
    assert 0 < relative < bound
    note = str(held.error_note())
    assert dtype in note and kind in note and note.count("\n") == 0


def test_all_other_types_keep_every_value() -> None:
    from tidemill.models.blocks.repack import holder

    assert {dtype for dtype in DECODERS if holder(dtype) is None} == HELD.keys()
