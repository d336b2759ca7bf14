"""DeepSeek-V2 (DeepSeek-AI 2024), V3 and R1 (2024, 2025), and Kimi K2 (2025), which is a V3: latent
attention, one shared expert, and many routed experts limited to a few groups per token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tidemill.base.errors import model_file_error, unsupported
from tidemill.models.config import MAX_LAYERS, ConfigReader
from tidemill.models.dense import MAX_EXPERTS, MAX_HEAD_DIM, Family, dense_spec, read_top_k
from tidemill.models.gguf_family import EXPERTS, GgufFamily, GgufFile
from tidemill.models.mtp import BEHIND, Mtp
from tidemill.models.naming import GGUF_EXPERTS, HF_EXPERTS, HF_RULES, Fused, Rules
from tidemill.models.rope_config import score_factor
from tidemill.models.sources import Conventions
from tidemill.models.spec import Attention, DecoderSpec, Latent, Layer, Mlp, Moe

_ATTN, _MLP = "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."
KV_UP = Fused(
    ("layers.{i}.attn.k_up.{h}.weight", "layers.{i}.attn.v_up.{h}.weight"), layout="latents"
)
# Layers after the last one, which draft tokens; their embedding and head are copies.
DRAFT_RULES: Rules = (
    ("model.layers.{i}.embed_tokens.weight", None),
    ("model.layers.{i}.shared_head.{p}.weight", None),
    ("model.layers.{i}.{p}norm.weight", "layers.{i}.draft.{p}.weight"),
    ("model.layers.{i}.eh_proj.weight", "layers.{i}.draft.join.weight"),
)

RULES: Rules = (
    (_ATTN + "q_a_proj.{t}", "layers.{i}.attn.q_down.{t}"),
    (_ATTN + "q_a_layernorm.weight", "layers.{i}.attn.q_down_norm.weight"),
    (_ATTN + "kv_a_proj_with_mqa.{t}", "layers.{i}.attn.kv_down.{t}"),
    (_ATTN + "kv_a_layernorm.weight", "layers.{i}.attn.kv_down_norm.weight"),
    (_ATTN + "kv_b_proj.weight", KV_UP),
    (_MLP + "gate.e_score_correction_bias", "layers.{i}.mlp.correction"),
    (_MLP + "shared_experts.{p}_proj.weight", "layers.{i}.mlp.shared.{p}.weight"),
    *HF_EXPERTS,
    *HF_RULES,
    (_ATTN + "q_b_proj.weight", "layers.{i}.attn.q.weight"),  # of low-rank queries
    *DRAFT_RULES,
)
_BLK = "blk.{i}.attn_"
GGUF_RULES_OF_LATENTS: Rules = (
    (_BLK + "q_a.weight", "layers.{i}.attn.q_down.weight"),
    (_BLK + "q_a_norm.weight", "layers.{i}.attn.q_down_norm.weight"),
    (_BLK + "kv_a_mqa.weight", "layers.{i}.attn.kv_down.weight"),
    (_BLK + "kv_a_norm.weight", "layers.{i}.attn.kv_down_norm.weight"),
    (_BLK + "k_b.weight", "layers.{i}.attn.k_up.{h}.weight"),
    (_BLK + "v_b.weight", "layers.{i}.attn.v_up.{h}.weight"),
    (_BLK + "kv_b.weight", KV_UP),  # of early files
    ("blk.{i}.exp_probs_b.bias", "layers.{i}.mlp.correction"),
    *GGUF_EXPERTS,
    (_BLK + "q_b.weight", "layers.{i}.attn.q.weight"),  # of low-rank queries
)
# Keys about training or distribution, and keys that repeat others. auto_map names the checkpoint's
# own code, which computes nothing beyond what is read here.
_IDLE = ("aux_loss_alpha", "seq_aux", "ep_size", "num_nextn_predict_layers", "num_mtp_layers",
         "qk_head_dim", "auto_map")  # fmt: skip


def spec2(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a DeepSeek-V2 config.

    Keys as in V3, except topk_method greedy (all groups) or group_limited_greedy, scoring_func
    softmax and norm_topk_prob false.
    """
    reader = _reader(config, "deepseek_v2")
    reader.must_be("scoring_func", "softmax")
    reader.must_be("norm_topk_prob", False)
    reader.must_be("mlp_bias", False)
    reader.must_be("topk_method", "greedy", "group_limited_greedy")
    limited = reader.raw("topk_method") == "group_limited_greedy"
    rule = read_groups(reader) if limited else {}
    if not limited:
        for key in ("n_group", "topk_group"):
            reader.raw(key)
    return _spec(reader, "deepseek_v2", {**rule, "normalize": False}, scale=1.0)


def spec3(config: Mapping[str, Any]) -> DecoderSpec:
    """Read the config of DeepSeek-V3 or of a model with its architecture.

    Keys besides the common ones: kv_lora_rank, q_lora_rank (null: queries come from x),
    qk_nope_head_dim, qk_rope_head_dim, v_head_dim, attention_bias (on the projections to latents
    and low-rank queries, and on O), first_k_dense_replace, n_routed_experts (null: none),
    n_shared_experts, num_experts_per_tok, moe_intermediate_size, n_group, topk_group,
    norm_topk_prob, routed_scaling_factor; and with a single supported value each: topk_method,
    scoring_func, moe_layer_freq, rope_interleave.
    """
    reader = _reader(config, "deepseek_v3")
    reader.must_be("scoring_func", "sigmoid")
    reader.must_be("topk_method", "noaux_tc")
    reader.must_be("rope_interleave", True)
    normalize = reader.boolean("norm_topk_prob", True)
    rule = {
        **read_groups(reader),
        "scoring": "sigmoid",
        "e_score_correction_bias": True,
        "normalize": normalize,
    }
    return _spec(reader, "deepseek_v3", rule, scale=2.5)


def _reader(config: Mapping[str, Any], family: str) -> ConfigReader:
    # transformers calls the rotating part a head; K and V derive from what all heads share.
    same = {
        "head_dim": config.get("qk_rope_head_dim"),
        "num_key_value_heads": config.get("num_attention_heads"),
    }
    reader = ConfigReader({**config, **same}, family)
    for key in _IDLE:
        reader.raw(key)
    reader.must_be("moe_layer_freq", 1)
    return reader


def read_groups(reader: ConfigReader) -> dict[str, Any]:
    """Fields of `Moe` about the groups that a token's experts are limited to."""
    if reader.raw("n_routed_experts") is None:
        return {}
    experts = reader.integer("n_routed_experts", high=MAX_EXPERTS)
    groups = reader.integer("n_group", 1, high=experts)
    kept = reader.integer("topk_group", 1, high=groups)
    top_k = reader.integer("num_experts_per_tok", 1, high=experts)
    if experts % groups or experts // groups * kept < top_k:
        raise model_file_error(
            f"n_group ({groups}) must divide n_routed_experts ({experts}), and topk_group ({kept}) "
            f"groups must hold num_experts_per_tok ({top_k}) experts",
            param="n_group",
        )
    return {"groups": groups, "top_groups": kept}


def _spec(
    reader: ConfigReader, family: str, rule: Mapping[str, Any], *, scale: float
) -> DecoderSpec:
    bias = reader.boolean("attention_bias")
    count = reader.integer("num_hidden_layers", high=MAX_LAYERS)
    latent = _latent(reader, bias)
    experts = read_routed(reader, count, {**rule, "scale": scale})
    spec = dense_spec(reader, family, moe=experts)

    def layer(plain: Layer) -> Layer:
        assert isinstance(plain.mixer, Attention)
        heads = plain.mixer.heads
        mixer = Attention(
            heads, 1, latent.rank + latent.rope, plain.mixer.rope, o_bias=bias, latent=latent,
            scale=(latent.nope + latent.rope) ** -0.5 * score_factor(reader),
        )  # fmt: skip
        return replace(plain, mixer=mixer)

    return replace(spec, layers=tuple(layer(plain) for plain in spec.layers))


def _latent(reader: ConfigReader, bias: bool) -> Latent:
    latent = Latent(
        rank=reader.integer("kv_lora_rank", high=MAX_HEAD_DIM),
        rope=reader.integer("qk_rope_head_dim", high=MAX_HEAD_DIM),
        nope=reader.integer("qk_nope_head_dim", high=MAX_HEAD_DIM),
        value=reader.integer("v_head_dim", high=MAX_HEAD_DIM),
        q_rank=reader.optional_integer("q_lora_rank"),
        down_bias=bias,
    )
    if latent.rank % 2:
        raise unsupported("kv_lora_rank", f"kv_lora_rank must be even, got {latent.rank}")
    return latent


def read_routed(
    reader: ConfigReader, count: int, rule: dict[str, Any]
) -> Callable[[str], list[Moe | None]]:
    """Activation -> each layer's experts; a model may have no experts.

    Args:
        reader: the config.
        count: layers.
        rule: fields of `Moe` about routing; `scale` where the config does not say it.
    """
    dense = reader.integer("first_k_dense_replace", 0, low=0, high=MAX_LAYERS)
    keys = ("num_experts_per_tok", "moe_intermediate_size", "n_shared_experts", "n_group",
            "topk_group")  # fmt: skip
    scale = reader.number("routed_scaling_factor", rule["scale"])
    if reader.raw("n_routed_experts") is None:
        for key in keys:
            reader.raw(key)
        return lambda act: [None] * count
    experts, top_k = read_top_k(reader, "n_routed_experts")
    width = reader.integer("moe_intermediate_size")
    shared = reader.integer("n_shared_experts", 0, low=0, high=MAX_EXPERTS) * width

    def moe(act: str) -> list[Moe | None]:
        common = Mlp(shared, act) if shared else None
        routed = Moe(experts, top_k, Mlp(width, act), shared=common, **{**rule, "scale": scale})
        return [None if i < dense else routed for i in range(count)]

    return moe


_STORED = Conventions(paired_rope=True, draft_layers=True)
_GGUF_KEYS = {
    **EXPERTS,
    "expert_count": "n_routed_experts",
    "expert_shared_count": "n_shared_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "leading_dense_block_count": "first_k_dense_replace",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
}
_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
# Keys read by `_of_gguf`.
_GGUF_READ = frozenset((
    "attention.key_length_mla", "attention.value_length_mla", "expert_gating_func",
    _LOG_MULTIPLIER,
))  # fmt: skip


def _of_gguf(file: GgufFile) -> dict[str, Any]:
    """Widths of heads: with the queries absorbed into latents, or (early files) without. The file
    has one key for yarn's two weights, which are equal in every published model."""
    keys, config = file.keys, file.config
    found: dict[str, Any] = {"routed_scaling_factor": config.get("routed_scaling_factor") or 1.0}
    for key in ("q_lora_rank", "n_routed_experts"):  # null when absent
        found[key] = config.get(key)
    rope = keys.get("rope.dimension_count")
    whole = keys.get("attention.key_length_mla", keys.get("attention.key_length"))
    found["v_head_dim"] = keys.get("attention.value_length_mla", keys.get("attention.value_length"))
    if isinstance(rope, int) and isinstance(whole, int):
        found |= {"qk_rope_head_dim": rope, "qk_nope_head_dim": whole - rope, "head_dim": rope}
    found["num_key_value_heads"] = config.get("num_attention_heads")
    section, log = config.get("rope_scaling"), keys.get(_LOG_MULTIPLIER)
    if section and isinstance(log, int | float) and log > 0:
        weight = float(np.float32(log) / np.float32(0.1))
        section = {**section, "mscale": weight, "mscale_all_dim": weight}
        found["rope_scaling"] = section
    return found


def _of_gguf2(file: GgufFile) -> dict[str, Any]:
    groups = file.config.get("n_group") or 1
    limited = isinstance(groups, int) and groups > 1
    found = {"topk_method": "group_limited_greedy" if limited else "greedy"}
    return {**_of_gguf(file), **found, "norm_topk_prob": file.config.get("norm_topk_prob", False)}


def _of_gguf3(file: GgufFile) -> dict[str, Any]:
    return {**_of_gguf(file), "norm_topk_prob": file.config.get("norm_topk_prob", False)}


def _gguf(gating: int, implied: Callable[[GgufFile], dict[str, Any]]) -> GgufFamily:
    return GgufFamily(
        arch="deepseek2", rules=GGUF_RULES_OF_LATENTS, stored=Conventions(paired_rope=True),
        keys=_GGUF_KEYS, unused=_GGUF_READ, implied=implied, experts=True, latent=True,
        gating=gating,
    )  # fmt: skip


FAMILY = Family(
    name="deepseek_v2", architectures=("DeepseekV2ForCausalLM",), spec=spec2, rules=RULES,
    stored=_STORED, gguf=_gguf(1, _of_gguf2),
)  # fmt: skip
V3 = Family(
    name="deepseek_v3", architectures=("DeepseekV3ForCausalLM",), spec=spec3, rules=RULES,
    stored=_STORED, gguf=_gguf(2, _of_gguf3), mtp=Mtp(BEHIND),
)  # fmt: skip
