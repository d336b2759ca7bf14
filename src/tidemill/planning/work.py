"""Work: what a step of a model computes and reads, from its description and its held weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.backends.base import HeldTensor
from tidemill.models import tensors as names
from tidemill.models.kv_types import vector_bytes
from tidemill.models.layers import Attention, Moe
from tidemill.models.spec import DecoderSpec
from tidemill.models.tensors import TensorHeader

# A multiplication and an addition.
_FLOPS = 2


@dataclass(frozen=True, slots=True)
class Weights:
    """Matrices that a token multiplies: how many values, and their bytes as they are held."""

    values: int = 0
    nbytes: int = 0

    def plus(self, values: int, nbytes: int) -> Weights:
        """These and more."""
        return Weights(self.values + values, self.nbytes + nbytes)


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of all layers that have them.

    Attributes:
        weights: of all of them.
        share: of the experts of a layer that one token uses.
    """

    weights: Weights
    share: float

    def read(self, tokens: float) -> float:
        """Expected bytes of the experts that so many tokens use, chosen independently."""
        return float(self.weights.nbytes * (1 - (1 - self.share) ** tokens))


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Layers with the same attention.

    Attributes:
        window: tokens that a token sees at most; None: all.
        pair_flops: operations per query and key, over these layers.
        token_bytes: bytes of cache that a position takes, over these layers.
    """

    window: int | None
    pair_flops: int
    token_bytes: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Equal rows of a step: each computes `tokens` tokens after `start` cached ones.

    Attributes:
        count: how many rows.
        tokens: of each.
        start: cached before, of each.
    """

    count: int
    tokens: int
    start: float


@dataclass(frozen=True, slots=True)
class Work:
    """What a model's steps are made of.

    Attributes:
        layers: how many.
        dense: matrices that every token multiplies, the output layer apart.
        experts: see `Experts`; None without.
        output: the output layer, which only sampled tokens multiply.
        attention: layers by kind of attention.
        state_bytes: recurrent state that a row reads and writes.
        weight_type: most weights' type: the computing type, or that of quantized ones.
    """

    layers: int
    dense: Weights
    experts: Experts | None
    output: Weights
    attention: tuple[AttentionWork, ...]
    state_bytes: int
    weight_type: str

    @property
    def weight_bytes(self) -> int:
        """Of all matrices."""
        experts = 0 if self.experts is None else self.experts.weights.nbytes
        return self.dense.nbytes + self.output.nbytes + experts

    def flops(self, rows: Rows) -> float:
        """Operations of a step."""
        tokens = rows.count * rows.tokens
        used = self.dense.values
        if self.experts is not None:
            used += round(self.experts.weights.values * self.experts.share)
        found = float(_FLOPS * tokens * used + _FLOPS * rows.count * self.output.values)
        for kind in self.attention:
            found += rows.count * pairs(rows.tokens, rows.start, kind.window) * kind.pair_flops
        return found

    def nbytes(self, rows: Rows) -> float:
        """Bytes that a step reads: weights once, and each row's cache."""
        found = float(self.dense.nbytes + self.output.nbytes)
        if self.experts is not None:
            found += self.experts.read(rows.count * rows.tokens)
        for kind in self.attention:
            seen = rows.start + rows.tokens
            seen = seen if kind.window is None else min(seen, kind.window + rows.tokens)
            found += rows.count * seen * kind.token_bytes
        return found + 2 * rows.count * self.state_bytes


def pairs(tokens: int, start: float, window: int | None = None) -> float:
    """Queries times keys of `tokens` tokens after `start` ones, each with `window` keys at most."""
    found = tokens * start + tokens * (tokens + 1) / 2
    return found if window is None else min(found, float(tokens * window))


def work_of(
    spec: DecoderSpec,
    headers: Mapping[str, TensorHeader],
    held: Mapping[str, HeldTensor],
    kv_dtype: str,
    weight_type: str,
) -> Work:
    """The work of a described model.

    Args:
        spec: the model; no foreign one.
        headers: of the tensors by canonical name.
        held: how a backend holds them.
        kv_dtype: type of the KV cache.
        weight_type: see `Work`.
    """
    dense, output, routed = Weights(), Weights(), Weights()
    for name, header in headers.items():
        if len(header.shape) < 2:
            continue
        values, nbytes = math.prod(header.shape), held[name].nbytes
        if name == names.LM_HEAD or (name == names.EMBED and spec.tied_embeddings):
            output = output.plus(values, nbytes) if spec.generates else output
        elif ".experts." in name:
            routed = routed.plus(values, nbytes)
        elif name.startswith("layers."):
            dense = dense.plus(values, nbytes)
    moe = next((layer.mlp for layer in spec.layers if isinstance(layer.mlp, Moe)), None)
    experts = None if moe is None else Experts(routed, moe.top_k / moe.experts)
    return Work(
        layers=len(spec.layers),
        dense=dense,
        experts=experts,
        output=output,
        attention=_attention(spec, kv_dtype),
        state_bytes=spec.state_bytes,
        weight_type=weight_type,
    )


def _attention(spec: DecoderSpec, kv_dtype: str) -> tuple[AttentionWork, ...]:
    found: dict[int | None, tuple[int, int]] = {}
    for mixer in spec.attentions().values():
        window = mixer.window if spec.causal else None
        flops, nbytes = found.get(window, (0, 0))
        flops += _FLOPS * mixer.heads * (mixer.head_dim + mixer.v_dim)
        found[window] = flops, nbytes + _position_bytes(mixer, kv_dtype)
    return tuple(AttentionWork(window, *kind) for window, kind in found.items())


def _position_bytes(mixer: Attention, kv_dtype: str) -> int:
    """Bytes of a cached position that a layer reads; layers that share a cache each read it."""
    key = vector_bytes(kv_dtype, mixer.head_dim, key=True)
    return mixer.kv_heads * (key + vector_bytes(kv_dtype, mixer.v_dim, key=False))
