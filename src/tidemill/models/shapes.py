"""The tensors of a decoder's parts: canonical name -> shape."""

from __future__ import annotations

from tidemill.models import tensors as names
from tidemill.models.layers import Attention, Latent, Layer, LayerInputs, Mlp, Moe, Norm, Recurrent

Shapes = dict[str, tuple[int, ...]]

# For a mixture of experts whose parts have norms of their own.
APART_NORMS = ("router_norm", "experts_norm", "experts_post_norm", "shared_post_norm")


def layer_shapes(
    layer: Layer, hidden: int, norm: Norm, inputs: LayerInputs | None = None
) -> Shapes:
    """Tensors of a layer, their names without ``layers.N.``.

    Args:
        layer: the layer.
        hidden: the model's hidden size.
        norm: kind of the layer's norms.
        inputs: for models with per-layer embeddings.
    """
    shapes: Shapes = {}
    blocks = {"attn": layer.mixer, "mlp": layer.mlp}
    for part in (part for part, block in blocks.items() if block is not None):
        if layer.has_norm(part):
            shapes |= norm_shapes(f"{part}_norm", norm, (hidden,))
        if layer.post_norm:
            shapes |= norm_shapes(f"{part}_post_norm", norm, (hidden,))
    if layer.recurrent is not None:
        shapes |= _recurrent_shapes(hidden, layer.recurrent)
    if layer.attention is not None:
        shapes |= _attention_shapes(hidden, layer.attention)
    if isinstance(layer.mlp, Moe):
        shapes |= _moe_shapes(hidden, layer.mlp, norm)
    elif layer.mlp is not None:
        shapes |= _mlp_shapes("mlp", hidden, layer.mlp)
    if inputs is not None:
        shapes |= _linear_shapes("inputs.gate", inputs.width, hidden, False)
        shapes |= _linear_shapes("inputs.out", hidden, inputs.width, False)
        shapes |= norm_shapes("inputs_post_norm", norm, (hidden,))
    if layer.scaled:
        shapes["scale"] = (1,)
    return shapes


def inputs_shapes(inputs: LayerInputs, layers: int, hidden: int, norm: Norm) -> Shapes:
    """Tensors of the per-layer embeddings."""
    width = layers * inputs.width
    return {
        names.LAYER_INPUTS: (inputs.vocab, width),
        **_linear_shapes("layer_inputs.projection", width, hidden, False),
        **norm_shapes("layer_inputs.norm", norm, (inputs.width,)),
    }


def norm_shapes(name: str, norm: Norm, shape: tuple[int, ...]) -> Shapes:
    present = {"weight": norm.weight, "bias": norm.bias}
    return {f"{name}.{part}": shape for part, there in present.items() if there}


def _linear_shapes(name: str, rows: int, columns: int, bias: bool) -> Shapes:
    weight: Shapes = {f"{name}.weight": (rows, columns)}
    return weight | ({f"{name}.bias": (rows,)} if bias else {})


def _attention_shapes(hidden: int, attn: Attention) -> Shapes:
    if attn.latent is not None:
        return _latent_shapes(hidden, attn, attn.latent)
    q, kv = attn.heads * attn.head_dim, attn.kv_heads * attn.head_dim
    own = attn.kv_layer is None
    shapes = _linear_shapes("attn.q", q, hidden, attn.q_bias)
    if own:
        shapes |= _linear_shapes("attn.k", kv, hidden, attn.k_bias)
    if own and not attn.v_from_k:
        shapes |= _linear_shapes("attn.v", kv, hidden, attn.v_bias)
    shapes |= _linear_shapes("attn.o", hidden, q, attn.o_bias)
    if attn.gated:
        shapes |= _linear_shapes("attn.gate", q, hidden, attn.q_bias)
    if attn.qk_norm is not None:
        for name, width in (("attn.q_norm", q), ("attn.k_norm", kv))[: 2 if own else 1]:
            shape = (attn.head_dim if attn.qk_norm.scope == "head" else width,)
            shapes |= norm_shapes(name, attn.qk_norm.norm, shape)
    if attn.sinks:
        shapes["attn.sinks"] = (attn.heads,)
    return shapes


def _recurrent_shapes(hidden: int, mixer: Recurrent) -> Shapes:
    heads, inner, bias = mixer.value_heads, mixer.inner, mixer.bias
    shapes = _linear_shapes("rec.qkv", mixer.channels, hidden, bias)
    shapes |= _linear_shapes("rec.z", inner, hidden, bias)
    shapes |= _linear_shapes("rec.a", heads, hidden, bias)
    if mixer.rule == "delta":
        shapes |= _linear_shapes("rec.b", heads, hidden, bias)
    shapes |= _linear_shapes("rec.out", hidden, inner, bias)
    # Channel by channel; stored as a vector, since it is not the matrix of a product.
    shapes["rec.conv.weight"] = (mixer.channels * mixer.conv_kernel,)
    if mixer.conv_bias:
        shapes["rec.conv.bias"] = (mixer.channels,)
    shapes |= {"rec.a_log": (heads,), "rec.a_bias": (heads,)}
    if mixer.skip:
        shapes["rec.skip"] = (heads,)
    if mixer.norm_groups:
        parts = mixer.norm_groups if mixer.norm_shared else 1
        shapes["rec.norm.weight"] = (inner // parts,)
    return shapes


def _latent_shapes(hidden: int, attn: Attention, latent: Latent) -> Shapes:
    shapes: Shapes = {}
    norm, source = Norm(), hidden
    if latent.q_rank is not None:
        source = latent.q_rank
        shapes |= _linear_shapes("attn.q_down", source, hidden, latent.down_bias)
        shapes |= norm_shapes("attn.q_down_norm", norm, (source,))
    width = latent.rank + latent.rope
    shapes |= _linear_shapes("attn.q", attn.heads * (latent.nope + latent.rope), source, False)
    shapes |= _linear_shapes("attn.kv_down", width, hidden, latent.down_bias)
    shapes |= norm_shapes("attn.kv_down_norm", norm, (latent.rank,))
    for head in range(attn.heads):
        shapes |= _linear_shapes(f"attn.k_up.{head}", latent.rank, latent.nope, False)
        shapes |= _linear_shapes(f"attn.v_up.{head}", latent.value, latent.rank, False)
    return shapes | _linear_shapes("attn.o", hidden, attn.heads * latent.value, attn.o_bias)


def _mlp_shapes(name: str, hidden: int, mlp: Mlp) -> Shapes:
    shapes = _linear_shapes(f"{name}.up", mlp.intermediate, hidden, mlp.bias)
    if mlp.gated:
        shapes |= _linear_shapes(f"{name}.gate", mlp.intermediate, hidden, mlp.bias)
    return shapes | _linear_shapes(f"{name}.down", hidden, mlp.intermediate, mlp.bias)


def _moe_shapes(hidden: int, moe: Moe, norm: Norm) -> Shapes:
    shapes = _linear_shapes("mlp.router", moe.experts, hidden, moe.router_bias)
    if moe.e_score_correction_bias:
        shapes["mlp.correction"] = (moe.experts,)
    for expert in range(moe.experts):
        shapes |= _mlp_shapes(f"mlp.experts.{expert}", hidden, moe.expert)
    if moe.shared is not None:
        shapes |= _mlp_shapes("mlp.shared", hidden, moe.shared)
    if moe.shared_gate:
        shapes["mlp.shared_gate.weight"] = (1, hidden)
    if moe.expert_scales:
        shapes["mlp.expert_scales"] = (moe.experts,)
    if moe.separate_norms:
        for part in APART_NORMS:
            shapes |= norm_shapes(f"mlp.{part}", norm, (hidden,))
    return shapes
