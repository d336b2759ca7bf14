"""Gemma 4's text part (Gemma team 2026): wider heads on full-attention layers. Depending on the
size, K and V shared between layers, per-layer embeddings, or experts parallel to the dense MLP."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import model_file_error, unsupported
from tidemill.models.config import MAX_LAYERS, MAX_POSITIONS, ConfigReader, checked_integer
from tidemill.models.dense import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    Biases,
    Family,
    check_layer_types,
    dense_spec,
    read_activation,
)
from tidemill.models.families.gemma2 import RULES as GEMMA2_RULES
from tidemill.models.gguf_family import WINDOW, GgufFamily, GgufFile
from tidemill.models.naming import GGUF_EXPERTS, STACKED_EXPERTS, Rules
from tidemill.models.rope_config import read_rope
from tidemill.models.spec import DecoderSpec, LayerInputs, Mlp, Moe, QkNorm, Rope

_FULL, _SLIDING = "full_attention", "sliding_attention"
_KINDS = {_FULL: True, _SLIDING: False}
_PATTERN = 6
_GLOBAL_HEAD_DIM = 512
_ROPES = {
    _SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    _FULL: {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
}

_LAYER = "model.layers.{i}."
_OURS = "layers.{i}."
RULES: Rules = (
    (_LAYER + "layer_scalar", _OURS + "scale"),
    (_LAYER + "per_layer_input_gate.weight", _OURS + "inputs.gate.weight"),
    (_LAYER + "per_layer_projection.weight", _OURS + "inputs.out.weight"),
    (_LAYER + "post_per_layer_input_norm.weight", _OURS + "inputs_post_norm.weight"),
    ("model.embed_tokens_per_layer.weight", "layer_inputs.embed.weight"),
    ("model.per_layer_model_projection.weight", "layer_inputs.projection.weight"),
    ("model.per_layer_projection_norm.weight", "layer_inputs.norm.weight"),
    (_LAYER + "router.proj.weight", _OURS + "mlp.router.weight"),
    (_LAYER + "router.scale", _OURS + "mlp.router_norm.weight"),
    (_LAYER + "router.per_expert_scale", _OURS + "mlp.expert_scales"),
    (_LAYER + "pre_feedforward_layernorm_2.weight", _OURS + "mlp.experts_norm.weight"),
    (_LAYER + "post_feedforward_layernorm_2.weight", _OURS + "mlp.experts_post_norm.weight"),
    (_LAYER + "post_feedforward_layernorm_1.weight", _OURS + "mlp.shared_post_norm.weight"),
    *((name.replace(".mlp.", "."), ours) for name, ours in STACKED_EXPERTS),
    (_LAYER + "mlp.{p}_proj.weight", _OURS + "mlp.shared.{p}.weight"),  # parallel to experts
    *GEMMA2_RULES,
)
_BLOCK = "blk.{i}."
# Of sliding layers: V's width and the rotating width, which equal the heads' width.
_LOCAL_WIDTHS = ("attention.value_length_swa", "rope.dimension_count_swa")
GGUF: Rules = (
    ("per_layer_token_embd.weight", "layer_inputs.embed.weight"),
    ("per_layer_model_proj.weight", "layer_inputs.projection.weight"),
    ("per_layer_proj_norm.weight", "layer_inputs.norm.weight"),
    (_BLOCK + "inp_gate.weight", _OURS + "inputs.gate.weight"),
    (_BLOCK + "proj.weight", _OURS + "inputs.out.weight"),
    (_BLOCK + "post_norm.weight", _OURS + "inputs_post_norm.weight"),
    (_BLOCK + "layer_output_scale.weight", _OURS + "scale"),
    (_BLOCK + "ffn_gate_inp.scale", _OURS + "mlp.router_norm.weight"),
    (_BLOCK + "ffn_down_exps.scale", _OURS + "mlp.expert_scales"),
    (_BLOCK + "pre_ffw_norm_2.weight", _OURS + "mlp.experts_norm.weight"),
    (_BLOCK + "post_ffw_norm_1.weight", _OURS + "mlp.shared_post_norm.weight"),
    (_BLOCK + "post_ffw_norm_2.weight", _OURS + "mlp.experts_post_norm.weight"),
    (_BLOCK + "ffn_gate_up_exps.weight", STACKED_EXPERTS[0][1]),
    (_BLOCK + "ffn_{p}.weight", _OURS + "mlp.shared.{p}.weight"),  # parallel to experts
    *GGUF_EXPERTS,
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read the config of Gemma 4's text part.

    Keys besides the common ones: hidden_activation, attention_bias, sliding_window, layer_types
    (default: every sixth layer is full; the last one always is), final_logit_softcapping; for full
    layers global_head_dim and num_global_key_value_heads (with attention_k_eq_v), or both by layer
    in per_layer_config; attention_k_eq_v (of full layers V is K before its norm);
    num_kv_shared_layers (the last layers read K and V of the last other one of their type) and
    use_double_wide_mlp (theirs); hidden_size_per_layer_input and vocab_size_per_layer_input;
    enable_moe_block, num_experts, top_k_experts, moe_intermediate_size.
    """
    given = {**config, "rope_parameters": config.get("rope_parameters") or _ROPES}
    reader = ConfigReader({"head_dim": 256, **given}, "gemma4", {"hidden_act": "hidden_activation"})
    # Bidirectional attention for images ("vision") does not affect text.
    reader.must_be("use_bidirectional_attention", False, "vision")
    bias = reader.boolean("attention_bias")
    full = _full_layers(reader)
    window = reader.integer("sliding_window", 512, high=MAX_POSITIONS)
    shapes, sources = _head_shapes(reader, full), _kv_layers(reader, full)
    same_v = reader.boolean("attention_k_eq_v")
    wide = 2 if reader.boolean("use_double_wide_mlp") else 1
    experts = _experts(reader)

    def ropes(layers: int, head_dim: int) -> list[Rope | None]:
        dims = [shapes.get(i, (head_dim, 0))[0] for i in range(layers)]
        parts = [_FULL if whole else _SLIDING for whole in full]
        return [read_rope(reader, d, part=p) for d, p in zip(dims, parts, strict=True)]

    plain = dense_spec(
        reader,
        "gemma4",
        biases=Biases(q=bias, k=bias, v=bias, o=bias),
        qk_norm=QkNorm(),
        windows=lambda layers: [None if whole else window for whole in full],
        ropes=ropes,
        activation="gelu_pytorch_tanh",
        attention={"scale": 1.0, "v_norm": True},
        layer={"post_norm": True, "scaled": True},
        tied=True,
        embed_scale=reader.integer("hidden_size") ** 0.5,
        logit_softcap=reader.optional_number("final_logit_softcapping"),
        layer_inputs=_layer_inputs(reader),
    )
    layers = []
    for i, layer in enumerate(plain.layers):
        mixer, mlp = layer.attention, layer.mlp
        assert mixer is not None and isinstance(mlp, Mlp)
        head_dim, kv_heads = shapes.get(i, (mixer.head_dim, mixer.kv_heads))
        mixer = dataclasses.replace(
            mixer,
            head_dim=head_dim,
            kv_heads=kv_heads,
            v_from_k=same_v and full[i],
            kv_layer=sources.get(i),
        )
        if i in sources:
            mlp = dataclasses.replace(mlp, intermediate=mlp.intermediate * wide)
        block = mlp if experts is None else dataclasses.replace(experts, shared=mlp)
        layers.append(dataclasses.replace(layer, mixer=mixer, mlp=block))
    return dataclasses.replace(plain, layers=tuple(layers))


def spec_unified(config: Mapping[str, Any]) -> DecoderSpec:
    """Read the config of the text part of the encoder-free Gemma 4 (12B): Gemma 4's, except that an
    absent sliding_window is 1024 and an absent hidden_size_per_layer_input is 0."""
    return spec({"sliding_window": 1024, "hidden_size_per_layer_input": 0, **config})


def _implied(file: GgufFile) -> dict[str, Any]:
    """Config keys from per-layer lists, from keys for the two kinds of layers, and from tensors."""
    config, keys = file.config, file.keys
    types = config.get("layer_types") or []
    full = [i for i, kind in enumerate(types) if kind == _FULL]
    wide = {"head_dim": config.get("head_dim")}
    found: dict[str, Any] = {}
    for name, values in file.lists.items():
        if not types or len(values) != len(types):
            raise model_file_error(
                f"a GGUF list of {name} has {len(values)} values for {len(types)} layers"
            )
        kinds = {kind: value for kind, value in reversed([*zip(types, values, strict=True)])}
        found[name] = kinds.get(_SLIDING, values[0])
        if name == "num_key_value_heads" and full:
            wide[name] = kinds[_FULL]
    local_dim = keys.get("attention.key_length_swa", config.get("head_dim"))
    for key in _LOCAL_WIDTHS:
        if keys.get(key, local_dim) != local_dim:
            raise unsupported(
                f"gemma4.{key}", f"GGUF key 'gemma4.{key}' must be {local_dim!r} here"
            )
    widths = file.lists.get("intermediate_size")
    table = file.tensors.get("per_layer_token_embd.weight")
    if table:
        found["vocab_size_per_layer_input"] = table[0]
    local = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", 10000.0)}
    owners = [i for i in full if f"blk.{i}.attn_k.weight" in file.tensors]
    return found | {
        "head_dim": local_dim,
        "per_layer_config": {str(i): wide for i in full},
        "use_double_wide_mlp": widths is not None and widths[-1] == 2 * widths[0],
        "attention_k_eq_v": any(f"blk.{i}.attn_v.weight" not in file.tensors for i in owners),
        "enable_moe_block": bool(config.get("num_experts")),
        "hidden_size_per_layer_input": config.get("hidden_size_per_layer_input", 0),
        "rope_parameters": {
            _SLIDING: local, _FULL: {"rope_type": "default", "rope_theta": config.get("rope_theta")}
        },
    }  # fmt: skip


def _full_layers(reader: ConfigReader) -> list[bool]:
    """For each layer, whether it has full attention."""
    count = reader.integer("num_hidden_layers", high=MAX_LAYERS)
    types = reader.raw("layer_types")
    if types is None:
        types = [_SLIDING if (i + 1) % _PATTERN else _FULL for i in range(count)]
    check_layer_types(types, count, _KINDS)
    return [_KINDS[kind] for kind in types[:-1]] + [True]


def _head_shapes(reader: ConfigReader, full: list[bool]) -> dict[int, tuple[int, int]]:
    """Layer -> (head_dim, kv_heads), for layers that differ from the others."""
    head_dim = reader.integer("head_dim", high=MAX_HEAD_DIM)
    heads = reader.integer("num_attention_heads", high=MAX_HEADS)
    kv_heads = reader.integer("num_key_value_heads", heads, high=MAX_HEADS)
    other = reader.optional_integer("num_global_key_value_heads", high=MAX_HEADS)
    wide = {
        "head_dim": reader.integer("global_head_dim", _GLOBAL_HEAD_DIM, high=MAX_HEAD_DIM),
        "num_key_value_heads": other if other and reader.boolean("attention_k_eq_v") else kv_heads,
    }
    given = reader.raw("per_layer_config")
    if given is None:
        given = {str(i): wide for i, whole in enumerate(full) if whole}
    if not isinstance(given, dict) or not all(isinstance(v, dict) for v in given.values()):
        raise model_file_error("per_layer_config must be an object", param="per_layer_config")
    found = {}
    for name, values in given.items():
        key = f"per_layer_config.{str(name)[:20]}"
        if not str(name).isdecimal() or int(name) >= len(full):
            raise model_file_error(f"{key}: the model has no such layer", param="per_layer_config")
        if unknown := values.keys() - wide:
            raise unsupported(key, f"{key}: {sorted(unknown)[0]!r} is not known here")
        dim = checked_integer(f"{key}.head_dim", values.get("head_dim", head_dim), 2, MAX_HEAD_DIM)
        shared = checked_integer(
            f"{key}.num_key_value_heads", values.get("num_key_value_heads", kv_heads), 1, heads
        )
        if dim % 2 or heads % shared:
            raise model_file_error(
                f"{key}: head_dim ({dim}) must be even and num_attention_heads ({heads}) a "
                f"multiple of num_key_value_heads ({shared})",
                param=key,
            )
        found[int(name)] = (dim, shared)
    return found


def _kv_layers(reader: ConfigReader, full: list[bool]) -> dict[int, int]:
    """Layer -> the layer whose K and V it reads: the last of its type that computes its own."""
    count = len(full)
    first = count - reader.integer("num_kv_shared_layers", 0, low=0, high=count)
    last = {kind: i for i, kind in enumerate(full[:first])}
    for kind in full[first:]:
        if kind not in last:
            raise model_file_error(
                f"num_kv_shared_layers ({count - first}) leaves no layer of one type that computes "
                "K and V",
                param="num_kv_shared_layers",
            )
    return {i: last[full[i]] for i in range(first, count)}


def _layer_inputs(reader: ConfigReader) -> LayerInputs | None:
    width = reader.integer("hidden_size_per_layer_input", 256, low=0)
    tokens = reader.integer("vocab_size", 262144)
    vocab = reader.integer("vocab_size_per_layer_input", tokens)
    if not width:
        return None
    if vocab < tokens:
        raise unsupported(
            "vocab_size_per_layer_input",
            f"vocab_size_per_layer_input ({vocab}) is less than vocab_size ({tokens}): some "
            "tokens would have no per-layer embedding",
        )
    return LayerInputs(
        width,
        vocab,
        read_activation(reader, "gelu_pytorch_tanh"),
        embed_scale=width**0.5,
        projection_scale=reader.integer("hidden_size") ** -0.5,
        sum_scale=2.0**-0.5,
    )


def _experts(reader: ConfigReader) -> Moe | None:
    """The experts parallel to each layer's dense MLP, which acts as a shared expert."""
    there = reader.boolean("enable_moe_block")
    for key in ("num_experts", "top_k_experts", "moe_intermediate_size"):
        reader.raw(key)
    if not there:
        return None
    experts = reader.integer("num_experts", high=MAX_EXPERTS)
    return Moe(
        experts,
        reader.integer("top_k_experts", high=experts),
        Mlp(
            reader.integer("moe_intermediate_size"),
            read_activation(reader, "gelu_pytorch_tanh"),
        ),
        separate_norms=True,
        router_scale=reader.integer("hidden_size") ** -0.5,
        expert_scales=True,
    )


FAMILY = Family(
    name="gemma4",
    architectures=("Gemma4ForCausalLM",),
    spec=spec,
    rules=RULES,
    gguf=GgufFamily(
        arch="gemma4",
        rules=GGUF,
        keys={
            **WINDOW,
            "final_logit_softcapping": "final_logit_softcapping",
            "attention.shared_kv_layers": "num_kv_shared_layers",
            "embedding_length_per_layer_input": "hidden_size_per_layer_input",
            "expert_count": "num_experts",
            "expert_used_count": "top_k_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        unused=frozenset({"attention.key_length_swa", "rope.freq_base_swa", *_LOCAL_WIDTHS}),
        period=_PATTERN,
        implied=_implied,
        by_layer=frozenset({"attention.head_count_kv", "feed_forward_length"}),
        full_factors=True,
    ),
)  # fmt: skip
UNIFIED = dataclasses.replace(
    FAMILY, architectures=("Gemma4UnifiedForCausalLM",), spec=spec_unified, gguf=None
)
