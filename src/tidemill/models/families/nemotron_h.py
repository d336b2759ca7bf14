"""Nemotron-H and Nemotron 3 (NVIDIA 2025): layers with one block each: Mamba-2, attention or an
MLP."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import model_file_error
from tidemill.models.config import MAX_LAYERS, ConfigReader
from tidemill.models.dense import (
    MAX_HEADS,
    Biases,
    Family,
    check_layer_types,
    dense_spec,
    read_top_k,
)
from tidemill.models.families.mamba import (
    GGUF_CONV_BIAS,
    GGUF_MIXER,
    GGUF_STORED,
    gguf_widths,
    mamba2,
    mixer_rules,
)
from tidemill.models.gguf_family import EXPERTS, INNER, GgufFamily, GgufFile, by_layer
from tidemill.models.naming import GGUF_EXPERTS, Rules
from tidemill.models.spec import MAX_CONV_KERNEL, DecoderSpec, Layer, Mlp, Moe

_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_KINDS = {
    **{name: name for name in _PATTERN.values()},
    "linear_attention": "mamba", "full_attention": "attention",
}  # fmt: skip
# Keys about training, execution or context extension that do not change the result.
_SILENT = (
    "chunk_size", "expand", "num_logits_to_keep", "time_step_min", "time_step_max",
    "time_step_floor", "use_mamba_kernels", "mamba_ssm_cache_dtype", "rescale_prenorm_residual",
    "residual_in_fp32", "moe_shared_expert_overlap", "mtp_layers_block_type",
    "mtp_hybrid_override_pattern", "mamba_proj_bias", "n_shared_experts", "num_hidden_layers",
    "intermediate_size", "attention_bias",
)  # fmt: skip
# Keys of experts, which configs without experts may also have.
_OF_EXPERTS = (
    "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_group", "topk_group",
    "moe_shared_expert_intermediate_size", "norm_topk_prob", "routed_scaling_factor",
)  # fmt: skip

_BLOCK = "backbone.layers.{i}."
_MIXER = _BLOCK + "mixer."
RULES: Rules = (
    ("backbone.embeddings.weight", "embed.weight"),
    ("backbone.norm_f.weight", "final_norm.weight"),
    ("lm_head.weight", "lm_head.weight"),
    # A layer has one of the two.
    (_BLOCK + "norm.weight", "layers.{i}.attn_norm.weight"),
    (_BLOCK + "norm.weight", "layers.{i}.mlp_norm.weight"),
    *mixer_rules(_MIXER),
    (_MIXER + "gate.weight", "layers.{i}.mlp.router.weight"),
    (_MIXER + "gate.e_score_correction_bias", "layers.{i}.mlp.correction"),
    (_MIXER + "experts.{e}.{p}_proj.weight", "layers.{i}.mlp.experts.{e}.{p}.weight"),
    (_MIXER + "shared_experts.{p}_proj.weight", "layers.{i}.mlp.shared.{p}.weight"),
    (_MIXER + "{p}_proj.{t}", "layers.{i}.attn.{p}.{t}"),
    (_MIXER + "{p}_proj.{t}", "layers.{i}.mlp.{p}.{t}"),
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Nemotron-H config.

    Keys besides the common ones: layers_block_type (or hybrid_override_pattern), mlp_hidden_act,
    mlp_bias, mamba_num_heads, mamba_head_dim, n_groups, ssm_state_size, conv_kernel, use_bias,
    use_conv_bias, time_step_limit, layer_norm_epsilon, n_routed_experts, num_experts_per_tok,
    moe_intermediate_size, moe_shared_expert_intermediate_size, n_group, topk_group,
    norm_topk_prob, routed_scaling_factor. Attention has neither rope nor biases.

    transformers raises time steps to at least time_step_min in prefill, but not in decoding. Here
    only time_step_limit bounds them, as in the model's training.
    """
    kinds = _kinds(config)
    names = {"hidden_act": "mlp_hidden_act", "rms_norm_eps": "layer_norm_epsilon"}
    given = {**config, "num_hidden_layers": len(kinds)}
    given.setdefault("head_dim", 128)
    reader = ConfigReader(given, "nemotron_h", names)
    sources = ("layers_block_type", "layer_types", "hybrid_override_pattern")
    for key in (*_SILENT, *sources, *_OF_EXPERTS):
        reader.raw(key)
    reader.must_be("mamba_hidden_act", "silu")
    reader.must_be("moe_latent_size", None)
    reader.must_be("num_nextn_predict_layers", 0)
    reader.must_be("sliding_window", None)
    reader.must_be("tie_word_embeddings", False)  # no implementation ties them
    mixer = mamba2(
        reader,
        reader.integer("mamba_num_heads", 128, high=MAX_HEADS),
        reader.integer("mamba_head_dim", 64),
        groups=reader.integer("n_groups", 8, high=MAX_HEADS),
        state=reader.integer("ssm_state_size", 128),
        conv_kernel=reader.integer("conv_kernel", 4, high=MAX_CONV_KERNEL),
        bias=reader.boolean("use_bias"),
        conv_bias=reader.boolean("use_conv_bias", True),
    )
    whole = dense_spec(
        reader,
        "nemotron_h",
        biases=Biases(mlp=reader.boolean("mlp_bias")),
        norm_eps=1e-5,
        ropes=lambda layers, head_dim: [None] * layers,
        activation="relu2",
        gated=False,
        moe=_experts(reader, kinds) if "moe" in kinds else None,
        recurrences=[mixer if kind == "mamba" else None for kind in kinds],
    )
    layers = [_one_block(layer, kind) for layer, kind in zip(whole.layers, kinds, strict=True)]
    return dataclasses.replace(whole, layers=tuple(layers))


def _one_block(layer: Layer, kind: str) -> Layer:
    if kind in ("mamba", "attention"):
        return dataclasses.replace(layer, mlp=None)
    return dataclasses.replace(layer, mixer=None)


def _kinds(config: Mapping[str, Any]) -> list[str]:
    types = config.get("layers_block_type") or config.get("layer_types")
    pattern = config.get("hybrid_override_pattern")
    if types is None and isinstance(pattern, str) and set(pattern) <= set(_PATTERN):
        types = [_PATTERN[letter] for letter in pattern]
    if not isinstance(types, list) or not 1 <= len(types) <= MAX_LAYERS:
        raise model_file_error(
            "layers_block_type must list each layer's kind", param="layers_block_type"
        )
    check_layer_types(types, len(types), _KINDS)
    return [_KINDS[kind] for kind in types]


def _experts(reader: ConfigReader, kinds: list[str]) -> Any:
    experts, top_k = read_top_k(reader, "n_routed_experts")
    groups = reader.integer("n_group", 1, high=experts)
    layer: dict[str, Any] = {
        "scoring": "sigmoid",
        "normalize": reader.boolean("norm_topk_prob", True),
        "scale": reader.number("routed_scaling_factor", 1.0),
        "e_score_correction_bias": True,
        "groups": groups,
        "top_groups": reader.integer("topk_group", 1, high=groups),
    }
    width = reader.integer("moe_intermediate_size")
    shared = reader.integer("moe_shared_expert_intermediate_size")

    def moe(act: str) -> list[Moe | None]:
        each = Mlp(width, act, gated=False)
        common = Mlp(shared, act, gated=False)
        made = Moe(experts, top_k, each, shared=common, **layer)
        return [made if kind == "moe" else None for kind in kinds]

    return moe


def _of_gguf(file: GgufFile) -> dict[str, Any]:
    """A layer with KV heads has attention; one with a feed-forward width has an MLP."""
    heads, widths = by_layer(file, "num_key_value_heads"), by_layer(file, "intermediate_size")
    dense = "moe" if file.config.get("n_routed_experts") else "mlp"
    kinds = [
        "attention" if count else dense if width else "mamba"
        for count, width in zip(heads, widths, strict=True)
    ]
    found: dict[str, Any] = {
        "layers_block_type": kinds,
        "mamba_head_dim": gguf_widths(file)[1],
        "num_key_value_heads": max(heads, default=0),
        "intermediate_size": max(widths, default=0) or None,
    }
    if dense == "moe":
        found["norm_topk_prob"] = file.config.get("norm_topk_prob", False)
    return found


_GGUF = GgufFamily(
    arch="nemotron_h",
    rules=(
        *GGUF_MIXER,
        # A layer has one of the two.
        ("blk.{i}.attn_norm.weight", "layers.{i}.attn_norm.weight"),
        ("blk.{i}.attn_norm.weight", "layers.{i}.mlp_norm.weight"),
        ("blk.{i}.exp_probs_b.bias", "layers.{i}.mlp.correction"),
        *GGUF_EXPERTS,
    ),
    stored=GGUF_STORED,
    biases={"use_conv_bias": GGUF_CONV_BIAS, "mlp_bias": "blk.{i}.ffn_up.bias"},
    keys={
        "ssm.conv_kernel": "conv_kernel",
        "ssm.state_size": "ssm_state_size",
        "ssm.time_step_rank": "mamba_num_heads",
        "ssm.group_count": "n_groups",
        "attention.layer_norm_epsilon": "rms_norm_eps",  # llama.cpp requires both
    },
    unused=frozenset({INNER, "rope.freq_base"}),
    names={"rms_norm_eps": "layer_norm_epsilon"},
    rope=False,
    implied=_of_gguf,
    by_layer=frozenset({"attention.head_count_kv", "feed_forward_length"}),
)
FAMILY = Family(
    name="nemotron_h", architectures=("NemotronHForCausalLM",), spec=spec, rules=RULES, gguf=_GGUF
)
# Its GGUF files have an architecture name of their own.
WITH_EXPERTS = dataclasses.replace(
    FAMILY,
    name="nemotron_h_moe",
    architectures=(),
    gguf=dataclasses.replace(
        _GGUF,
        arch="nemotron_h_moe",
        keys={
            **_GGUF.keys,
            **EXPERTS,
            "expert_count": "n_routed_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
            "expert_weights_norm": "norm_topk_prob",
            "expert_weights_scale": "routed_scaling_factor",
            "expert_group_count": "n_group",
            "expert_group_used_count": "topk_group",
        },
        unused=_GGUF.unused | {"expert_shared_count"},
    ),
)
