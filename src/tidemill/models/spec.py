"""DecoderSpec: a decoder as data, in the field's standard terms. Executors run any spec.

A family (families/<name>.py) turns a checkpoint's config into a spec and names its tensors; no
family has a forward pass of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidemill.models import tensors as names
from tidemill.models.foreign import Foreign
from tidemill.models.kv_types import vector_bytes
from tidemill.models.rope import Rope, RopeScaling, inverse_frequencies

__all__ = [
    "ACTIVATIONS", "Attention", "CacheGroup", "DecoderSpec", "Latent", "Layer", "Mlp", "Moe",
    "Norm", "QkNorm", "Recurrent", "Rope", "RopeScaling", "inverse_frequencies",
]  # fmt: skip


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
    """

    intermediate: int
    activation: str = "silu"
    bias: bool = False
    gated: bool = True


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


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: x += post(mixer(pre(x))), then x += post(mlp(pre(x))).

    Attributes:
        mixer, mlp: the blocks; a layer may have one of them alone.
        pre_norm, post_norm: which of the norms there are.
        parallel: both blocks read the same x, and both outputs are added to it.
        shared_norm: of parallel blocks with one norm for both (attn_norm).
        bare_mixer: there is no norm before the mixer, whatever pre_norm says.
        sum_norm: the post norms are of x with the block's output: x = post(x + block(x)), as in the
            first transformer (Vaswani et al. 2017); the same in all layers.
    """

    mixer: Attention | Recurrent | None
    mlp: Mlp | Moe | None
    pre_norm: bool = True
    post_norm: bool = False
    parallel: bool = False
    shared_norm: bool = False
    bare_mixer: bool = False
    sum_norm: bool = False

    def has_norm(self, part: str) -> bool:
        """Whether there is a norm of its own before the block ``attn`` or ``mlp``."""
        left_out = self.shared_norm if part == "mlp" else self.bare_mixer
        return self.pre_norm and not left_out


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share a block table.

    Attributes:
        kind: ``full`` attention, or sliding ``window``.
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
        norm_eps: epsilon of every norm.
        tied_embeddings: the output projection is the embedding.
        weights_dtype: type most float weights are stored in ("F32", "F16", "BF16", or a GGUF type).
        norm: kind of the layers' norms and the last one.
        learned_positions: a vector per position is added to the embedding.
        embed_norm: the embedding is normed.
        embed_scale: multiplies the embedding (before position vectors are added).
        residual_scale: multiplies each block's output before it is added.
        logit_scale: multiplies the logits.
        logit_softcap: logits l become softcap * tanh(l / softcap), after the scale.
        head_bias: the output projection has a bias.
        generates: it has an output projection; without one it only gives hidden states.
        causal: a token sees those before it and itself; else it sees its whole input.
        token_types: vectors for kinds of texts, one of which is added to every embedding; 0 without
            them.
        last_norm: there is a norm behind the last layer.
        foreign: no family describes the model, and it has no layers here: see `Foreign`.
    """

    family: str
    vocab_size: int
    hidden_size: int
    max_positions: int
    layers: tuple[Layer, ...]
    norm_eps: float
    tied_embeddings: bool
    weights_dtype: str = "BF16"
    norm: Norm = Norm()
    learned_positions: bool = False
    embed_norm: bool = False
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    head_bias: bool = False
    generates: bool = True
    causal: bool = True
    token_types: int = 0
    last_norm: bool = True
    foreign: Foreign | None = None

    def attentions(self) -> dict[int, Attention]:
        """Layer -> its mixer, where that is attention."""
        mixers = enumerate(layer.mixer for layer in self.layers)
        return {i: mixer for i, mixer in mixers if isinstance(mixer, Attention)}

    def recurrences(self) -> dict[int, Recurrent]:
        """Layer -> its mixer, where that is recurrent."""
        mixers = enumerate(layer.mixer for layer in self.layers)
        return {i: mixer for i, mixer in mixers if isinstance(mixer, Recurrent)}

    @property
    def state_bytes(self) -> int:
        """Bytes of one state of all recurrent layers; 0 where there are none.

        A foreign model's state is the whole of what a sequence leaves, and half of the two states
        that a sequence has: one of them is always empty.
        """
        if self.foreign is not None:
            return max(1, -(-self.foreign.fixed_bytes // 2))
        return sum(4 * mixer.state_values for mixer in self.recurrences().values())

    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """The cache groups of the model, in the order block tables are given.

        A foreign model's one group has no layers: its blocks count tokens, and hold nothing.
        """
        if self.foreign is not None:
            return (CacheGroup("full", ()),)
        full: list[int] = []
        windows: dict[int, list[int]] = {}
        for i, mixer in self.attentions().items():
            if mixer.window is None or not self.causal:  # an encoder's input is kept whole
                full.append(i)
            else:
                windows.setdefault(mixer.window, []).append(i)
        groups = [CacheGroup("full", tuple(full))] if full else []
        groups += [CacheGroup("window", tuple(ls), w) for w, ls in sorted(windows.items())]
        return tuple(groups)

    def kv_bytes_per_token(self, kv_dtype: str) -> int:
        """Bytes of KV cache that one token takes over all layers.

        Args:
            kv_dtype: ``float32``, ``bfloat16``, ``int8`` or ``int4`` (the latter two with scales).
                A foreign model's are as it keeps them.
        """
        if self.foreign is not None:
            return max(1, self.foreign.token_bytes)
        return sum(
            mixer.kv_heads
            * (
                vector_bytes(kv_dtype, mixer.head_dim, key=True)
                + vector_bytes(kv_dtype, mixer.v_dim, key=False)
            )
            for mixer in self.attentions().values()
        )

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Canonical name -> shape of every tensor the model must have, no more and no less; of a
        foreign model, none."""
        if self.foreign is not None:
            return {}
        width = (self.hidden_size,)
        shapes: dict[str, tuple[int, ...]] = {names.EMBED: (self.vocab_size, self.hidden_size)}
        if self.learned_positions:
            shapes[names.POSITIONS] = (self.max_positions, self.hidden_size)
        if self.embed_norm:
            shapes |= _norm_shapes("embed_norm", self.norm, width)
        if self.token_types:
            shapes[names.TYPES] = (self.token_types, self.hidden_size)
        if self.last_norm:
            shapes |= _norm_shapes("final_norm", self.norm, width)
        if self.generates and not self.tied_embeddings:
            shapes[names.LM_HEAD] = (self.vocab_size, self.hidden_size)
        if self.generates and self.head_bias:
            shapes[names.LM_HEAD_BIAS] = (self.vocab_size,)
        for i, layer in enumerate(self.layers):
            for tensor, shape in self._layer_shapes(layer).items():
                shapes[names.layer_name(i, tensor)] = shape
        return shapes

    def parameters(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for shape in self.expected_tensors().values())

    def _layer_shapes(self, layer: Layer) -> dict[str, tuple[int, ...]]:
        hidden = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {}
        blocks = {"attn": layer.mixer, "mlp": layer.mlp}
        for part in (part for part, block in blocks.items() if block is not None):
            if layer.has_norm(part):
                shapes |= _norm_shapes(f"{part}_norm", self.norm, (hidden,))
            if layer.post_norm:
                shapes |= _norm_shapes(f"{part}_post_norm", self.norm, (hidden,))
        if isinstance(layer.mixer, Recurrent):
            shapes |= _recurrent_shapes(hidden, layer.mixer)
        elif layer.mixer is not None:
            shapes |= _attention_shapes(hidden, layer.mixer)
        if isinstance(layer.mlp, Moe):
            shapes |= _moe_shapes(hidden, layer.mlp)
        elif layer.mlp is not None:
            shapes |= _mlp_shapes("mlp", hidden, layer.mlp)
        return shapes


def _norm_shapes(name: str, norm: Norm, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    present = {"weight": norm.weight, "bias": norm.bias}
    return {f"{name}.{part}": shape for part, there in present.items() if there}


def _linear_shapes(name: str, rows: int, columns: int, bias: bool) -> dict[str, tuple[int, ...]]:
    weight: dict[str, tuple[int, ...]] = {f"{name}.weight": (rows, columns)}
    return weight | ({f"{name}.bias": (rows,)} if bias else {})


def _attention_shapes(hidden: int, attn: Attention) -> dict[str, tuple[int, ...]]:
    if attn.latent is not None:
        return _latent_shapes(hidden, attn, attn.latent)
    q, kv = attn.heads * attn.head_dim, attn.kv_heads * attn.head_dim
    shapes = _linear_shapes("attn.q", q, hidden, attn.q_bias)
    shapes |= _linear_shapes("attn.k", kv, hidden, attn.k_bias)
    shapes |= _linear_shapes("attn.v", kv, hidden, attn.v_bias)
    shapes |= _linear_shapes("attn.o", hidden, q, attn.o_bias)
    if attn.gated:
        shapes |= _linear_shapes("attn.gate", q, hidden, attn.q_bias)
    if attn.qk_norm is not None:
        for name, width in (("attn.q_norm", q), ("attn.k_norm", kv)):
            shape = (attn.head_dim if attn.qk_norm.scope == "head" else width,)
            shapes |= _norm_shapes(name, attn.qk_norm.norm, shape)
    if attn.sinks:
        shapes["attn.sinks"] = (attn.heads,)
    return shapes


def _recurrent_shapes(hidden: int, mixer: Recurrent) -> dict[str, tuple[int, ...]]:
    heads, inner, bias = mixer.value_heads, mixer.inner, mixer.bias
    shapes = _linear_shapes("rec.qkv", mixer.channels, hidden, bias)
    shapes |= _linear_shapes("rec.z", inner, hidden, bias)
    shapes |= _linear_shapes("rec.a", heads, hidden, bias)
    if mixer.rule == "delta":
        shapes |= _linear_shapes("rec.b", heads, hidden, bias)
    shapes |= _linear_shapes("rec.out", hidden, inner, bias)
    # Channel after channel; a vector, since it is no matrix that anything is multiplied with.
    shapes["rec.conv.weight"] = (mixer.channels * mixer.taps,)
    if mixer.conv_bias:
        shapes["rec.conv.bias"] = (mixer.channels,)
    shapes |= {"rec.a_log": (heads,), "rec.a_bias": (heads,)}
    if mixer.skip:
        shapes["rec.skip"] = (heads,)
    if mixer.norm_groups:
        parts = mixer.norm_groups if mixer.norm_shared else 1
        shapes["rec.norm.weight"] = (inner // parts,)
    return shapes


def _latent_shapes(hidden: int, attn: Attention, latent: Latent) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    norm, source = Norm(), hidden
    if latent.q_rank is not None:
        source = latent.q_rank
        shapes |= _linear_shapes("attn.q_down", source, hidden, latent.down_bias)
        shapes |= _norm_shapes("attn.q_down_norm", norm, (source,))
    width = latent.rank + latent.rope
    shapes |= _linear_shapes("attn.q", attn.heads * (latent.nope + latent.rope), source, False)
    shapes |= _linear_shapes("attn.kv_down", width, hidden, latent.down_bias)
    shapes |= _norm_shapes("attn.kv_down_norm", norm, (latent.rank,))
    for head in range(attn.heads):
        shapes |= _linear_shapes(f"attn.k_up.{head}", latent.rank, latent.nope, False)
        shapes |= _linear_shapes(f"attn.v_up.{head}", latent.value, latent.rank, False)
    return shapes | _linear_shapes("attn.o", hidden, attn.heads * latent.value, attn.o_bias)


def _mlp_shapes(name: str, hidden: int, mlp: Mlp) -> dict[str, tuple[int, ...]]:
    shapes = _linear_shapes(f"{name}.up", mlp.intermediate, hidden, mlp.bias)
    if mlp.gated:
        shapes |= _linear_shapes(f"{name}.gate", mlp.intermediate, hidden, mlp.bias)
    return shapes | _linear_shapes(f"{name}.down", hidden, mlp.intermediate, mlp.bias)


def _moe_shapes(hidden: int, moe: Moe) -> dict[str, tuple[int, ...]]:
    shapes = _linear_shapes("mlp.router", moe.experts, hidden, moe.router_bias)
    if moe.correction:
        shapes["mlp.correction"] = (moe.experts,)
    for expert in range(moe.experts):
        shapes |= _mlp_shapes(f"mlp.experts.{expert}", hidden, moe.expert)
    if moe.shared is not None:
        shapes |= _mlp_shapes("mlp.shared", hidden, moe.shared)
    if moe.shared_gate:
        shapes["mlp.shared_gate.weight"] = (1, hidden)
    return shapes
