"""A weight that is part of a stored tensor: rows of a fused tensor, an expert, a transposed
matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import model_file_error
from tidemill.loading.mapped import StoredTensor
from tidemill.loading.places import Float32, OneTensor, Place, Stack, held_bytes
from tidemill.models.blocks.repack import NEAR_HOLDERS
from tidemill.models.quantization import FLOAT_TYPES
from tidemill.models.sources import Source
from tidemill.models.tensors import RawTensor

T = TypeVar("T")


class Recent:
    """Caches one result until the next one or `forget`, so that consecutive reads of parts of one
    tensor unpack it once."""

    def __init__(self) -> None:
        self._last: tuple[object, Callable[..., Any], Any] | None = None

    def get(self, owner: object, make: Callable[..., T]) -> T:
        """The result of `make(owner)`, cached when the last call had the same arguments.

        Args:
            owner: compared by identity.
            make: an unbound function, compared by identity.
        """
        last = self._last
        if last is not None and last[0] is owner and last[1] is make:
            found: T = last[2]
            return found
        self._last = last = None  # never hold the old and the new result at once
        made = make(owner)
        self._last = (owner, make, made)
        return made

    def forget(self) -> None:
        """Drop the cached result."""
        self._last = None


@dataclass(frozen=True, slots=True)
class Selected:
    """A `Place` seen through a `Source`. Whole rows are moved, so quantized rows keep their bytes.
    A quantized matrix whose axes are exchanged is held as float32.

    Attributes:
        recent: cache shared by all parts of one place, which is unpacked once for consecutive
            reads.
    """

    place: Place
    source: Source
    recent: Recent = field(default_factory=Recent, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def dtype(self) -> str:
        return self.place.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape(self.place.shape)

    @property
    def nbytes(self) -> int:
        """As stored: its share of the whole tensor."""
        return self.place.nbytes * math.prod(self.shape) // math.prod(self.place.shape)

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        return self.place.parts

    @property
    def exact(self) -> str:
        """See `Place`."""
        exact = self.place.exact
        exchanged = self.source.transposed or self.source.turned
        if self.source.computed or (exchanged and exact not in FLOAT_TYPES):
            return "F32"
        return exact

    def values(self) -> Float32:
        """See `Place`."""
        source, values = self.source, self.recent.get(self.place, _values)
        if source.expert is not None:
            values = values[source.expert]
        if source.transposed:
            values = values.T
        if source.flat:
            values = values.reshape(-1)
        if source.rows is not None:
            values = values[source.rows]
        if source.turned:
            values = values.T
        if source.decay:
            return self._logarithms(values)
        return np.ascontiguousarray(values + np.float32(source.plus))

    def _logarithms(self, values: Float32) -> Float32:
        """a_log of the stored -exp(a_log)."""
        if not (values < 0).all() or not np.isfinite(values).all():
            raise model_file_error(
                f"tensor {self.name!r} must hold numbers below 0 alone", param=self.name
            )
        return np.log(-values.astype(np.float64)).astype(np.float32)

    def packed(self, rounded: bool = False) -> RawTensor:
        """See `Place`."""
        source, exact, shape = self.source, self.exact, self.shape
        if source.computed or exact != self.place.exact:
            return RawTensor("F32", shape, self.values().reshape(-1).data.cast("B"))
        raw = np.frombuffer(
            self.recent.get(self.place, _rounded if rounded else _packed).data, np.uint8
        )
        stored = self.place.shape
        if source.expert is not None:
            size = raw.size // stored[0]
            raw = raw[source.expert * size : (source.expert + 1) * size]
            stored = stored[1:]
        if source.transposed:
            raw = _exchanged(raw, stored, exact)
            stored = stored[::-1]
        if source.flat:
            stored = (math.prod(stored),)
        if source.rows is not None:
            raw = np.ascontiguousarray(raw.reshape(stored[0], -1)[source.rows]).reshape(-1)
        if source.turned:
            raw = _exchanged(raw, shape[::-1], exact)
        return RawTensor(exact, shape, raw.data.cast("B"))


def _values(place: Place) -> Float32:
    return place.values()


def _packed(place: Place) -> RawTensor:
    return place.packed()


def _rounded(place: Place) -> RawTensor:
    return place.packed(rounded=True)


def _exchanged(raw: NDArray[np.uint8], shape: tuple[int, ...], dtype: str) -> NDArray[np.uint8]:
    """Bytes of a float matrix of this shape with exchanged axes."""
    item = held_bytes(dtype, (1,))
    return np.ascontiguousarray(raw.reshape(*shape, item).swapaxes(0, 1)).reshape(-1)


def all_nearly(places: Mapping[str, Place]) -> dict[str, Place]:
    """The same weights, each in a type that rounds only scales if one exists."""
    # Parts of one tensor must share the new place: `Recent` compares by identity.
    made: dict[int, OneTensor] = {}

    def nearly(place: Place) -> Place:
        if isinstance(place, Selected):
            return replace(place, place=nearly(place.place))
        if isinstance(place, OneTensor) and place.dtype in NEAR_HOLDERS:
            return made.setdefault(id(place), replace(place, nearly=True))
        return place

    return {name: nearly(place) for name, place in places.items()}


def select(place: Place, source: Source, recent: Recent) -> Place:
    """The place itself when the source is the whole tensor; for a stack, the selected matrix."""
    if source.expert is not None and isinstance(place, Stack):
        place, source = place.member(source.expert), replace(source, expert=None)
    return place if source.plain else Selected(place, source, recent)
