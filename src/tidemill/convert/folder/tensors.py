"""The tensors of a folder written from a folder, and their types."""

from __future__ import annotations

from tidemill.base.errors import TidemillError, unsupported
from tidemill.convert.folder.integers import IntegerType, as_integers
from tidemill.convert.output import Loss, OutTensor, copied
from tidemill.loading.parts import ModelFiles
from tidemill.loading.places import OneTensor, Place
from tidemill.loading.selected import Selected
from tidemill.models.quantization import FLOAT_TYPES

_SMALL = ("F8_E4M3", "F8_E5M2")


def to_folder(
    files: ModelFiles, kind: IntegerType | None, loss: Loss
) -> tuple[list[OutTensor], list[str]]:
    """The tensors of a Hugging Face folder under their stored names with integer matrices in the
    layers, and the modules excluded from quantization (those of a head and a vision part as well).

    Raises:
        TidemillError: UNSUPPORTED for weights whose type safetensors lacks.
    """
    out: list[OutTensor] = []
    left: list[str] = []
    bf16 = files.tensors.prevailing_dtype() != "F16"
    for canonical, place in files.tensors.places.items():
        if isinstance(place, Selected):
            raise unsupported(
                place.name,
                f"{place.name} is stored fused, transposed or in another order than it is computed "
                f"with: folders of {files.spec.family} models are not written",
            )
        matrix = canonical.startswith("layers.") and canonical.endswith(".weight")
        if kind is not None and matrix and len(place.shape) == 2:
            if kind.fits(place.shape):
                out += as_integers(place, place.name, kind, bf16, loss)
                continue
            left.append(place.name.removesuffix(".weight"))
        out.append(_as_it_is(place))
    for name, place in files.head_tensors.items():
        out.append(_as_it_is(place))
        if len(place.shape) > 1:
            left.append(name.removesuffix(".weight"))
    for name, stored in files.other_parts.items():
        out.append(copied(name, stored))
        if len(stored.shape) > 1:
            left.append(name.removesuffix(".weight"))
    return out, left


def _as_it_is(place: Place) -> OutTensor:
    if not isinstance(place, OneTensor) or place.dtype not in (*FLOAT_TYPES, *_SMALL):
        raise _not_plain(place)
    return copied(place.name, place.stored)


def _not_plain(place: Place) -> TidemillError:
    return unsupported(
        place.name,
        f"{place.name} is stored as {place.dtype}: a folder of safetensors is written from float "
        "weights alone; give a name that ends in .gguf as OUT",
    )
