"""A model's weights as a TensorMap over mapped files, in types that backends take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tidemill.base.errors import TidemillError, unsupported
from tidemill.loading.places import Float32, OneTensor, Place, held_bytes
from tidemill.loading.selected import Recent, all_nearly, select
from tidemill.models.blocks.repack import NEAR_HOLDERS, Inexact
from tidemill.models.quantization import (
    BLOCK,
    QUANTIZERS,
    convert,
    stays_wide,
    stored_type,
    to_float32,
)
from tidemill.models.sources import Source
from tidemill.models.tensors import DeferredTensor, RawTensor, TensorHeader

_MEASURED_ROWS = 64


@dataclass(frozen=True, slots=True)
class Holding:
    """Storage of weights that no kernel type represents without loss.

    Attributes:
        wide: as float32: when computing in float32, or when the backend expands all weights.
        quantize: otherwise requantized to this type of ``--quantize``. ``none``: to the closest
            type, which is one that rounds only scales (`NEAR_HOLDERS`), else Q8_0, whose steps are
            a tenth of the weights' steps.
    """

    wide: bool = True
    quantize: str = "none"


class LazyTensors(Mapping[str, RawTensor]):
    """A TensorMap over mapped files; a tensor is read when its data is accessed.

    Args:
        places: canonical name -> location.
        holding: see `Holding`.
        recent: cache shared by the places, so that a stored tensor with several parts is unpacked
            once.

    Attributes:
        errors: canonical name -> relative error (root mean square) of each requantized weight,
            measured on some of its rows; filled while data is read.
        rounded: (stored, held) -> number of weights whose scales, or floats, are rounded.
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
        self.rounded: Counter[tuple[str, str]] = Counter()
        for name, place in self.places.items():
            if place.exact == NEAR_HOLDERS.get(place.dtype):
                self.rounded[place.dtype, place.exact] += 1
            elif self.header(name).rounded == "BF16":
                self.rounded[place.dtype, "BF16"] += 1

    @classmethod
    def of_sources(cls, stored: Mapping[str, Place], sources: Mapping[str, Source]) -> LazyTensors:
        """The weights that `sources` (by canonical name) make of the stored ones."""
        # One place per stored weight and one cache: `Recent` compares places by identity.
        recent = Recent()
        places = {name: select(stored[s.stored], s, recent) for name, s in sources.items()}
        return cls(places, recent=recent)

    def held(self, holding: Holding) -> LazyTensors:
        """The same weights with another `Holding`."""
        places = self.places if holding.wide else all_nearly(self.places)
        return LazyTensors(places, holding, self._recent)

    def header(self, name: str) -> TensorHeader:
        """Type, shape and size of `[name]`; data is not read."""
        place = self.places[name]
        asked = self._holding.wide or self._holding.quantize != "none"
        rounded = ""
        if not asked and place.exact == "F32" != place.dtype and len(place.shape) > 1:
            wide = stays_wide(name)
            rounded = "" if wide else "BF16" if place.shape[-1] % BLOCK else "Q8_0"
        size = held_bytes(place.exact, place.shape)
        return TensorHeader(place.exact, place.shape, size, rounded)

    def __getitem__(self, name: str) -> RawTensor:
        return DeferredTensor(
            self.header(name),
            lambda: self._read(name),
            lambda begin, end: self._release(name, begin, end),
        )

    def _release(self, name: str, begin: int, end: int) -> None:
        place = self.places[name]
        if isinstance(place, OneTensor) and place.exact == place.dtype:  # read from the mapped file
            place.stored.file.release_pages(place.stored.offset + begin, end - begin)
        elif end == self.header(name).nbytes:
            for part in place.parts:
                part.file.release_pages(part.offset, part.nbytes)

    def forget(self) -> None:
        """Drop cached intermediates that several weights share. Call it when all weights have been
        read."""
        self._recent.forget()

    def _read(self, name: str) -> RawTensor:
        place = self.places[name]
        try:
            tensor = place.packed()
        except Inexact as error:
            tensor = self._requantized(name, place, str(error))
        dtype = stored_type(name, self.header(name), self._holding.quantize)
        if place.exact == "F32" and place.dtype != "F32" and dtype in QUANTIZERS:
            rows = _some_rows(to_float32(tensor))
            sample = RawTensor("F32", rows.shape, rows.reshape(-1).data.cast("B"))
            self._note(name, rows, to_float32(convert(sample, dtype)))
        return tensor

    def _requantized(self, name: str, place: Place, reason: str) -> RawTensor:
        """The weight with rounded scales, for numbers that do not fit exactly."""
        try:
            tensor = place.packed(rounded=True)
        except Inexact:
            raise _rejection(place, reason) from None
        self._note(name, _some_rows(place.values()), _some_rows(to_float32(tensor)))
        return tensor

    def _note(self, name: str, rows: Float32, held: Float32) -> None:
        """Record the error of `held` compared with `rows`."""
        lost = (held - rows).astype(np.float64)
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
        """The type of most bytes in matrices."""
        bytes_by_type: Counter[str] = Counter()
        for place in self.places.values():
            if len(place.shape) > 1:
                bytes_by_type[place.dtype] += place.nbytes
        return bytes_by_type.most_common(1)[0][0]

    def error_note(self) -> str | None:
        """A line about the error of requantizing so far; None when nothing was requantized."""
        said = []
        if self.errors:
            worst = max(self.errors, key=self.errors.__getitem__)
            mean = sum(self.errors.values()) / len(self.errors)
            said.append(
                f"{len(self.errors)} weights were requantized{self._from()}: relative error "
                f"{mean:.2%} on average, {self.errors[worst]:.2%} in {worst}"
            )
        for (stored, held), count in self.rounded.items():
            what = (
                "values rounded by at most 0.2 %"
                if held == "BF16"
                else ("scales rounded by at most 0.05 %")
            )
            said.append(f"{count} weights in {stored} are held in {held}, their {what}")
        return "; ".join(said) or None

    def _from(self) -> str:
        """Source and target types of an automatic requantization."""
        if self._holding.quantize != "none":
            return ""
        kinds = Counter(self.places[name].dtype for name in self.errors)
        headers = map(self.header, self.errors)
        held = sorted({header.rounded or header.dtype for header in headers})
        return f" from {', '.join(kinds)}, which no kernel multiplies, to {', '.join(held)}"


def _some_rows(values: Float32) -> Float32:
    values = values.reshape(-1, values.shape[-1])
    return values[:: max(1, len(values) // _MEASURED_ROWS)].astype(np.float32)


def _rejection(place: Place, reason: str) -> TidemillError:
    return unsupported(
        place.name,
        f"{place.parts[0].file.path.name}: {place.name} is stored as {place.dtype}, and {reason}: "
        "set --quantize q8_0, which requantizes such weights and reports the error, or "
        "--dtype float32, which keeps their exact values at four bytes each",
    )
