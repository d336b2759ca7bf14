"""Weights whose numbers in a GGUF file differ from ours: decays, and tensors with a multiplier."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tidemill.base.errors import unsupported
from tidemill.loading.mapped import StoredTensor
from tidemill.loading.parts import ModelFiles
from tidemill.loading.places import Float32, Place
from tidemill.models import tensors as names
from tidemill.models.dense import Family
from tidemill.models.gguf_family import Factors
from tidemill.models.spec import DecoderSpec
from tidemill.models.tensors import RawTensor


@dataclass(frozen=True, slots=True)
class Computed:
    """A `Place` whose values are computed from another's in float32."""

    place: Place
    change: Callable[[Float32], Float32] = field(repr=False)

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def dtype(self) -> str:
        return "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.place.shape

    @property
    def nbytes(self) -> int:
        return 4 * math.prod(self.shape)

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        return self.place.parts

    @property
    def exact(self) -> str:
        """See `Place`."""
        return "F32"

    def values(self) -> Float32:
        """See `Place`."""
        return self.change(self.place.values())

    def packed(self, rounded: bool = False) -> RawTensor:
        """See `Place`."""
        return RawTensor("F32", self.shape, self.values().reshape(-1).data.cast("B"))


def as_written(
    canonical: str, place: Place, family: Family, factors: Mapping[str, Factors]
) -> Place:
    """A tensor with the numbers that the family's files contain.

    Args:
        factors: see `folded_factors`.
    """
    assert family.gguf is not None
    if family.gguf.stored.decays and canonical.endswith(".rec.a_log"):
        return Computed(place, _decay)
    found = factors.get(_in_layer(canonical), ())
    if all(np.all(factor == 1.0) for factor in found):
        return place
    return Computed(place, lambda values: _times(values, found))


def _in_layer(canonical: str) -> str:
    return canonical.split(".", 2)[2] if canonical.startswith("layers.") else canonical


def _decay(values: Float32) -> Float32:
    return (-np.exp(values.astype(np.float64))).astype(np.float32)


def _times(values: Float32, factors: Factors) -> Float32:
    for factor in factors:
        rows = np.asarray(factor, np.float32)
        values = values * (rows.reshape(-1, *[1] * (values.ndim - 1)) if rows.ndim else rows)
    return values


def folded_factors(files: ModelFiles, family: Family) -> dict[str, Factors]:
    """Canonical name (of layers without ``layers.N.``) -> factors of the file's tensor.

    Raises:
        TidemillError: UNSUPPORTED when embedding and output projection are one tensor that needs
            two different factors.
    """
    assert family.gguf is not None
    if family.gguf.folding is None:
        return {}
    factors = family.gguf.folding.factors(files.config, files.spec)
    if files.spec.tied_embeddings and factors.get(names.EMBED) != factors.get(names.LM_HEAD):
        raise unsupported(
            "out",
            "the embedding is the output projection too, and its multipliers differ: GGUF files of "
            f"{family.name} models have multipliers in their tensors alone; give a folder as OUT",
        )
    return factors


def folded_spec(files: ModelFiles, family: Family) -> DecoderSpec:
    """The decoder that a file describes: the model's, without the multipliers folded into its
    tensors."""
    assert family.gguf is not None
    folding = family.gguf.folding
    if folding is None:
        return files.spec
    return family.spec({k: v for k, v in files.config.items() if k not in folding.keys})
