"""Qwen3-Next (Qwen team 2025) and the text part of Qwen3.5 (2026): three gated delta nets per layer
of gated attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tidemill.base.errors import model_file_error
from tidemill.models.config import ConfigReader
from tidemill.models.dense import MAX_HEADS, Biases, Family, check_layer_types, dense_spec
from tidemill.models.families.mamba import gguf_widths
from tidemill.models.families.qwen_moe import GGUF_KEYS as MOE_KEYS
from tidemill.models.families.qwen_moe import RULES as MOE_RULES
from tidemill.models.families.qwen_moe import read_experts
from tidemill.models.gguf_family import INNER, GgufFamily, GgufFile
from tidemill.models.mtp import APART, GGUF, Mtp
from tidemill.models.multimodal import without_axes
from tidemill.models.naming import (
    GGUF_EXPERTS,
    GGUF_RULES,
    HF_RULES,
    STACKED_EXPERTS,
    Fused,
    Rules,
)
from tidemill.models.rope_config import read_rope
from tidemill.models.sources import Conventions
from tidemill.models.spec import MAX_CONV_KERNEL, DecoderSpec, QkNorm, Recurrent, Rope

_DEFAULTS = {"head_dim": 256, "num_key_value_heads": 2}
_INTERVAL, _ROTATING = 4, 0.25
# Keys of the layers that draft tokens (multi-token prediction), which are no part of the model.
_DRAFTS = ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")

_MIXER = "model.layers.{i}.linear_attn."
_OURS = "layers.{i}.rec."
_QUERIES = Fused(("layers.{i}.attn.q.{t}", "layers.{i}.attn.gate.{t}"), "heads")
_QKVZ = Fused((_OURS + "qkv.weight", _OURS + "z.weight"), "delta")
_BA = Fused((_OURS + "b.weight", _OURS + "a.weight"), "heads")
_TOGETHER: Rules = (
    (_MIXER + "in_proj_qkvz.weight", _QKVZ),
    (_MIXER + "in_proj_ba.weight", _BA),
)
_EACH: Rules = tuple(
    (f"{_MIXER}in_proj_{part}.weight", f"{_OURS}{part}.weight") for part in ("qkv", "z", "b", "a")
)
_MIXER_RULES: Rules = (
    ("model.layers.{i}.self_attn.q_proj.{t}", _QUERIES),
    (_MIXER + "out_proj.weight", _OURS + "out.weight"),
    (_MIXER + "conv1d.weight", _OURS + "conv.weight"),
    (_MIXER + "norm.weight", _OURS + "norm.weight"),
    (_MIXER + "A_log", _OURS + "a_log"),
    (_MIXER + "dt_bias", _OURS + "a_bias"),
)  # fmt: skip
# Folders of each family are read with either naming; they are written with the first.
_SPARSE: Rules = (*_MIXER_RULES, *MOE_RULES, *STACKED_EXPERTS)
RULES: Rules = (*_TOGETHER, *_EACH, *_SPARSE)
SPARSE_RULES: Rules = (*_EACH, *_TOGETHER, *_SPARSE)
DENSE_RULES: Rules = (*_EACH, *_TOGETHER, *_MIXER_RULES, *HF_RULES)
_GGUF_MIXER: Rules = (
    ("blk.{i}.attn_q.{t}", _QUERIES),
    ("blk.{i}.attn_qkv.weight", _OURS + "qkv.weight"),
    ("blk.{i}.attn_gate.weight", _OURS + "z.weight"),
    ("blk.{i}.ssm_in.weight", _QKVZ),  # of early files
    ("blk.{i}.ssm_conv1d.weight", _OURS + "conv.weight"),
    ("blk.{i}.ssm_norm.weight", _OURS + "norm.weight"),
    ("blk.{i}.ssm_out.weight", _OURS + "out.weight"),
    ("blk.{i}.ssm_dt.bias", _OURS + "a_bias"),
    ("blk.{i}.ssm_a", _OURS + "a_log"),
    ("blk.{i}.post_attention_norm.weight", "layers.{i}.mlp_norm.weight"),
    # Layers after the last one, which draft tokens.
    *((f"blk.{{i}}.nextn.{name}.weight", None) for name in (
        "eh_proj", "embed_tokens", "enorm", "hnorm", "shared_head_head", "shared_head_norm")),
)  # fmt: skip
_FUSED_BA: Rules = (("blk.{i}.ssm_ba.weight", _BA),)
_APART: Rules = (
    ("blk.{i}.ssm_beta.weight", _OURS + "b.weight"),
    ("blk.{i}.ssm_alpha.weight", _OURS + "a.weight"),
)
# Experts' gate and up projections may be one tensor.
_GATE_UP: Rules = (("blk.{i}.ffn_gate_up_exps.weight", STACKED_EXPERTS[0][1]),)
_TILED = "_tiled_value_heads"


def spec_next(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Qwen3-Next config.

    Keys besides Qwen3-MoE's and Qwen3.5's: shared_expert_intermediate_size.
    """
    reader = _reader(config, "qwen3_next")
    shared = reader.integer("shared_expert_intermediate_size", 512)
    experts = read_experts(reader, "num_experts", shared=shared, normalize=True)
    return _spec(reader, "qwen3_next", moe=experts)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read the config of Qwen3.5's text part.

    Keys besides the common ones: attention_bias, layer_types (default: every
    full_attention_interval-th layer, 4, has attention), linear_num_key_heads,
    linear_num_value_heads, linear_key_head_dim, linear_value_head_dim, linear_conv_kernel_dim,
    partial_rotary_factor (0.25 where absent). mrope_section and mrope_interleaved do not affect
    text.
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
        conv_kernel=reader.integer("linear_conv_kernel_dim", 4, high=MAX_CONV_KERNEL),
        norm_groups=heads,
        norm_shared=True,
        tiled=reader.boolean(_TILED),
    )


def _layer_types(reader: ConfigReader, layers: int) -> list[str]:
    interval = reader.integer("full_attention_interval", _INTERVAL)
    types = reader.raw("layer_types")
    kinds = {True: "linear_attention", False: "full_attention"}
    if types is None:
        return [kinds[bool((i + 1) % interval)] for i in range(layers)]
    check_layer_types(types, layers, dict.fromkeys(kinds.values()))
    return list(types)


_KINDS, _DRAFT_LAYERS = "attention.recurrent_layers", "nextn_predict_layers"


def _of_gguf(file: GgufFile) -> dict[str, Any]:
    """Which layers are recurrent; these files also count the layers that draft tokens."""
    layers, drafts = file.config.get("num_hidden_layers"), file.keys.get(_DRAFT_LAYERS, 0)
    found: dict[str, Any] = {"linear_value_head_dim": gguf_widths(file)[1]}
    if type(layers) is not int or type(drafts) is not int:
        return found  # rejected with the number of layers
    kinds = file.lists.get("layer_types")
    if kinds is not None:
        if len(kinds) != layers or not all(isinstance(kind, bool) for kind in kinds):
            raise model_file_error(f"GGUF key {_KINDS} must be true or false for each layer")
        names = {True: "linear_attention", False: "full_attention"}
        found["layer_types"] = [names[kind] for kind in kinds[: layers - drafts]]
    return {**found, "num_hidden_layers": layers - drafts}


def _of_gguf_with_experts(file: GgufFile) -> dict[str, Any]:
    return {**_of_gguf(file), "norm_topk_prob": True}


def _tiled(implied: Callable[[GgufFile], dict[str, Any]]) -> Callable[[GgufFile], dict[str, Any]]:
    """Qwen3.5's files interleave value heads: the first of each key head, then the second, and so
    on."""
    return lambda file: {**implied(file), _TILED: True}


def _gguf(arch: str, rules: Rules, keys: Mapping[str, str], **more: Any) -> GgufFamily:
    return GgufFamily(
        arch=arch,
        rules=(*_GGUF_MIXER, *rules),
        biases={"attention_bias": "blk.{i}.attn_q.bias"},
        keys={
            "ssm.conv_kernel": "linear_conv_kernel_dim",
            "ssm.state_size": "linear_key_head_dim",
            "ssm.time_step_rank": "linear_num_value_heads",
            "ssm.group_count": "linear_num_key_heads",
            "full_attention_interval": "full_attention_interval",
            _KINDS: "layer_types",
            **keys,
        },
        by_layer=frozenset({_KINDS}),
        mtp=Mtp(GGUF, "full_attention"),
        **more,
    )


_EXPERT_RULES: Rules = (*GGUF_EXPERTS, *_GATE_UP)
_EXPERT_KEYS = {
    **MOE_KEYS, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"
}  # fmt: skip
_READ = frozenset({INNER, _DRAFT_LAYERS})
_SECTIONS = frozenset({"rope.dimension_sections"})  # axes of image positions
_FILES = Conventions(decays=True, draft_layers=True)
_TILES = replace(_FILES, tiled_values=True)

_STORED = Conventions(norms_less_one=True, left_out=(APART.prefix,))
_MTP = Mtp(APART, "full_attention")
FAMILY = Family(
    "qwen3_next", ("Qwen3NextForCausalLM",), spec_next, RULES, stored=_STORED, mtp=_MTP,
    gguf=_gguf("qwen3next", (*_FUSED_BA, *_EXPERT_RULES), _EXPERT_KEYS, stored=_FILES,
               unused=_READ, implied=_of_gguf_with_experts),
)  # fmt: skip
QWEN3_5 = Family(
    "qwen3_5", ("Qwen3_5ForCausalLM",), spec, DENSE_RULES, stored=_STORED, mtp=_MTP,
    gguf=_gguf("qwen35", (*_APART, *GGUF_RULES), {}, stored=_TILES, unused=_READ | _SECTIONS,
               implied=_tiled(_of_gguf)),
)  # fmt: skip
QWEN3_5_MOE = Family(
    "qwen3_5_moe", ("Qwen3_5MoeForCausalLM",), spec_moe, SPARSE_RULES, stored=_STORED, mtp=_MTP,
    gguf=_gguf("qwen35moe", (*_APART, *_EXPERT_RULES), _EXPERT_KEYS, stored=_TILES,
               unused=_READ | _SECTIONS, implied=_tiled(_of_gguf_with_experts)),
)  # fmt: skip
