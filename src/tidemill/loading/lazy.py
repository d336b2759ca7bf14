"""A model's weights as a TensorMap over mapped files, in types that backends take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tidemill.base.errors import TidemillError, unsupported
from tidemill.loading.places import OneTensor, Place, held_bytes
from tidemill.loading.recent import Recent
from tidemill.models.blocks.repack import Inexact
from tidemill.models.quantization import (
    QUANTIZERS,
    convert,
    stays_wide,
    stored_type,
    to_float32,
)
from tidemill.models.tensors import DeferredTensor, RawTensor, TensorHeader

_MEASURED_ROWS = 64


@dataclass(frozen=True, slots=True)
class Holding:
    """How weights are held that no type of the kernels holds without loss.

    Attributes:
        wide: as float32, as when computing in float32, or when the backend expands all weights.
        quantize: else requantized to this type, as ``--quantize`` says; ``none`` refuses them.
    """

    wide: bool = True
    quantize: str = "none"


class LazyTensors(Mapping[str, RawTensor]):
    """A TensorMap over mapped files: a tensor is looked at when its data are asked for.

    Args:
        places: canonical name -> place.
        holding: see `Holding`.
        recent: what the places share to unpack once what they are parts of.

    Attributes:
        errors: canonical name -> relative error (root mean square) of each weight that was
            requantized, measured on some of its rows; filled while data are read.
    """

    def __init__(
        self,
        places: Mapping[str, Place],
        holding: Holding = Holding(),
        recent: Recent | None = None,
    ) -> None:
        self.places = dict(places)
        self.errors: dict[str, float] = {}
        self._holding = holding
        self._recent = recent or Recent()

    def held(self, holding: Holding) -> LazyTensors:
        """The same weights, held otherwise.

        Raises:
            TidemillError: UNSUPPORTED naming a weight that would have to be requantized, its
                scheme, and the remedies.
        """
        tensors = LazyTensors(self.places, holding, self._recent)
        if holding.wide:
            return tensors
        for name, place in self.places.items():
            header = tensors.header(name)
            expanded = header.dtype == "F32" and place.dtype != "F32" and len(place.shape) > 1
            if (
                expanded
                and not stays_wide(name)
                and stored_type(name, header, holding.quantize) == "F32"
            ):
                raise _refusal(place, f"no kernel multiplies {place.dtype} without loss")
        return tensors

    def header(self, name: str) -> TensorHeader:
        """Type, shape and size of what `[name]` gives; no data is touched."""
        place = self.places[name]
        return TensorHeader(place.exact, place.shape, held_bytes(place.exact, place.shape))

    def __getitem__(self, name: str) -> RawTensor:
        return DeferredTensor(
            self.header(name),
            lambda: self._read(name),
            lambda begin, end: self._release(name, begin, end),
        )

    def _release(self, name: str, begin: int, end: int) -> None:
        place = self.places[name]
        if isinstance(place, OneTensor) and place.exact == place.dtype:  # read where they lie
            place.stored.file.let_go(place.stored.offset + begin, end - begin)
        elif end == self.header(name).nbytes:
            for part in place.parts:
                part.file.let_go(part.offset, part.nbytes)

    def forget(self) -> None:
        """Hold nothing that was made for several weights; told when all have been taken over."""
        self._recent.forget()

    def _read(self, name: str) -> RawTensor:
        place = self.places[name]
        try:
            tensor = place.packed()
        except Inexact as error:
            tensor = self._requantized(name, place, str(error))
        if place.exact == "F32" and place.dtype != "F32":
            self._measure(name, tensor, stored_type(name, tensor, self._holding.quantize))
        return tensor

    def _requantized(self, name: str, place: Place, reason: str) -> RawTensor:
        if self._holding.quantize == "none" or place.exact not in QUANTIZERS:
            raise _refusal(place, reason)
        values = np.ascontiguousarray(place.values())
        tensor = RawTensor("F32", place.shape, values.reshape(-1).data.cast("B"))
        self._measure(name, tensor, place.exact)
        return convert(tensor, place.exact)

    def _measure(self, name: str, tensor: RawTensor, dtype: str) -> None:
        """Note what requantizing float32 values to `dtype` loses."""
        if dtype not in QUANTIZERS:
            return
        values = to_float32(tensor).reshape(-1, tensor.shape[-1])
        rows = values[:: max(1, len(values) // _MEASURED_ROWS)].astype(np.float32)
        sample = RawTensor("F32", rows.shape, rows.reshape(-1).data.cast("B"))
        lost = (to_float32(convert(sample, dtype)) - rows).astype(np.float64)
        size = float(np.sqrt(np.mean(rows.astype(np.float64) ** 2)))
        self.errors[name] = float(np.sqrt(np.mean(lost**2))) / size if size else 0.0

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, name: object) -> bool:
        return name in self.places

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(place.nbytes for place in self.places.values())

    def prevailing_dtype(self) -> str:
        """The type most bytes of matrices have."""
        bytes_by_type: Counter[str] = Counter()
        for place in self.places.values():
            if len(place.shape) > 1:
                bytes_by_type[place.dtype] += place.nbytes
        return bytes_by_type.most_common(1)[0][0]

    def error_note(self) -> str | None:
        """A line about what requantizing lost so far; None when nothing was requantized."""
        if not self.errors:
            return None
        worst = max(self.errors, key=self.errors.__getitem__)
        mean = sum(self.errors.values()) / len(self.errors)
        return (
            f"{len(self.errors)} weights were requantized: relative error {mean:.2%} on average, "
            f"{self.errors[worst]:.2%} in {worst}"
        )


def _refusal(place: Place, reason: str) -> TidemillError:
    return unsupported(
        place.name,
        f"{place.parts[0].file.path.name}: {place.name} is stored as {place.dtype}, and {reason}: "
        "give --quantize q8_0, which requantizes such weights and says what that loses, or "
        "--dtype float32, which keeps their exact values at four bytes each",
    )
