"""Random models as tensors in memory, and a plain float64 decoder that says what they compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from helpers.kquants import K_TYPES, mixed_type, random_k_tensor
from numpy.typing import NDArray

from tidemill.models.quantization import QUANTIZED_TYPES, convert, to_float32
from tidemill.models.spec import (
    Attention,
    DecoderSpec,
    Latent,
    Layer,
    LayerInputs,
    Mlp,
    Moe,
    Recurrent,
    Rope,
    inverse_frequencies,
)
from tidemill.models.tensors import RawTensor, layer_name

Float64 = NDArray[np.float64]


def make_spec(
    *,
    hidden: int = 64,
    heads: int = 6,
    kv_heads: int = 2,
    head_dim: int = 10,
    intermediate: int = 96,
    vocab: int = 131,
    layers: int = 3,
    tied: bool = True,
    mlp_bias: bool = False,
    rope: Rope | None = None,
    **attention: object,
) -> DecoderSpec:
    """A small spec of odd sizes; `attention` goes to `Attention`."""
    mixer = Attention(heads, kv_heads, head_dim, rope or Rope(10000.0, head_dim), **attention)  # type: ignore[arg-type]
    layer = Layer(mixer, Mlp(intermediate, bias=mlp_bias))
    return DecoderSpec("random", vocab, hidden, 4096, (layer,) * layers, 1e-6, tied, "F32")


def with_recurrence(spec: DecoderSpec) -> DecoderSpec:
    """The spec's first layer between one with a gated delta net and one with Mamba-2, its attention
    gated."""
    first = spec.layers[0]
    delta = Recurrent("delta", 2, 4, 20, 24, norm_groups=4, norm_shared=True)
    ssd = Recurrent(
        "ssd", 2, 4, 16, 40, bias=True, conv_bias=True, skip=True, norm_groups=2, gate_first=True,
        time_limits=(0.01, 3.0), conv_kernel=3,
    )  # fmt: skip
    assert isinstance(first.mixer, Attention)
    mixers = (delta, replace(first.mixer, gated=True), ssd)
    return replace(spec, layers=tuple(replace(first, mixer=mixer) for mixer in mixers))


_SSD = Recurrent("ssd", 2, 4, 16, 40, conv_bias=True, skip=True, norm_groups=2, gate_first=True)


def state_alone(spec: DecoderSpec) -> DecoderSpec:
    """Layers of Mamba-2 alone: nothing in the cache."""
    return replace(spec, layers=(Layer(_SSD, None),) * len(spec.layers))


def mixers_beside(spec: DecoderSpec) -> DecoderSpec:
    """The spec with Mamba-2 beside its attention, everything scaled."""
    mixer = replace(_SSD, norm_groups=0, gate_first=False, scales=(0.8, 1.2, 0.7, 1.1, 0.9))
    scaled = {"mixer_scale": 0.7, "parallel_scale": 1.2, "mlp_scale": 0.9}
    return replace(
        spec,
        layers=tuple(
            replace(layer, parallel_mixer=mixer, mlp=replace(layer.mlp, gate_scale=1.3), **scaled)
            for layer in spec.layers
        ),
    )


def with_shared_kv(spec: DecoderSpec) -> DecoderSpec:
    """The spec's first layer and two more that read its K and V, all with an input of their own and
    experts beside the dense block."""
    first = spec.layers[0]
    assert isinstance(first.mlp, Mlp)
    experts = Moe(
        4, 2, Mlp(64), shared=first.mlp, separate_norms=True, router_scale=0.2, expert_scales=True
    )
    first = replace(first, mlp=experts, post_norm=True, scaled=True)
    own = replace(first.mixer, v_norm=True, v_from_k=True, scale=1.0)
    reads = replace(first, mixer=replace(own, v_from_k=False, kv_layer=0))
    inputs = LayerInputs(32, spec.vocab_size, "gelu_tanh", 3.0, 0.1, 0.7)
    return replace(spec, layers=(replace(first, mixer=own), reads, reads), layer_inputs=inputs)


def with_latents(spec: DecoderSpec) -> DecoderSpec:
    """The spec with multi-head latent attention."""
    latent = Latent(rank=64, rope=32, nope=32, value=64, q_rank=64)
    mixer = Attention(4, 1, 96, Rope(10000.0, 32), latent=latent)
    return replace(spec, layers=tuple(replace(layer, mixer=mixer) for layer in spec.layers))


MODELS: dict[str, Callable[[DecoderSpec], DecoderSpec]] = {
    "plain": lambda spec: spec,
    "recurrent": with_recurrence,
    "state alone": state_alone,
    "mixers beside": mixers_beside,
    "shared KV": with_shared_kv,
}

# Other kinds of cache, and none.
CACHES: dict[str, Callable[[DecoderSpec], DecoderSpec]] = {
    **MODELS,
    "windows": lambda spec: with_windows(spec, [None, *[24] * (len(spec.layers) - 1)]),
    "latent": with_latents,
    "encoder": lambda spec: replace(spec, causal=False),
}


def with_windows(spec: DecoderSpec, windows: Sequence[int | None]) -> DecoderSpec:
    """The spec with these windows, layer by layer."""
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, window=window))
        for layer, window in zip(spec.layers, windows, strict=True)
    )
    return replace(spec, layers=layers)


def raw(values: NDArray[np.float32], dtype: str = "F32") -> RawTensor:
    """float32 values stored as `dtype`."""
    tensor = RawTensor("F32", values.shape, np.ascontiguousarray(values).data.cast("B"))
    if dtype in QUANTIZED_TYPES:
        return convert(tensor, dtype)
    if dtype == "F16":
        stored: NDArray[np.generic] = values.astype(np.float16)
    elif dtype == "BF16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        stored = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    else:
        return tensor
    return RawTensor(dtype, values.shape, np.ascontiguousarray(stored).data.cast("B"))


def make_tensors(spec: DecoderSpec, dtype: str = "F32", seed: int = 0) -> dict[str, RawTensor]:
    """Random tensors of a spec, matrices stored as `dtype`, vectors as F32.

    ``Q4_K_M`` mixes types as llama.cpp's files of that name do. K types are random as stored.
    """
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in spec.expected_tensors().items():
        kind = mixed_type(name) if dtype == "Q4_K_M" else dtype
        if len(shape) == 2 and kind in K_TYPES:
            tensors[name] = random_k_tensor(rng, (shape[0], shape[1]), kind)
            continue
        values = rng.standard_normal(shape, dtype=np.float32)
        if len(shape) == 2:
            tensors[name] = raw(values / np.float32(np.sqrt(shape[1])), dtype)
        else:
            around = np.float32("norm" in name or name.endswith("scale"))
            tensors[name] = raw(values * np.float32(0.1) + around)
    return tensors


class ReferenceDecoder:
    """Any spec in float64 numpy, one sequence at a time, no cache: the whole prompt at once."""

    def __init__(self, spec: DecoderSpec, tensors: dict[str, RawTensor]) -> None:
        self.spec = spec
        self._weights = {n: to_float32(t).astype(np.float64) for n, t in tensors.items()}

    def logits(self, tokens: Sequence[int]) -> Float64:
        """float64 [len(tokens), vocab]."""
        w, spec = self._weights, self.spec
        x = w["embed.weight"][list(tokens)]
        for i, layer in enumerate(spec.layers):
            x = x + self._attention(
                i, layer.mixer, self._norm(x, layer_name(i, "attn_norm.weight"))
            )
            h = self._norm(x, layer_name(i, "mlp_norm.weight"))
            gate = self._linear(h, layer_name(i, "mlp.gate"))
            up = self._linear(h, layer_name(i, "mlp.up"))
            x = x + self._linear(gate / (1 + np.exp(-gate)) * up, layer_name(i, "mlp.down"))
        head = w["embed.weight" if spec.tied_embeddings else "lm_head.weight"]
        return np.asarray(self._norm(x, "final_norm.weight") @ head.T)

    def _linear(self, x: Float64, name: str) -> Float64:
        y = x @ self._weights[f"{name}.weight"].T
        return y + self._weights[f"{name}.bias"] if f"{name}.bias" in self._weights else y

    def _norm(self, x: Float64, name: str) -> Float64:
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + self.spec.norm_eps)
        return np.asarray(x / scale * self._weights[name])

    def _attention(self, i: int, mixer: Attention, x: Float64) -> Float64:
        count = len(x)
        q, k, v = (
            self._linear(x, layer_name(i, f"attn.{part}")).reshape(count, -1, mixer.head_dim)
            for part in "qkv"
        )
        if mixer.qk_norm:
            q = self._norm(q, layer_name(i, "attn.q_norm.weight"))
            k = self._norm(k, layer_name(i, "attn.k_norm.weight"))
        if mixer.rope is not None:
            q, k = self._rope(q, mixer.rope), self._rope(k, mixer.rope)
        group = mixer.heads // mixer.kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) * mixer.score_scale
        at = np.arange(count)
        hidden = at[None, :] > at[:, None]
        if mixer.window is not None:
            hidden |= at[None, :] <= at[:, None] - mixer.window
        scores[:, hidden] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", p, v).reshape(count, -1)
        return self._linear(out, layer_name(i, "attn.o"))

    @staticmethod
    def _rope(x: Float64, rope: Rope) -> Float64:
        angles = np.arange(len(x))[:, None] * np.array(inverse_frequencies(rope))
        cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
        half = rope.dim // 2
        a, b, rest = x[..., :half], x[..., half : rope.dim], x[..., rope.dim :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)
