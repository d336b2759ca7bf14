"""The tensors of a model quantized with a calibration text, in the form of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import unsupported
from tidemill.convert.calibrate.model import Arrays, Quantizer
from tidemill.convert.output import Buffer, OutTensor, copied, narrowed
from tidemill.loading.parts import ModelFiles
from tidemill.loading.places import Place
from tidemill.loading.selected import Selected
from tidemill.models.quantization import FLOAT_TYPES

_TYPES = {"int32": "I32", "float16": "F16", "float32": "F32"}


def stored_name(place: Place) -> str:
    """The tensor's stored name; UNSUPPORTED when our tensor is not exactly one of the folder's
    tensors."""
    changed = isinstance(place, Selected) and (
        place.source.rows is not None or place.source.transposed or place.source.expert is not None
    )
    if changed or not set(part.dtype for part in place.parts) <= set(FLOAT_TYPES):
        raise unsupported(
            place.name,
            f"{place.name} is stored fused, transposed, in another order than it is computed with "
            "or quantized: such folders are not quantized with a calibration text",
        )
    return place.name


def calibrated_tensors(files: ModelFiles, quantizer: Quantizer) -> list[OutTensor]:
    """All tensors of the folder; `quantizer` must have run."""
    out: list[OutTensor] = []
    finished: dict[int, Arrays] = {}
    for canonical, place in files.tensors.places.items():
        name = stored_name(place)
        parts = canonical.split(".")
        if parts[0] != "layers":
            out.append(copied(name, place.parts[0]))
            continue
        index, rest = int(parts[1]), canonical.split(".", 2)[2]
        if index not in finished:
            finished = {index: quantizer.layer(index)}
        arrays, stem = finished[index], rest.removesuffix(".weight")
        endings = {k.removeprefix(stem): v for k, v in arrays.items() if k.startswith(stem + ".q")}
        if endings and rest.endswith(".weight"):
            endings |= {e: arrays[stem + e] for e in (".scales", ".g_idx") if stem + e in arrays}
            for ending, array in endings.items():
                full = f"{stem}{ending}"
                out.append(_array(name.removesuffix(".weight") + ending, array, quantizer, index,
                                  full))  # fmt: skip
        elif rest in arrays:
            out.append(_changed(name, place, quantizer, index, rest))
        else:
            out.append(copied(name, place.parts[0]))
    out += [copied(name, place.parts[0]) for name, place in files.head_tensors.items()]
    return out


def _array(name: str, array: NDArray[Any], quantizer: Quantizer, index: int, key: str) -> OutTensor:
    def pieces() -> Iterator[Buffer]:
        yield np.ascontiguousarray(quantizer.layer(index)[key]).reshape(-1).view(np.uint8).data

    return OutTensor(name, _TYPES[array.dtype.name], array.shape, array.nbytes, pieces)


def _changed(name: str, place: Place, quantizer: Quantizer, index: int, key: str) -> OutTensor:
    """A changed tensor in its stored type."""
    stored = place.parts[0]
    added = np.float32(place.source.plus if isinstance(place, Selected) else 0.0)

    def pieces() -> Iterator[Buffer]:
        values = quantizer.layer(index)[key].reshape(-1) - added
        yield narrowed(values, stored.dtype).view(np.uint8).data

    return OutTensor(name, stored.dtype, stored.shape, stored.nbytes, pieces)
