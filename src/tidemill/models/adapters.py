"""Adapters as data: low-rank changes of a base model's tensors, by canonical name.

LoRA (Hu et al. 2021): W' = W + scale * B A. DoRA (Liu et al. 2024): W' = m * (W + scale * B A) / n,
n being the norm of each row of (W + scale * B A).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tidemill.models import tensors as names
from tidemill.models.spec import DecoderSpec

Float32 = NDArray[np.float32]

MAX_RANK = 1024


@dataclass(frozen=True, slots=True)
class LoraTensor:
    """The change of one matrix, in the orientation and row order of the canonical tensor.

    Attributes:
        target: canonical name of the matrix, [out, in].
        a: [rank, in].
        b: [out, rank].
        scale: of the product.
        magnitude: of DoRA; None without it.
        norm_axis: axis over which DoRA takes the norm: 1, a magnitude per row; 0, one per column.
    """

    target: str
    a: Float32
    b: Float32
    scale: float
    magnitude: Float32 | None = None
    norm_axis: int = 1

    @property
    def rank(self) -> int:
        """Inner dimension of the product."""
        return len(self.a)

    def applied(self, weight: Float32) -> Float32:
        """The changed matrix; `weight` is float32 [out, in] and is kept."""
        changed = weight + (self.b @ self.a) * np.float32(self.scale)
        if self.magnitude is None:
            return np.asarray(changed, np.float32)
        norm = np.linalg.norm(changed, axis=self.norm_axis)
        factor = _factor(self.magnitude, norm)
        return np.asarray(changed * np.expand_dims(factor, self.norm_axis), np.float32)

    def product(self, weight: Callable[[], Float32]) -> Product:
        """The change of the matrix's product; `weight` gives the base's matrix, which DoRA alone
        needs."""
        if self.magnitude is None:
            return Product(self.a, self.b, self.scale)
        changed = weight() + (self.b @ self.a) * np.float32(self.scale)
        factor = _factor(self.magnitude, np.linalg.norm(changed, axis=self.norm_axis))
        gains = (factor, None) if self.norm_axis == 1 else (None, factor)
        return Product(self.a, self.b, self.scale, *gains)


def _factor(magnitude: Float32, norm: Float32) -> Float32:
    """DoRA's factors; a row of zeros has no direction, and stays."""
    found = np.divide(magnitude, norm, out=np.ones_like(norm), where=norm != 0)
    return np.asarray(found, np.float32)


@dataclass(frozen=True, slots=True)
class Product:
    """The change of one matrix product, as a backend computes it:

    y = gain * (W x' + scale * B (A x')), x' = input_gain * x; biases are added afterwards.

    Of the embedding, whose rows are looked up, a row is row t of (W + scale * B A), times
    `input_gain`.

    Attributes:
        a: [rank, in].
        b: [out, rank].
        scale: of the low-rank part.
        gain: [out], of DoRA with a magnitude per row; None: 1.
        input_gain: [in], of DoRA with a magnitude per column; None: 1.
    """

    a: Float32
    b: Float32
    scale: float
    gain: Float32 | None = None
    input_gain: Float32 | None = None

    @property
    def rank(self) -> int:
        """Inner dimension of the low-rank part."""
        return len(self.a)


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes of a model, as a backend applies them to the rows of a slot.

    An output layer that is tied to the embedding is changed by `LM_HEAD`, the embedding alone by
    `EMBED`.

    Attributes:
        products: canonical name of a matrix, [out, in] -> change of its product.
        replaced: canonical name -> tensor used instead of the base's: norms, biases, output layer,
            embedding.
        added: canonical name of a bias -> vector added to it.
    """

    products: Mapping[str, Product] = field(repr=False, default_factory=dict)
    replaced: Mapping[str, Float32] = field(repr=False, default_factory=dict)
    added: Mapping[str, Float32] = field(repr=False, default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all values in float32."""
        arrays = [*self.replaced.values(), *self.added.values()]
        for product in self.products.values():
            arrays += [product.a, product.b]
        return sum(array.nbytes for array in arrays)


@dataclass(frozen=True, slots=True)
class Prefix:
    """Keys and values in front of the prompt, as the cache holds them: keys are not rotated, as
    these positions never were.

    Attributes:
        keys, values: per layer [n, kv_heads, head_dim].
    """

    keys: tuple[Float32, ...] = field(repr=False)
    values: tuple[Float32, ...] = field(repr=False)

    @property
    def count(self) -> int:
        """How many positions it takes."""
        return len(self.keys[0])


@dataclass(frozen=True, slots=True)
class Adapter:
    """A verified adapter of one base model.

    Attributes:
        name: for messages.
        digest: 16 bytes over its settings and all values.
        tensors: canonical name -> change of the matrix.
        replaced: canonical name -> tensor used instead of the base's (`modules_to_save`, biases).
        added: canonical name -> vector added to the base's bias.
        invocation: of an activated LoRA: tokens after which it applies; None: it always does.
        vectors: of a prompt adapter, which changes no tensor: [n, hidden_size], rows of the
            embedding after `embed_scale` that stand in front of the prompt. None: it has none.
        prefix: of one of prefix tuning.
    """

    name: str
    digest: bytes
    tensors: Mapping[str, LoraTensor] = field(repr=False, default_factory=dict)
    replaced: Mapping[str, Float32] = field(repr=False, default_factory=dict)
    added: Mapping[str, Float32] = field(repr=False, default_factory=dict)
    invocation: tuple[int, ...] | None = None
    vectors: Float32 | None = field(repr=False, default=None)
    prefix: Prefix | None = None

    @property
    def rank(self) -> int:
        """The highest rank; 0 without low-rank changes."""
        return max((tensor.rank for tensor in self.tensors.values()), default=0)

    @property
    def of_prompt(self) -> bool:
        """Whether it is a prompt adapter, which changes no tensor."""
        return self.vectors is not None or self.prefix is not None

    @property
    def alone(self) -> str:
        """Why it is not added up with other adapters; empty if it may be."""
        if self.of_prompt:
            return "it is a prompt adapter"
        if self.invocation:
            return "it is activated by tokens"
        if any(tensor.magnitude is not None for tensor in self.tensors.values()):
            return "it has magnitudes (DoRA)"
        return f"it replaces {next(iter(self.replaced))}" if self.replaced else ""

    @property
    def targets(self) -> frozenset[str]:
        """Canonical names of all changed tensors."""
        return frozenset((*self.tensors, *self.replaced, *self.added))

    def changes(self, weight: Callable[[str], Float32]) -> Changes:
        """The changes as a backend applies them; `weight` gives the base's tensor of a name, and is
        called for DoRA alone."""
        products = {
            name: tensor.product(partial(weight, name)) for name, tensor in self.tensors.items()
        }
        return Changes(products, self.replaced, self.added)

    def unties(self, spec: DecoderSpec) -> bool:
        """Whether the output layer no longer equals the embedding that it is tied to: an adapter
        changes one of them alone, or each in its own way."""
        return spec.tied_embeddings and bool({names.EMBED, names.LM_HEAD} & self.targets)

    def applied(self, name: str, weight: Float32) -> Float32:
        """Tensor `name` of the adapted model; `weight` is the base's."""
        weight = self.replaced.get(name, weight)
        if name in self.tensors:
            weight = self.tensors[name].applied(weight)
        if name in self.added:
            weight = weight + self.added[name]
        return weight


def adaptable_tensors(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of the tensors that an adapter may change: those of the model, and an
    output layer of its own where it is tied to the embedding."""
    expected = spec.expected_tensors()
    if spec.generates and spec.tied_embeddings:
        expected[names.LM_HEAD] = expected[names.EMBED]
    return expected


def merged(weight: Float32, product: Product) -> Float32:
    """The matrix [out, in] whose product is the changed one."""
    found = weight + (product.b @ product.a) * np.float32(product.scale)
    if product.gain is not None:
        found = found * product.gain[:, None]
    if product.input_gain is not None:
        found = found * product.input_gain
    return np.asarray(found, np.float32)
