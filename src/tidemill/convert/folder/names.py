"""A model's tensors in the names, shapes and orders of its family's Hugging Face checkpoints: the
inverse of reading them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import unsupported
from tidemill.convert.gguf.names import stored_name, tiled_rows, usual_name, whole_shape
from tidemill.convert.output import Bits, Buffer, OutTensor, narrowed
from tidemill.loading.lazy import LazyTensors
from tidemill.loading.places import Place, held_bytes
from tidemill.models.dense import Family
from tidemill.models.layers import Recurrent
from tidemill.models.naming import match_tensors
from tidemill.models.quantization import FLOAT_TYPES, to_float32
from tidemill.models.sources import Source
from tidemill.models.spec import DecoderSpec
from tidemill.models.tensors import RawTensor

_REC = re.compile(r"layers\.(\d+)\.rec\.([a-z_]+)(\.weight|\.bias|)")
_ITEMS: dict[str, type[np.unsignedinteger[Any]]] = {
    "F32": np.uint32, "F16": np.uint16, "BF16": np.uint16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the model's tensors, and its location in a folder's tensor.

    Attributes:
        order: rows of the folder's tensor that it holds, in its order; None for all, in order.
        columns: `order` refers to columns.
    """

    source: Source
    place: Place
    order: NDArray[np.int64] | None
    columns: bool


def folder_tensors(
    spec: DecoderSpec, family: Family, tensors: LazyTensors, dequantized_type: str | None = None
) -> list[OutTensor]:
    """The checkpoint's tensors, without loss.

    A float32 vector becomes the type of most matrices when that type represents all its values,
    because GGUF stores all vectors as float32.

    Args:
        dequantized_type: the float type to dequantize weights to; None rejects quantized weights.

    Raises:
        TidemillError: UNSUPPORTED naming a quantized weight, or one without a name in the family's
            checkpoints.
    """
    if family.stored.position_offset:
        raise unsupported("out", f"folders of {family.name} models are not written from GGUF")
    sources = match_tensors(spec, family.rules, _shapes(spec, family), family.stored)
    by_name: dict[str, list[_Part]] = defaultdict(list)
    for canonical, source in sources.items():
        order, columns = _turns(spec, canonical)
        by_name[source.stored].append(_Part(source, tensors.places[canonical], order, columns))
    prevailing = _prevailing(tensors, dequantized_type)
    shapes = _shapes(spec, family)
    return [
        _whole(name, shapes[name], parts, prevailing, dequantized_type)
        for name, parts in by_name.items()
    ]


def _of_mixer(spec: DecoderSpec, canonical: str) -> tuple[Recurrent, str, str] | None:
    """The recurrent mixer of a tensor, its part of the mixer, and the name's ending, if any."""
    match = _REC.fullmatch(canonical)
    mixer = None if match is None else spec.layers[int(match[1])].recurrent
    return None if match is None or mixer is None else (mixer, match[2], match[3])


def _turns(spec: DecoderSpec, canonical: str) -> tuple[NDArray[np.int64] | None, bool]:
    """`_Part.order` and `columns` of a tensor with interleaved value heads."""
    found = _of_mixer(spec, canonical)
    if found is None or not found[0].tiled:
        return None, False
    mixer, part, _ = found
    return tiled_rows(replace(mixer, tiled=False), part), part == "out"


def _unfolded(spec: DecoderSpec, canonical: str, ours: tuple[int, ...]) -> tuple[int, ...] | None:
    """Shape of a recurrent mixer's vectors in folders; None: as in GGUF files."""
    found = _of_mixer(spec, canonical)
    if found is None or found[1] not in ("conv", "a_log", "skip", "norm"):
        return None
    mixer, part, ending = found
    if part == "conv" and ending == ".weight":
        return (ours[0] // mixer.conv_kernel, 1, mixer.conv_kernel)
    return ours


def _prevailing(tensors: LazyTensors, dequantized_type: str | None) -> str:
    found = tensors.prevailing_dtype()
    return found if found in FLOAT_TYPES else dequantized_type or "F32"


def _shapes(spec: DecoderSpec, family: Family) -> dict[str, tuple[int, ...]]:
    expected = spec.expected_tensors()
    found: dict[str, tuple[int, ...]] = {}
    for canonical in expected:
        stored = stored_name(family.rules, canonical, expected, anyhow=True)
        if stored is None:
            raise unsupported("out", f"{canonical} has no name in {family.name} checkpoints")
        name, held = stored
        name = usual_name(family, name, expected)
        if name in found:
            continue
        shape, _ = whole_shape(spec, canonical, held, expected)
        shape = _unfolded(spec, canonical, expected[canonical]) or shape
        turned = held.transposed and canonical.endswith(".weight")
        if turned and len(shape) > 1:
            shape = (*shape[:-2], shape[-1], shape[-2])
        found[name] = shape
    return found


def _whole(
    name: str,
    shape: tuple[int, ...],
    parts: list[_Part],
    prevailing: str,
    dequantized_type: str | None,
) -> OutTensor:
    quantized = next((p.place for p in parts if p.place.dtype not in FLOAT_TYPES), None)
    if quantized is not None and dequantized_type is None:
        raise unsupported(
            quantized.name,
            f"{quantized.name} is stored as {quantized.dtype}: a folder holds float weights; give "
            "--dequantize f32 (exact), bf16 or f16 to write them so, or a name that ends in .gguf "
            "as OUT",
        )
    types = {part.place.dtype for part in parts}
    if quantized is not None:
        assert dequantized_type is not None
        dtype = dequantized_type
    elif len(types) > 1:
        dtype = "F32"
    else:
        dtype = types.pop()
        if dtype == "F32" and len(shape) < 2 and _fits(parts, prevailing):
            dtype = prevailing
    pieces = partial(_pieces, shape, parts, dtype)
    return OutTensor(name, dtype, shape, held_bytes(dtype, shape), pieces)


def _fits(parts: list[_Part], dtype: str) -> bool:
    """Whether a narrower type represents all values of float32 vectors."""
    for part in parts:
        values = part.place.values() - np.float32(part.source.plus)
        raw = RawTensor(dtype, values.shape, memoryview(narrowed(values, dtype).tobytes()))
        if not np.array_equal(to_float32(raw), values):
            return False
    return True


def _pieces(shape: tuple[int, ...], parts: list[_Part], dtype: str) -> Iterator[Buffer]:
    whole = np.zeros(shape, _ITEMS[dtype])
    for part in parts:
        bits = _bits(part.place, part.source.plus, dtype)
        if part.order is not None:
            back = np.argsort(part.order)
            bits = bits[:, back] if part.columns else bits[back]
        put(whole, part.source, bits)
    yield whole.reshape(-1).view(np.uint8).data


def _bits(place: Place, plus: float, dtype: str) -> Bits:
    if place.dtype == dtype and not plus:
        raw: Bits = np.frombuffer(place.packed().data, _ITEMS[dtype]).reshape(place.shape)
        return raw
    return narrowed(place.values() - np.float32(plus), dtype)


def put(whole: NDArray[Any], source: Source, value: NDArray[Any]) -> None:
    """Write a tensor to the location that `Source` reads."""
    view = whole if source.expert is None else whole[source.expert]
    if source.transposed:
        view = view.T
    if source.flat:
        view = view.reshape(-1)
    if source.turned:
        value = value.T
    view[slice(None) if source.rows is None else source.rows] = value
