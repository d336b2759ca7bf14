"""Qwen3-Next (Qwen team 2025) and the text part of Qwen3.5 (2026): three gated delta nets to each
layer of gated attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import ConfigReader
from tidemill.models.dense import MAX_HEADS, Biases, Family, check_layer_types, dense_spec
from tidemill.models.families.qwen_moe import RULES as MOE_RULES
from tidemill.models.families.qwen_moe import read_experts
from tidemill.models.multimodal import without_axes
from tidemill.models.naming import HF_RULES, STACKED_EXPERTS, Fused, Rules
from tidemill.models.rope_config import read_rope
from tidemill.models.sources import Conventions
from tidemill.models.spec import MAX_TAPS, DecoderSpec, QkNorm, Recurrent, Rope

_DEFAULTS = {"head_dim": 256, "num_key_value_heads": 2}
_INTERVAL, _ROTATING = 4, 0.25
# Of the layers that draft tokens (multi-token prediction), which are left out.
_DRAFTS = ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")

_MIXER = "model.layers.{i}.linear_attn."
_OURS = "layers.{i}.rec."
_MIXER_RULES: Rules = (
    ("model.layers.{i}.self_attn.q_proj.{t}",
     Fused(("layers.{i}.attn.q.{t}", "layers.{i}.attn.gate.{t}"), "heads")),
    (_MIXER + "in_proj_qkvz.weight", Fused((_OURS + "qkv.weight", _OURS + "z.weight"), "delta")),
    (_MIXER + "in_proj_ba.weight", Fused((_OURS + "b.weight", _OURS + "a.weight"), "heads")),
    (_MIXER + "in_proj_{p}.weight", _OURS + "{p}.weight"),
    (_MIXER + "out_proj.weight", _OURS + "out.weight"),
    (_MIXER + "conv1d.weight", _OURS + "conv.weight"),
    (_MIXER + "norm.weight", _OURS + "norm.weight"),
    (_MIXER + "A_log", _OURS + "a_log"),
    (_MIXER + "dt_bias", _OURS + "a_bias"),
)  # fmt: skip
RULES: Rules = (*_MIXER_RULES, *STACKED_EXPERTS, *MOE_RULES)
DENSE_RULES: Rules = (*_MIXER_RULES, *HF_RULES)


def spec_next(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Qwen3-Next config.

    Keys beside Qwen3-MoE's and Qwen3.5's: shared_expert_intermediate_size.
    """
    reader = _reader(config, "qwen3_next")
    shared = reader.integer("shared_expert_intermediate_size", 512)
    experts = read_experts(reader, "num_experts", shared=shared, normalize=True)
    return _spec(reader, "qwen3_next", moe=experts)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read the config of Qwen3.5's text part.

    Keys beside the common ones: attention_bias, layer_types (else every full_attention_interval-th
    layer, 4, has attention), linear_num_key_heads, linear_num_value_heads, linear_key_head_dim,
    linear_value_head_dim, linear_conv_kernel_dim, partial_rotary_factor (0.25 where absent).
    mrope_section and mrope_interleaved say nothing about text.
    """
    return _spec(_reader(config, "qwen3_5"), "qwen3_5")


def spec_moe(config: Mapping[str, Any]) -> DecoderSpec:
    """Read the config of Qwen3.5-MoE's text part; its experts' keys are Qwen3-Next's."""
    reader = _reader(config, "qwen3_5_moe")
    shared = reader.integer("shared_expert_intermediate_size", 512)
    experts = read_experts(reader, "num_experts", shared=shared, normalize=True)
    return _spec(reader, "qwen3_5_moe", moe=experts)


def _reader(config: Mapping[str, Any], family: str) -> ConfigReader:
    plain = {**_DEFAULTS, **{k: v for k, v in config.items() if v is not None}}
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(plain.get(key), dict):
            plain[key] = without_axes(plain[key])
    reader = ConfigReader(plain, family)
    reader.must_be("attn_output_gate", True)
    reader.must_be("mamba_ssm_dtype", "float32")
    for key in _DRAFTS:
        reader.raw(key)
    return reader


def _spec(reader: ConfigReader, family: str, **more: Any) -> DecoderSpec:
    bias = reader.boolean("attention_bias")
    mixer = _mixer(reader)
    types = _layer_types(reader, reader.integer("num_hidden_layers"))

    def ropes(layers: int, head_dim: int) -> list[Rope | None]:
        return [read_rope(reader, head_dim, partial=_ROTATING)] * layers

    return dense_spec(
        reader,
        family,
        biases=Biases(q=bias, k=bias, v=bias, o=bias),
        qk_norm=QkNorm(),
        ropes=ropes,
        recurrences=[mixer if kind == "linear_attention" else None for kind in types],
        attention={"gated": True},
        **more,
    )


def _mixer(reader: ConfigReader) -> Recurrent:
    heads = reader.integer("linear_num_value_heads", 32, high=MAX_HEADS)
    return Recurrent(
        "delta",
        reader.integer("linear_num_key_heads", 16, high=MAX_HEADS),
        heads,
        reader.integer("linear_key_head_dim", 128),
        reader.integer("linear_value_head_dim", 128),
        taps=reader.integer("linear_conv_kernel_dim", 4, high=MAX_TAPS),
        norm_groups=heads,
        norm_shared=True,
    )


def _layer_types(reader: ConfigReader, layers: int) -> list[str]:
    interval = reader.integer("full_attention_interval", _INTERVAL)
    types = reader.raw("layer_types")
    kinds = {True: "linear_attention", False: "full_attention"}
    if types is None:
        return [kinds[bool((i + 1) % interval)] for i in range(layers)]
    check_layer_types(types, layers, dict.fromkeys(kinds.values()))
    return list(types)


_STORED = Conventions(norms_less_one=True, left_out=("mtp.",))
FAMILY = Family("qwen3_next", ("Qwen3NextForCausalLM",), spec_next, RULES, stored=_STORED)
QWEN3_5 = Family("qwen3_5", ("Qwen3_5ForCausalLM",), spec, DENSE_RULES, stored=_STORED)
QWEN3_5_MOE = Family("qwen3_5_moe", ("Qwen3_5MoeForCausalLM",), spec_moe, RULES, stored=_STORED)
