"""A decoder's layers as data: mixers, feed-forward blocks, norms."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidemill.models.rope import Rope


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation.

    Attributes:
        kind: ``rms`` (Zhang & Sennrich 2019) or ``layer`` (Ba et al. 2016).
        weight, bias: whether it has a weight and a bias.
    """

    kind: str = "rms"
    weight: bool = True
    bias: bool = False


RMS = Norm()


@dataclass(frozen=True, slots=True)
class QkNorm:
    """Normalisation of Q and K.

    Attributes:
        norm: the norm.
        scope: ``head``: over each head, with the same weights [head_dim] for all; ``heads``: over
            each head, with each head's own weights; ``full``: over all heads together.
        after_rope: applied after the rotation instead of before it.
    """

    norm: Norm = Norm()
    scope: str = "head"
    after_rope: bool = False


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, section 2.1), in its absorbed form.

    A token's K and V are derived from its latent, a vector of `rank` values, and from a rotated key
    that all heads share. The cache holds these two. Of the enclosing `Attention`, kv_heads is 1,
    head_dim (K's width) is rank + rope and v_dim is rank. Each head's queries are projected into
    latent space (attn.k_up), and its attention output is projected back (attn.v_up).

    Attributes:
        rank: width of a latent.
        rope: width of the shared key, which rotates.
        nope: width of the part of a head's query that does not rotate.
        value: width of a head's output.
        q_rank: width of the normed low-rank vector that queries are projected from; None: from x.
        down_bias: whether the projections to that vector and to [latent, key] have biases.
        norm_eps: epsilon of the norms of latents and of low-rank queries.
    """

    rank: int
    rope: int
    nope: int
    value: int
    q_rank: int | None = None
    down_bias: bool = False
    norm_eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class Attention:
    """A layer's attention mixer (MHA, GQA or MLA).

    Attributes:
        heads, kv_heads, head_dim: heads is a multiple of kv_heads.
        rope: None for no rotation.
        q_bias, k_bias, v_bias, o_bias: whether the projections have biases.
        qk_norm: see `QkNorm`; None for none.
        window: sliding window in tokens, or None for full attention. A query sees this many tokens
            up to and including itself; in non-causal attention also as many from itself on.
        chunked: the window does not slide: a query sees its own chunk of `window` tokens, up to and
            including itself.
        attention_temperature: (scale, floor, shift): queries are multiplied by
            log(1 + floor((position + shift) / floor)) * scale + 1 (Nakanishi 2025), after norms
            and rotation.
        scale: multiplies the scores; None is head_dim ** -0.5.
        clip: Q, K and V are clamped to [-clip, clip] after their projections, and after norms that
            precede the rotation.
        softcap: scores s become softcap * tanh(s / softcap), after the scale.
        slopes: ALiBi slopes: per head, the penalty of a score per token of distance (Press et al.
            2021); empty for none.
        sinks: attention sinks: each head has a learned score for a key without a value.
        gated: the heads' outputs are multiplied by the sigmoid of a projection of their width.
        latent: see `Latent`; None for ordinary K and V.
        v_norm: V is RMS-normed over each head, without weights.
        v_from_k: V is K before its norm and rotation; it has no projection.
        kv_layer: index of the layer whose K and V this layer reads, with the same kv_heads,
            head_dim and window; this layer then computes and caches none. None for its own.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    o_bias: bool = False
    qk_norm: QkNorm | None = None
    window: int | None = None
    chunked: bool = False
    attention_temperature: tuple[float, float, int] | None = None
    scale: float | None = None
    clip: float | None = None
    softcap: float | None = None
    slopes: tuple[float, ...] = ()
    sinks: bool = False
    gated: bool = False
    latent: Latent | None = None
    v_norm: bool = False
    v_from_k: bool = False
    kv_layer: int | None = None

    @property
    def v_dim(self) -> int:
        """Width of a KV head's V."""
        return self.head_dim if self.latent is None else self.latent.rank

    @property
    def score_scale(self) -> float:
        """Factor of the scores Q·K."""
        return self.head_dim**-0.5 if self.scale is None else self.scale


MAX_CONV_KERNEL = 16


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A recurrent mixer: it keeps a state of fixed size per sequence instead of keys and values.

    A projection of the token goes through a causal depthwise convolution and SiLU, which yields per
    head a query q and a key k [key_dim] and a value v [value_dim]. Two more numbers per head are a
    and b. The state S [key_dim, value_dim] becomes S' = d S + k u^T, and the output is S'^T q:

    - ``delta``, the gated delta rule (Yang et al. 2024): q and k have unit length, q is divided by
      sqrt(key_dim); d = exp(-exp(a_log) softplus(a + a_bias)), u = sigmoid(b) (v - d S^T k).
    - ``ssd``, Mamba-2 (Dao & Gu 2024), whose B are keys and C queries: t = softplus(a + a_bias)
      within time_limits, d = exp(-exp(a_log) t), u = t v; b does not exist.

    Attributes:
        rule: ``delta`` or ``ssd``.
        key_heads, value_heads: value_heads is a multiple of key_heads.
        key_dim, value_dim: of a head.
        conv_kernel: width of the convolution kernel in tokens, the current one included; at most
            `MAX_CONV_KERNEL`.
        bias: whether the projections have biases.
        conv_bias: whether the convolution has a bias.
        skip: each head's value times a learned number is added to its output.
        norm_groups: number of equal parts of the output that are RMS-normed; 0 for no norm.
        norm_shared: all parts share the norm's weights.
        gate_first: the output is multiplied by SiLU of a projection before its norm, not after.
        time_limits: bounds of t.
        scales: for ``ssd``: factors of the projections to z, x, B, C and a.
        tiled: value head h uses key head h % key_heads. Otherwise the value heads of a key head are
            adjacent.
    """

    rule: str
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int = 4
    bias: bool = False
    conv_bias: bool = False
    skip: bool = False
    norm_groups: int = 0
    norm_shared: bool = False
    gate_first: bool = False
    time_limits: tuple[float, float] = (0.0, math.inf)
    scales: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)
    tiled: bool = False

    @property
    def inner(self) -> int:
        """Width of the output before the last projection."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Width of the convolution: queries, keys and values; for ``ssd`` x, B and C."""
        return 2 * self.key_heads * self.key_dim + self.inner

    @property
    def state_values(self) -> int:
        """Number of float32 values in a sequence's state."""
        return (self.conv_kernel - 1) * self.channels + self.inner * self.key_dim


ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "swiglu_clamped")


@dataclass(frozen=True, slots=True)
class Mlp:
    """A feed-forward block: down(act(gate(x)) * up(x)), or down(act(up(x))) when not gated.

    Attributes:
        intermediate: width.
        activation: one of `ACTIVATIONS`. ``swiglu_clamped`` is gpt-oss's product of both:
            g * sigmoid(1.702 g) * (u + 1) with g = min(gate, 7) and u = up within [-7, 7].
        bias: whether gate, up and down have biases.
        gated: whether it has a gate.
        gate_scale: multiplies the gate before its activation.
    """

    intermediate: int
    activation: str = "silu"
    bias: bool = False
    gated: bool = True
    gate_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Moe:
    """A mixture of experts: the weighted sum of the chosen experts' outputs.

    Attributes:
        experts: number of experts.
        top_k: experts per token: those with the highest scores; ties go to the lowest index.
        expert: shape of each expert.
        scoring: ``softmax`` or ``sigmoid`` of the router's logits; ``softmax_chosen``: softmax over
            the chosen logits alone; ``sigmoid_chosen``: sigmoid of those; ``sparse_mixer``:
            Phi-3.5-MoE's rule (see csrc/model/route.cpp).
        normalize: the chosen weights are divided by their sum.
        scale: multiplies the weights.
        scale_inputs: the weights multiply the experts' inputs instead of their outputs.
        router_bias: the router has a bias.
        e_score_correction_bias: a learned vector is added to the scores that choose
            experts, but not to the weights.
        groups, top_groups: experts are chosen from the top_groups best of `groups` equal groups,
            rated by their two best scores (with correction) or their best one.
        shared: an expert applied to every token, unweighted.
        shared_gate: its output is multiplied by the sigmoid of a learned product with the token.
        jitter: for sparse_mixer, the tolerance within which a logit counts as one of the best.
        separate_norms: the router and the experts read x through norms of their own (router_norm,
            experts_norm), the shared expert through the layer's norm. The outputs of the shared
            expert and of the others are normed (shared_post_norm, experts_post_norm), then added.
        router_scale: multiplies the router's logits.
        expert_scales: after the choice, each expert's weight is multiplied by a learned number.
    """

    experts: int
    top_k: int
    expert: Mlp
    scoring: str = "softmax"
    normalize: bool = True
    scale: float = 1.0
    scale_inputs: bool = False
    router_bias: bool = False
    e_score_correction_bias: bool = False
    groups: int = 1
    top_groups: int = 1
    shared: Mlp | None = None
    shared_gate: bool = False
    jitter: float = 0.0
    separate_norms: bool = False
    router_scale: float = 1.0
    expert_scales: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: x += post(mixer(pre(x))), then x += post(mlp(pre(x))).

    Attributes:
        mixer, mlp: the blocks; a layer may have only one of them.
        parallel_mixer: a recurrent mixer parallel to attention: it reads the same norm of x, and
            both outputs are added to x.
        pre_norm, post_norm: which of the norms exist.
        parallel: both blocks read the same x, and both outputs are added to it.
        shared_norm: parallel blocks share one norm (attn_norm).
        no_mixer_norm: the mixer has no pre norm, whatever pre_norm says.
        sum_norm: the post norm is applied to the sum: x = post(x + block(x)), as in the original
            transformer (Vaswani et al. 2017); the same in all layers.
        scaled: x is multiplied by a learned number after the layer's blocks.
        mixer_scale, parallel_scale, mlp_scale: factors of the blocks' outputs.
    """

    mixer: Attention | Recurrent | None
    mlp: Mlp | Moe | None
    pre_norm: bool = True
    post_norm: bool = False
    parallel: bool = False
    shared_norm: bool = False
    no_mixer_norm: bool = False
    sum_norm: bool = False
    parallel_mixer: Recurrent | None = None
    scaled: bool = False
    mixer_scale: float = 1.0
    parallel_scale: float = 1.0
    mlp_scale: float = 1.0

    def has_norm(self, part: str) -> bool:
        """Whether the block ``attn`` or ``mlp`` has a pre norm of its own."""
        left_out = self.shared_norm if part == "mlp" else self.no_mixer_norm
        return self.pre_norm and not left_out

    @property
    def attention(self) -> Attention | None:
        """The layer's attention, if it has any."""
        return self.mixer if isinstance(self.mixer, Attention) else None

    @property
    def recurrent(self) -> Recurrent | None:
        """The layer's recurrent mixer, if it has any, alone or parallel to attention."""
        return self.mixer if isinstance(self.mixer, Recurrent) else self.parallel_mixer


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """Per-layer embeddings (Gemma 3n and 4): an additional input of each layer.

    A token has a vector of `width` values for each layer: sum_scale * (embed_scale * its row of a
    second embedding + norm(projection_scale * projection of the first embedding)). The layer ends
    by adding norm(out(act(gate(x)) * the vector)) to x.

    Attributes:
        width: of a layer's vector.
        vocab: rows of the second embedding, at least as many as the model has tokens.
        activation: one of `ACTIVATIONS` without a gate.
        embed_scale, projection_scale, sum_scale: see above.
    """

    width: int
    vocab: int
    activation: str
    embed_scale: float = 1.0
    projection_scale: float = 1.0
    sum_scale: float = 1.0
