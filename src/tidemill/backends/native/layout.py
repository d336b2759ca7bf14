"""How a model's tensors lie in memory: which are packed, as what, and how large they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from tidemill.backends.base import BackendOptions, HeldTensor
from tidemill.backends.native import _core
from tidemill.models import tensors as names
from tidemill.models.quantization import stays_wide, stored_type
from tidemill.models.spec import DecoderSpec
from tidemill.models.tensors import ROW_HEADS, RawTensor, TensorHeader

# Codes of csrc/kernels/kernels.h.
WEIGHT_TYPES = {
    "F32": 0, "F16": 1, "BF16": 2, "Q8_0": 3, "Q4_0": 4, "Q4_K": 5, "Q5_K": 6, "Q6_K": 7,
    "INT8": 8, "MXFP4": 9, "IQ4_NL": 10, "Q4_1": 11, "Q5_0": 12, "Q5_1": 13,
}  # fmt: skip

# Embeddings, of which a step reads a few rows.
ROW_TABLES = (names.EMBED, names.LAYER_INPUTS)

Tensors = Mapping[str, RawTensor] | Mapping[str, TensorHeader]
MatrixBytes = Callable[[int, int, int], int]


def packed_type(name: str, tensor: RawTensor | TensorHeader, options: BackendOptions) -> str:
    """Type a matrix is packed as.

    When computing in bfloat16, float32 matrices become bfloat16 (except those of `stays_wide`). F16
    stays F16, because its products are computed in float32 in either case. When computing in
    float32, BF16 stays BF16 for the same reason.
    """
    stored = stored_type(name, tensor, options.quantize)
    narrowed = stored == "F32" and options.dtype == "bfloat16" and not stays_wide(name)
    return "BF16" if narrowed else stored


def read_in_file(
    name: str, tensor: RawTensor | TensorHeader, spec: DecoderSpec, quantize: str
) -> bool:
    """True for an embedding whose rows are read from the file's own bytes."""
    same = stored_type(name, tensor, quantize) == tensor.dtype
    # A tied matrix is also the output projection, so it is packed.
    rows = name in ROW_TABLES and not (name == names.EMBED and spec.tied_embeddings)
    return rows and same and tensor.dtype not in ROW_HEADS


def packed_matrices(
    tensors: Tensors, spec: DecoderSpec, options: BackendOptions, matrix_bytes: MatrixBytes
) -> Iterator[tuple[str, str, int]]:
    """(name, type, bytes) of every matrix that is packed.

    Args:
        tensors: canonical name -> tensor.
        spec: the model.
        options: the backend's.
        matrix_bytes: `Executor.matrix_bytes` of the core.
    """
    for name, tensor in tensors.items():
        if len(tensor.shape) == 2 and not read_in_file(name, tensor, spec, options.quantize):
            target = packed_type(name, tensor, options)
            yield name, target, matrix_bytes(WEIGHT_TYPES[target], *tensor.shape)


def held_tensors(
    spec: DecoderSpec, tensors: Mapping[str, TensorHeader], options: BackendOptions
) -> dict[str, HeldTensor]:
    """See backends.base.HeldTensors."""
    core = _core.Executor(1, options.isa or "", options.dtype == "float32")
    # Experts are many matrices of few shapes.
    packed = packed_matrices(tensors, spec, options, cache(core.matrix_bytes))
    held = {name: HeldTensor(nbytes) for name, _, nbytes in packed}
    for name, tensor in tensors.items():
        if len(tensor.shape) == 1:
            panels = -(-tensor.shape[0] // _core.PANEL_ROWS)
            held[name] = HeldTensor(4 * _core.PANEL_ROWS * panels)
        elif name not in held:
            held[name] = HeldTensor(tensor.nbytes, in_file=True)
    core.close()
    return held
