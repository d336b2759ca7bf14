"""The tensors of a written GGUF file, and their types."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import unsupported
from tidemill.convert.gguf.names import GgufTensor, layout, row_order
from tidemill.convert.gguf.shape import gguf_family, rope_tensors
from tidemill.convert.gguf.values import as_written, folded_factors
from tidemill.convert.output import Buffer, Loss, OutTensor, as_type, copied
from tidemill.loading.formats.gguf import GgufFile
from tidemill.loading.parts import ModelFiles
from tidemill.loading.places import OneTensor, Place, held_bytes, one_tensor
from tidemill.loading.schemes.base import SchemeWeight
from tidemill.loading.selected import Selected
from tidemill.models.blocks.repack import Inexact
from tidemill.models.quantization import FLOAT_TYPES
from tidemill.models.sources import Source
from tidemill.models.tensors import DTYPE_BLOCKS

# --type -> (type of matrices, type of the embedding and the output projection).
GGUF_TYPES = {
    "q8_0": ("Q8_0", "Q8_0"),
    "q4_0": ("Q4_0", "Q8_0"),
    "q4_k": ("Q4_K", "Q6_K"),
    "q6_k": ("Q6_K", "Q6_K"),
}
_ENDS = re.compile(r"(token_embd|output)\.weight")
# Small and sensitive: routers, convolutions, positions, norms.
_KEPT = re.compile(r".*(norm|ffn_gate_inp|conv1d|ssm_(?!in\.|out\.)|rope_|position_|token_types).*")
# Vectors stored as matrices.
_VECTORS = re.compile(r".*\.ssm_(a|d|norm\.weight|conv1d\.weight)")


def gguf_type(name: str, shape: tuple[int, ...], dtype: str, kind: str | None) -> str:
    """Type of a tensor in a written GGUF file.

    Args:
        name: as stored in GGUF.
        dtype: of the source.
        kind: a key of `GGUF_TYPES`; None keeps types.
    """
    if len(shape) < 2 or name.endswith(".bias") or _VECTORS.fullmatch(name):
        return "F32" if dtype in FLOAT_TYPES else dtype
    if kind is None or not name.endswith(".weight") or _KEPT.fullmatch(name):
        return dtype
    wanted = GGUF_TYPES[kind][1 if _ENDS.fullmatch(name) else 0]
    for target in (wanted, "Q8_0"):
        if shape[-1] % DTYPE_BLOCKS[target][1] == 0:
            return target
    return dtype


def from_gguf(file: GgufFile, kind: str | None, loss: Loss) -> Iterator[OutTensor]:
    """The tensors of a GGUF file (split experts stacked), requantized."""
    for name, stored in file.tensors.items():
        dtype = gguf_type(name, stored.shape, stored.dtype, kind)
        if dtype == stored.dtype:
            yield copied(name, stored)
        else:
            yield as_type(one_tensor(stored), name, dtype, loss)


def to_gguf(files: ModelFiles, kind: str | None, loss: Loss) -> Iterator[OutTensor]:
    """The tensors of a Hugging Face folder under GGUF's names, in its row order."""
    family = gguf_family(files)
    multipliers = folded_factors(files, family)
    assert family.gguf is not None
    for name, factors in rope_tensors(files.spec, full=family.gguf.full_factors).items():
        raw = factors.tobytes()
        yield OutTensor(name, "F32", factors.shape, len(raw), partial(iter, [raw]))
    for tensor in layout(files.spec, family):
        places = []
        for part in tensor.parts:
            place = _in_blocks(files.tensors.places[part])
            if part.endswith(_COLUMNS):
                place = _with_columns(place, row_order(files.spec, family, part))
            places.append(as_written(part, place, family, multipliers))
        dtype = _gguf_dtype(tensor, places, kind)
        pieces = []
        for part, place in zip(tensor.parts, places, strict=True):
            order = None if part.endswith(_COLUMNS) else row_order(files.spec, family, part)
            pieces.append(_reordered(_one(place, tensor.name, dtype, loss), order))
        yield _reordered(joined(tensor.name, dtype, tensor.shape, pieces), tensor.order)


# Its order applies to columns, which are a recurrent mixer's values.
_COLUMNS = ".rec.out.weight"


def _with_columns(place: Place, order: NDArray[np.int64] | None) -> Place:
    if order is None:
        return place
    return Selected(place, Source(place.name, transposed=True, rows=order, turned=True))


def _in_blocks(place: Place) -> Place:
    """INT8 is not a GGUF type; blocks of Q8_0 hold its weights, without its activation
    quantization."""
    if place.exact != "INT8":
        return place
    if isinstance(place, Selected):
        return dataclasses.replace(place, place=_in_blocks(place.place))
    assert isinstance(place, SchemeWeight)
    return dataclasses.replace(place, exact="F32" if place.shape[-1] % 32 else "Q8_0")


def _gguf_dtype(tensor: GgufTensor, places: list[Place], kind: str | None) -> str:
    """One type for all parts of a tensor."""
    sources = {p.dtype if isinstance(p, OneTensor) else p.exact for p in places}
    exact = {p.exact for p in places}
    source = sources.pop() if len(sources) == 1 else "F32"
    dtype = gguf_type(tensor.name, tensor.shape, source, kind)
    if dtype not in DTYPE_BLOCKS:
        dtype = exact.pop() if len(exact) == 1 else "F32"
    if dtype == "F32" and source not in FLOAT_TYPES and len(tensor.shape) > 1:
        raise unsupported(
            places[0].name,
            f"{places[0].name} is stored as {places[0].dtype}, which no type of GGUF holds without "
            "loss: use `tidemill quantize` with a --type",
        )
    return dtype


def _one(place: Place, name: str, dtype: str, loss: Loss) -> OutTensor:
    if isinstance(place, OneTensor) or dtype != place.exact:
        return as_type(place, name, dtype, loss)

    def pieces() -> Iterator[Buffer]:
        try:
            yield place.packed().data
        except Inexact as error:
            raise unsupported(
                place.name,
                f"{place.name} is stored as {place.dtype}, and {error}, which {dtype} needs: use "
                "`tidemill quantize` with a --type",
            ) from error

    return OutTensor(name, dtype, place.shape, held_bytes(dtype, place.shape), pieces)


def _reordered(tensor: OutTensor, order: NDArray[np.int64] | None) -> OutTensor:
    """Whole rows in another order; the tensor is created at once."""
    if order is None:
        return tensor

    def pieces() -> Iterator[Buffer]:
        rows = np.frombuffer(b"".join(bytes(p) for p in tensor.pieces()), np.uint8)
        moved = np.ascontiguousarray(rows.reshape(tensor.shape[0], -1)[order])
        yield moved.reshape(-1).data

    return OutTensor(tensor.name, tensor.dtype, tensor.shape, tensor.nbytes, pieces)


def joined(name: str, dtype: str, shape: tuple[int, ...], parts: list[OutTensor]) -> OutTensor:
    """Tensors concatenated to one."""

    def pieces() -> Iterator[Buffer]:
        for part in parts:
            yield from part.pieces()

    return OutTensor(name, dtype, shape, sum(part.nbytes for part in parts), pieces)
