"""DecoderSpec: a decoder as data, in the field's standard terms. Executors run any spec.

A family (families/<name>.py) turns a checkpoint's config into a spec and names its tensors; no
family has a forward pass of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidemill.models import tensors as names


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    Attributes:
        kind: ``linear``, ``llama3`` or ``factors`` (per-frequency divisors, GGUF's rope_freqs).
        factor: the stretch.
        low_freq_factor, high_freq_factor, original_context: of llama3 (Llama 3.1's rule).
        factors: of ``factors``: one divisor per frequency, head_dim / 2 of them.
    """

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al. 2021), in the rotate-half convention.

    Attributes:
        theta: base of the frequencies.
        dim: how many of a head's dimensions rotate (the first ones).
        scaling: see `RopeScaling`; None for none.
    """

    theta: float
    dim: int
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """A layer's attention mixer (MHA or GQA).

    Attributes:
        heads, kv_heads, head_dim: heads is a multiple of kv_heads.
        q_bias, k_bias, v_bias, o_bias: whether the projections have biases.
        qk_norm: RMS norm over each head of Q and K before rope (Qwen3).
        window: sliding window in tokens, or None for full attention.
        scale: multiplies the scores; None is head_dim ** -0.5.
        rope: None for no position embedding.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    window: int | None = None
    scale: float | None = None

    @property
    def score_scale(self) -> float:
        """The number that multiplies Q·K."""
        return self.head_dim**-0.5 if self.scale is None else self.scale


@dataclass(frozen=True, slots=True)
class Mlp:
    """A layer's gated feed-forward block: down(act(gate(x)) * up(x)).

    Attributes:
        intermediate: width.
        activation: ``silu``.
        bias: whether gate, up and down have biases.
    """

    intermediate: int
    activation: str = "silu"
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: pre-norm attention and pre-norm MLP, each with a residual."""

    mixer: Attention
    mlp: Mlp


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share a block table.

    Attributes:
        kind: ``full`` attention, sliding ``window``, or recurrent ``state``.
        layers: their indices.
        window: tokens kept, for ``window``.
    """

    kind: str
    layers: tuple[int, ...]
    window: int | None = None


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only transformer.

    Attributes:
        family: name of the family file it came from.
        vocab_size, hidden_size, max_positions: sizes; max_positions is the trained context.
        layers: one entry per layer.
        norm_eps: epsilon of every RMS norm (Zhang & Sennrich 2019).
        tied_embeddings: the output projection is the embedding.
        weights_dtype: type most float weights are stored in ("F32", "F16", "BF16", or a GGUF type).
    """

    family: str
    vocab_size: int
    hidden_size: int
    max_positions: int
    layers: tuple[Layer, ...]
    norm_eps: float
    tied_embeddings: bool
    weights_dtype: str = "BF16"

    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """The cache groups of the model, in the order block tables are given."""
        full = [i for i, layer in enumerate(self.layers) if layer.mixer.window is None]
        windows: dict[int, list[int]] = {}
        for i, layer in enumerate(self.layers):
            if layer.mixer.window is not None:
                windows.setdefault(layer.mixer.window, []).append(i)
        groups = [CacheGroup("full", tuple(full))] if full else []
        groups += [CacheGroup("window", tuple(ls), w) for w, ls in sorted(windows.items())]
        return tuple(groups)

    def kv_bytes_per_token(self, kv_dtype: str) -> int:
        """Bytes of KV cache that one token takes over all layers.

        Args:
            kv_dtype: ``float32``, ``bfloat16`` or ``int8`` (which adds a float32 scale per token
                and KV head, for K and for V).
        """
        total = 0
        for layer in self.layers:
            vector = {
                "float32": layer.mixer.head_dim * 4,
                "bfloat16": layer.mixer.head_dim * 2,
                "int8": layer.mixer.head_dim + 4,
            }[kv_dtype]
            total += 2 * layer.mixer.kv_heads * vector
        return total

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Canonical name -> shape of every tensor the model must have, no more and no less."""
        shapes: dict[str, tuple[int, ...]] = {
            names.EMBED: (self.vocab_size, self.hidden_size),
            names.FINAL_NORM: (self.hidden_size,),
        }
        if not self.tied_embeddings:
            shapes[names.LM_HEAD] = (self.vocab_size, self.hidden_size)
        for i, layer in enumerate(self.layers):
            for tensor, shape in _layer_shapes(self.hidden_size, layer).items():
                shapes[names.layer_name(i, tensor)] = shape
        return shapes

    def parameters(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for shape in self.expected_tensors().values())


def _layer_shapes(hidden: int, layer: Layer) -> dict[str, tuple[int, ...]]:
    attn, mlp = layer.mixer, layer.mlp
    q, kv = attn.heads * attn.head_dim, attn.kv_heads * attn.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn.q.weight": (q, hidden),
        "attn.k.weight": (kv, hidden),
        "attn.v.weight": (kv, hidden),
        "attn.o.weight": (hidden, q),
        "mlp_norm.weight": (hidden,),
        "mlp.gate.weight": (mlp.intermediate, hidden),
        "mlp.up.weight": (mlp.intermediate, hidden),
        "mlp.down.weight": (hidden, mlp.intermediate),
    }
    optional = {
        "attn.q.bias": (attn.q_bias, (q,)),
        "attn.k.bias": (attn.k_bias, (kv,)),
        "attn.v.bias": (attn.v_bias, (kv,)),
        "attn.o.bias": (attn.o_bias, (hidden,)),
        "attn.q_norm.weight": (attn.qk_norm, (attn.head_dim,)),
        "attn.k_norm.weight": (attn.qk_norm, (attn.head_dim,)),
        "mlp.gate.bias": (mlp.bias, (mlp.intermediate,)),
        "mlp.up.bias": (mlp.bias, (mlp.intermediate,)),
        "mlp.down.bias": (mlp.bias, (hidden,)),
    }
    shapes.update({name: shape for name, (present, shape) in optional.items() if present})
    return shapes


def inverse_frequencies(rope: Rope) -> list[float]:
    """Angles per position of each rotating pair, scaling applied: dim / 2 numbers.

    The llama3 rule: wavelengths longer than original_context / low_freq_factor are divided by
    factor, shorter than original_context / high_freq_factor kept, between interpolated linearly
    (Llama 3.1's reference code and transformers' `rope_type="llama3"`).
    """
    base = [rope.theta ** (-2.0 * i / rope.dim) for i in range(rope.dim // 2)]
    scaling = rope.scaling
    if scaling is None:
        return base
    if scaling.kind == "linear":
        return [f / scaling.factor for f in base]
    if scaling.kind == "factors":
        return [f / d for f, d in zip(base, scaling.factors, strict=True)]
    if scaling.kind == "llama3":
        return [_llama3(f, scaling) for f in base]
    raise ValueError(f"unknown rope scaling {scaling.kind!r}")


def _llama3(frequency: float, s: RopeScaling) -> float:
    wavelength = 2.0 * math.pi / frequency
    if wavelength > s.original_context / s.low_freq_factor:
        return frequency / s.factor
    if wavelength < s.original_context / s.high_freq_factor:
        return frequency
    smooth = (s.original_context / wavelength - s.low_freq_factor) / (
        s.high_freq_factor - s.low_freq_factor
    )
    return (1.0 - smooth) * frequency / s.factor + smooth * frequency
