"""What a decoder's layers are made of, as data: mixers, feed-forward blocks, norms."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidemill.models.rope import Rope


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation.

    Attributes:
        kind: ``rms`` (Zhang & Sennrich 2019) or ``layer`` (Ba et al. 2016).
        weight, bias: whether it has them.
    """

    kind: str = "rms"
    weight: bool = True
    bias: bool = False


RMS = Norm()


@dataclass(frozen=True, slots=True)
class QkNorm:
    """Normalisation of Q and K.

    Attributes:
        norm: what is computed.
        scope: ``head``: over each head, with the same weights [head_dim] for all; ``heads``: over
            each head, with each head's own weights; ``full``: over all heads together.
        after_rope: after the rotation instead of before it.
    """

    norm: Norm = Norm()
    scope: str = "head"
    after_rope: bool = False


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, section 2.1), in its absorbed form.

    A token's K and V are made from one vector of `rank` values, its latent, and a rotated key that
    all heads share. Both are what is cached: of the `Attention` around this, kv_heads is 1,
    head_dim (K's width) rank + rope and v_dim rank. Queries are taken into the latents' space
    (attn.k_up), head by head, and what they attend to is brought back from it (attn.v_up).

    Attributes:
        rank: of the latents.
        rope: width of the key that rotates.
        nope: width of a head's query beside its rotating part.
        value: width of a head's output.
        q_rank: queries are made from a vector of so many values, normed; None: from x.
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
        window: sliding window in tokens, or None for full attention. A query sees so many tokens up
            to itself, and where nothing is causal as many from itself on.
        chunked: the window does not slide: a query sees its own chunk of so many tokens, up to
            itself.
        tuning: (scale, floor, shift): queries are multiplied by log(1 + floor((position + shift) /
            floor)) * scale + 1 (Nakanishi 2025), after norms and rotation.
        scale: multiplies the scores; None is head_dim ** -0.5.
        clip: Q, K and V are clamped to [-clip, clip] after their projections, and norms if these
            come before the rotation.
        softcap: scores s become softcap * tanh(s / softcap), after the scale.
        slopes: per head, what a score loses per token of distance (ALiBi, Press et al. 2021);
            empty for none.
        sinks: each head has a learned score of a key that has no value.
        gated: the heads' outputs are multiplied by the sigmoid of a projection of their width.
        latent: see `Latent`; None for K and V of their own.
        v_norm: V is RMS-normed over each head, without weights.
        v_from_k: V is what K is before its norm and rotation: it has no projection of its own.
        kv_layer: the layer whose K and V are attended to, which has the same kv_heads, head_dim and
            window; this one makes and caches none. None for its own.
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
    tuning: tuple[float, float, int] | None = None
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
        """The number that multiplies Q·K."""
        return self.head_dim**-0.5 if self.scale is None else self.scale


MAX_TAPS = 16


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A layer's mixer that keeps a state of fixed size per sequence instead of keys and values.

    A projection of the token passes a causal convolution over each channel alone and SiLU. Per head
    it is then a query q and a key k [key_dim] and a value v [value_dim]; of two more numbers a, b
    of the head, the state S [key_dim, value_dim] becomes S' = d S + k u^T and the output S'^T q:

    - ``delta``, the gated delta rule (Yang et al. 2024): q and k have unit length, q is divided by
      sqrt(key_dim); d = exp(-exp(a_log) softplus(a + a_bias)), u = sigmoid(b) (v - d S^T k).
    - ``ssd``, Mamba-2 (Dao & Gu 2024), whose B are keys and C queries: t = softplus(a + a_bias)
      within time_limits, d = exp(-exp(a_log) t), u = t v; there is no b.

    Attributes:
        rule: ``delta`` or ``ssd``.
        key_heads, value_heads: value_heads is a multiple of key_heads.
        key_dim, value_dim: of a head.
        taps: tokens the convolution sees, the current one included; at most `MAX_TAPS`.
        bias: whether the projections have biases.
        conv_bias: whether the convolution has one.
        skip: each head's value times a learned number is added to its output.
        norm_groups: equal parts in which the output is RMS-normed; 0 for no norm.
        norm_shared: all parts have the same weights.
        gate_first: the output is multiplied by SiLU of a projection before it is normed, not after.
        time_limits: of t.
        scales: of ``ssd``: what the projections to z, x, B, C and a are multiplied by.
        tiled: value head h goes with key head h % key_heads, instead of those of a key head
            following one another.
    """

    rule: str
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int = 4
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
        """Width of what is convolved: queries, keys and values; under ``ssd`` x, B and C."""
        return 2 * self.key_heads * self.key_dim + self.inner

    @property
    def state_values(self) -> int:
        """Numbers (float32) that a sequence's state holds."""
        return (self.taps - 1) * self.channels + self.inner * self.key_dim


ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "swiglu_clamped")


@dataclass(frozen=True, slots=True)
class Mlp:
    """A feed-forward block: down(act(gate(x)) * up(x)), or down(act(up(x))) when not gated.

    Attributes:
        intermediate: width.
        activation: one of `ACTIVATIONS`. ``swiglu_clamped`` is gpt-oss's product of both:
            g * sigmoid(1.702 g) * (u + 1) with g = min(gate, 7) and u = up within [-7, 7].
        bias: whether gate, up and down have biases.
        gated: whether there is a gate.
        gate_scale: multiplies the gate before its activation.
    """

    intermediate: int
    activation: str = "silu"
    bias: bool = False
    gated: bool = True
    gate_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Moe:
    """A mixture of experts: the sum of the chosen experts' outputs by their weights.

    Attributes:
        experts: how many there are.
        top_k: how many a token is sent to: those of the highest scores, of equal ones the first.
        expert: each one's shape.
        scoring: ``softmax`` or ``sigmoid`` of the router's logits; ``softmax_chosen``: softmax over
            the chosen logits alone; ``sigmoid_chosen``: sigmoid of those; ``sparse_mixer``:
            Phi-3.5-MoE's rule (see csrc/route.cpp).
        normalize: the chosen weights are divided by their sum.
        scale: multiplies the weights.
        scale_inputs: the weights multiply what the experts read instead of what they make.
        router_bias: the router is affine.
        correction: a learned vector is added to the scores for choosing, not for weighing.
        groups, top_groups: experts are chosen among the top_groups of `groups` equal parts, rated
            by their two best scores (with correction) or their best one.
        shared: an expert that every token is sent to, unweighted.
        shared_gate: its output is multiplied by the sigmoid of a learned product with the token.
        jitter: of sparse_mixer, how near to the best a logit counts.
        apart: the router and the experts read x by norms of their own (router_norm, experts_norm),
            the shared expert by the layer's; what the shared one makes and what the others do is
            normed (shared_post_norm, experts_post_norm) before the two are added.
        router_scale: multiplies the router's logits.
        expert_scales: each expert's weight is multiplied by a learned number, once it is chosen.
    """

    experts: int
    top_k: int
    expert: Mlp
    scoring: str = "softmax"
    normalize: bool = True
    scale: float = 1.0
    scale_inputs: bool = False
    router_bias: bool = False
    correction: bool = False
    groups: int = 1
    top_groups: int = 1
    shared: Mlp | None = None
    shared_gate: bool = False
    jitter: float = 0.0
    apart: bool = False
    router_scale: float = 1.0
    expert_scales: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: x += post(mixer(pre(x))), then x += post(mlp(pre(x))).

    Attributes:
        mixer, mlp: the blocks; a layer may have one of them alone.
        beside: a recurrent mixer beside attention: it reads the same norm of x, and both outputs
            are added to x.
        pre_norm, post_norm: which of the norms there are.
        parallel: both blocks read the same x, and both outputs are added to it.
        shared_norm: of parallel blocks with one norm for both (attn_norm).
        bare_mixer: there is no norm before the mixer, whatever pre_norm says.
        sum_norm: the post norms are of x with the block's output: x = post(x + block(x)), as in the
            first transformer (Vaswani et al. 2017); the same in all layers.
        scaled: x is multiplied by a learned number behind the layer's blocks.
        mixer_scale, beside_scale, mlp_scale: what the blocks' outputs are multiplied by.
    """

    mixer: Attention | Recurrent | None
    mlp: Mlp | Moe | None
    pre_norm: bool = True
    post_norm: bool = False
    parallel: bool = False
    shared_norm: bool = False
    bare_mixer: bool = False
    sum_norm: bool = False
    beside: Recurrent | None = None
    scaled: bool = False
    mixer_scale: float = 1.0
    beside_scale: float = 1.0
    mlp_scale: float = 1.0

    def has_norm(self, part: str) -> bool:
        """Whether there is a norm of its own before the block ``attn`` or ``mlp``."""
        left_out = self.shared_norm if part == "mlp" else self.bare_mixer
        return self.pre_norm and not left_out

    @property
    def attention(self) -> Attention | None:
        """The layer's attention, if it has any."""
        return self.mixer if isinstance(self.mixer, Attention) else None

    @property
    def recurrent(self) -> Recurrent | None:
        """The layer's recurrent mixer, if it has any, alone or beside attention."""
        return self.mixer if isinstance(self.mixer, Recurrent) else self.beside


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """An input of each layer's own beside x: per-layer embeddings (Gemma 3n and 4).

    A token has a vector of `width` values for each layer: sum_scale * (embed_scale * its row of a
    second embedding + norm(projection_scale * projection of the first embedding)). At its end a
    layer adds norm(out(act(gate(x)) * the vector)) to x.

    Attributes:
        width: of a layer's vector.
        vocab: rows of the second embedding, at least as many as the model has tokens.
        activation: one of `ACTIVATIONS` that has no gate.
        embed_scale, projection_scale, sum_scale: see above.
    """

    width: int
    vocab: int
    activation: str
    embed_scale: float = 1.0
    projection_scale: float = 1.0
    sum_scale: float = 1.0
