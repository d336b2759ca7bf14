"""Qwen1.5/2-MoE (Qwen team 2024) and Qwen3-MoE (2025): many small experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tidemill.base.errors import model_file_error
from tidemill.models.config import ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec, layer_windows, read_top_k
from tidemill.models.gguf_family import EXPERTS, GgufFamily
from tidemill.models.naming import GGUF_EXPERTS, HF_EXPERTS, HF_RULES, STACKED_EXPERTS, Rules
from tidemill.models.spec import DecoderSpec, Mlp, Moe, QkNorm

_HEAD_DIM = 128

RULES: Rules = (
    ("model.layers.{i}.mlp.shared_expert_gate.weight", "layers.{i}.mlp.shared_gate.weight"),
    ("model.layers.{i}.mlp.shared_expert.{p}_proj.weight", "layers.{i}.mlp.shared.{p}.weight"),
    *HF_EXPERTS,
    *HF_RULES,
)
# Qwen3-VL's files have the experts in one tensor: [in, out] in published files, [out, in] in files
# that transformers 5 writes.
QWEN3_RULES: Rules = (
    *RULES,
    *((name, dataclasses.replace(held, transposed=None)) for name, held in STACKED_EXPERTS),
)


def spec2(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Qwen2-MoE config.

    Keys besides Qwen3-MoE's: qkv_bias (true where absent), shared_expert_intermediate_size.
    """
    reader = ConfigReader(config, "qwen2_moe")
    shared = reader.integer("shared_expert_intermediate_size", 5632)
    bias = reader.boolean("qkv_bias", True)
    return _spec(
        reader, "qwen2_moe", "num_experts", shared=shared, biases=Biases(q=bias, k=bias, v=bias)
    )


def spec3(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Qwen3-MoE config.

    Keys besides the common ones: attention_bias (on Q, K, V and O), moe_intermediate_size,
    num_experts (or num_local_experts), num_experts_per_tok, norm_topk_prob, decoder_sparse_step
    and mlp_only_layers (which layers are dense), use_sliding_window, sliding_window,
    max_window_layers, layer_types. An absent head_dim is 128.
    """
    reader = ConfigReader({"head_dim": _HEAD_DIM, **config}, "qwen3_moe")
    bias = reader.boolean("attention_bias")
    name = "num_local_experts" if config.get("num_experts") is None else "num_experts"
    biases = Biases(q=bias, k=bias, v=bias, o=bias)
    return _spec(reader, "qwen3_moe", name, biases=biases, qk_norm=QkNorm())


def _spec(
    reader: ConfigReader, family: str, experts_key: str, *, shared: int | None = None, **more: Any
) -> DecoderSpec:
    moe = read_experts(reader, experts_key, shared=shared)
    windows = layer_windows(reader, reader.integer("num_hidden_layers"))
    return dense_spec(reader, family, moe=moe, windows=lambda layers: windows, **more)


def read_experts(
    reader: ConfigReader, experts_key: str, *, shared: int | None, normalize: bool = False
) -> Callable[[str], list[Moe | None]]:
    """The spec's activation -> each layer's experts, None for a dense layer.

    Args:
        reader: the config.
        experts_key: key of the number of experts.
        shared: width of the shared expert, or None.
        normalize: default of norm_topk_prob.
    """
    experts, top_k = read_top_k(reader, experts_key)
    width = reader.integer("moe_intermediate_size")
    normalize = reader.boolean("norm_topk_prob", normalize)
    layers = reader.integer("num_hidden_layers")
    step = reader.integer("decoder_sparse_step", 1)
    dense = reader.raw("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(i) is int for i in dense):
        raise model_file_error("mlp_only_layers must list layers", param="mlp_only_layers")
    sparse = [i not in dense and (i + 1) % step == 0 for i in range(layers)]
    reader.raw("intermediate_size")

    def moe(act: str) -> list[Moe | None]:
        layer = Moe(
            experts,
            top_k,
            Mlp(width, act),
            normalize=normalize,
            shared=None if shared is None else Mlp(shared, act),
            shared_gate=shared is not None,
        )
        return [layer if has else None for has in sparse]

    return moe


GGUF_KEYS = {
    **EXPERTS,
    "expert_count": "num_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
}
FAMILY = Family(
    name="qwen2_moe",
    architectures=("Qwen2MoeForCausalLM",),
    spec=spec2,
    rules=RULES,
    gguf=GgufFamily(
        arch="qwen2moe",
        rules=GGUF_EXPERTS,
        biases={"qkv_bias": "blk.0.attn_q.bias"},
        keys={**GGUF_KEYS, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        implied=lambda file: {"norm_topk_prob": False},
    ),
)
QWEN3 = Family(
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    spec=spec3,
    rules=QWEN3_RULES,
    gguf=GgufFamily(
        arch="qwen3moe",
        rules=GGUF_EXPERTS,
        biases={"attention_bias": "blk.0.attn_q.bias"},
        keys=GGUF_KEYS,
        implied=lambda file: {"norm_topk_prob": True},
    ),
)
