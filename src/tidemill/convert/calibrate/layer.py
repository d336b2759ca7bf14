"""One dense decoder layer in plain numpy, with a hook on the inputs of each matrix.

The base install has no torch, and the native executor does not expose the inputs of matrices.
Calibration runs each layer a few times, so plain numpy is fast enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import unsupported
from tidemill.models.rope import Rope, inverse_frequencies
from tidemill.models.spec import Attention, DecoderSpec, Layer, Mlp, Norm

Float32 = NDArray[np.float32]
Weights = Mapping[str, Float32]
Tap = Callable[[str, Float32], None]


def check_supported(spec: DecoderSpec) -> None:
    """UNSUPPORTED, naming a feature of the model that this implementation lacks."""
    if spec.layer_inputs is not None:
        raise unsupported(
            "type", "models with per-layer embeddings are not calibrated; use a type "
            "without calibration"
        )  # fmt: skip
    for layer in spec.layers:
        mixer = layer.mixer
        what = None
        if not isinstance(mixer, Attention):
            what = "recurrent layers"
        elif not isinstance(layer.mlp, Mlp):
            what = "mixtures of experts"
        elif mixer.latent is not None:
            what = "latent attention"
        elif mixer.v_norm or mixer.v_from_k or mixer.kv_layer is not None:
            what = "shared or derived K and V"
        elif layer.parallel_mixer or layer.scaled or layer.mlp.gate_scale != 1.0:
            what = "parallel or scaled blocks"
        elif mixer.sinks or layer.mlp.activation == "swiglu_clamped":
            what = "attention sinks and clamped activations"
        if what is not None:
            raise unsupported(
                "type", f"models with {what} are not calibrated; use a type without calibration"
            )


def run_layer(
    spec: DecoderSpec, index: int, weights: Weights, x: Float32, tap: Tap | None = None
) -> Float32:
    """Output of a layer for one sequence.

    Args:
        spec: the model; see `check_supported`.
        index: the layer.
        weights: the layer's tensors by their canonical names without ``layers.N.``.
        x: float32 [tokens, hidden].
        tap: called with a matrix's name (``attn.q``) and its inputs [tokens, k].

    Returns:
        float32 [tokens, hidden].
    """
    layer = spec.layers[index]
    run = _Run(spec, weights, tap)
    h = run.norm("attn_norm", x) if layer.pre_norm else x
    attended = run.attention(layer, h)
    if layer.post_norm:
        attended = run.norm("attn_post_norm", attended)
    attended = attended * np.float32(spec.residual_scale)
    if not layer.parallel:
        x = x + attended
    if not layer.shared_norm:
        h = run.norm("mlp_norm", x) if layer.pre_norm else x
    fed = run.feed_forward(layer, h)
    if layer.post_norm:
        fed = run.norm("mlp_post_norm", fed)
    x = x + fed * np.float32(spec.residual_scale)
    return x + attended if layer.parallel else x


def embed(spec: DecoderSpec, weights: Weights, tokens: NDArray[np.int64]) -> Float32:
    """Input of the first layer, float32 [tokens, hidden]; `weights` by canonical names."""
    x = weights["embed.weight"][tokens] * np.float32(spec.embed_scale)
    if spec.learned_positions:
        x = x + weights["positions.weight"][: len(tokens)]
    if spec.embed_norm:
        x = normed(x, spec.norm, spec.norm_eps, weights, "embed_norm")
    found: Float32 = x
    return found


def normed(x: Float32, kind: Norm, eps: float, weights: Weights, name: str) -> Float32:
    """The norm over the last axis."""
    if kind.kind == "layer":
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(eps))
    if kind.weight:
        x = x * weights[f"{name}.weight"]
    return x + weights[f"{name}.bias"] if kind.bias else x


class _Run:
    def __init__(self, spec: DecoderSpec, weights: Weights, tap: Tap | None) -> None:
        self._spec, self._weights, self._tap = spec, weights, tap

    def norm(self, name: str, x: Float32) -> Float32:
        return normed(x, self._spec.norm, self._spec.norm_eps, self._weights, name)

    def linear(self, name: str, x: Float32) -> Float32:
        if self._tap is not None:
            self._tap(name, x)
        y: Float32 = x @ self._weights[f"{name}.weight"].T
        bias = self._weights.get(f"{name}.bias")
        return y if bias is None else y + bias

    def feed_forward(self, layer: Layer, x: Float32) -> Float32:
        mlp = layer.mlp
        assert isinstance(mlp, Mlp)
        up = self.linear("mlp.up", x)
        act = _ACTIVATIONS[mlp.activation]
        inner = act(self.linear("mlp.gate", x)) * up if mlp.gated else act(up)
        return self.linear("mlp.down", inner)

    def attention(self, layer: Layer, x: Float32) -> Float32:
        mixer = layer.mixer
        assert isinstance(mixer, Attention)
        q, k, v = (self.linear(f"attn.{part}", x) for part in "qkv")
        if mixer.clip is not None:
            q, k, v = (y.clip(-mixer.clip, mixer.clip) for y in (q, k, v))
        q, k = self._positioned(mixer, "q", q), self._positioned(mixer, "k", k)
        out = _attend(mixer, q, k, v.reshape(len(x), mixer.kv_heads, -1))
        if mixer.gated:
            out = out / (1 + np.exp(-self.linear("attn.gate", x)))
        return self.linear("attn.o", out)

    def _positioned(self, mixer: Attention, part: str, x: Float32) -> Float32:
        """Q or K as [tokens, heads, head_dim], normed and rotated."""
        rule = mixer.qk_norm
        count = len(x)
        heads = x.reshape(count, -1, mixer.head_dim)
        if rule is not None and not rule.after_rope:
            heads = self._head_norm(mixer, part, heads)
        if mixer.rope is not None:
            heads = _rotated(mixer.rope, heads)
        if rule is not None and rule.after_rope:
            heads = self._head_norm(mixer, part, heads)
        return heads

    def _head_norm(self, mixer: Attention, part: str, x: Float32) -> Float32:
        rule, name = mixer.qk_norm, f"attn.{part}_norm"
        assert rule is not None
        eps = self._spec.norm_eps
        if rule.scope == "full":
            whole = normed(x.reshape(len(x), -1), rule.norm, eps, self._weights, name)
            return whole.reshape(x.shape)
        weights = self._weights
        if rule.scope == "heads":
            weights = {  # a row per head
                key: value.reshape(-1, mixer.head_dim)
                for key, value in weights.items() if key.startswith(name + ".")
            }  # fmt: skip
        return normed(x, rule.norm, eps, weights, name)


def _rotated(rope: Rope, x: Float32) -> Float32:
    rates = np.array(inverse_frequencies(rope, len(x)), np.float32)
    angles = np.arange(len(x), dtype=np.float32)[:, None, None] * rates
    scale = np.float32(rope.attention_factor)
    cos, sin = np.cos(angles) * scale, np.sin(angles) * scale
    half = len(rates)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = [first * cos - second * sin, second * cos + first * sin, rest]
    return np.concatenate(turned, axis=-1)


def _attend(mixer: Attention, q: Float32, k: Float32, v: Float32) -> Float32:
    """Attention output of one whole sequence, [tokens, heads * head_dim]."""
    count, group = len(q), mixer.heads // mixer.kv_heads
    at = np.arange(count)
    hidden = at[None, :] > at[:, None]
    if mixer.window is not None:
        hidden |= at[None, :] <= at[:, None] - mixer.window
    out = np.empty((count, mixer.heads, v.shape[-1]), np.float32)
    for head in range(mixer.heads):
        scores = q[:, head] @ k[:, head // group].T * np.float32(mixer.score_scale)
        if mixer.softcap is not None:
            scores = np.tanh(scores / np.float32(mixer.softcap)) * np.float32(mixer.softcap)
        if mixer.slopes:
            scores = scores + np.float32(mixer.slopes[head]) * (at[None, :] - at[:, None])
        scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out[:, head] = weights.astype(np.float32) @ v[:, head // group]
    return out.reshape(count, -1)


def _erf(x: Float32) -> Float32:
    """Error function, Abramowitz and Stegun 7.1.26, within 1.5e-7."""
    t = 1 / (1 + np.float32(0.3275911) * np.abs(x))
    powers = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
    series: NDArray[np.floating] = np.zeros_like(x)
    for power in reversed(powers):
        series = (series + np.float32(power)) * t
    found: Float32 = np.sign(x) * (1 - series * np.exp(-np.square(x)))
    return found


_ACTIVATIONS: dict[str, Callable[[Float32], Float32]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: np.float32(0.5) * x * (1 + _erf(x * np.float32(0.5**0.5))),
    "gelu_tanh": lambda x: (
        np.float32(0.5)
        * x
        * (1 + np.tanh(np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x**3)))
    ),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.square(np.maximum(x, 0)),
}
