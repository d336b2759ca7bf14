"""gpt-oss (OpenAI 2025): attention sinks, every other layer slides, clamped experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import MAX_POSITIONS, ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec, read_top_k, typed_windows
from tidemill.models.gguf_family import EXPERTS, WINDOW, GgufFamily, GgufFile
from tidemill.models.naming import GGUF_EXPERTS, HF_RULES, Fused, Rules
from tidemill.models.rope_config import read_rope
from tidemill.models.spec import DecoderSpec, Mlp, Moe

_THETA = 150000.0
_LIMIT, _ALPHA = 7.0, 1.702
_EXPERT = "layers.{i}.mlp.experts.{e}."

RULES: Rules = (
    ("model.layers.{i}.self_attn.sinks", "layers.{i}.attn.sinks"),
    ("model.layers.{i}.mlp.router.{t}", "layers.{i}.mlp.router.{t}"),
    ("model.layers.{i}.mlp.experts.gate_up_proj",
     Fused((_EXPERT + "gate.weight", _EXPERT + "up.weight"), "alternating", transposed=True)),
    ("model.layers.{i}.mlp.experts.gate_up_proj_bias",
     Fused((_EXPERT + "gate.bias", _EXPERT + "up.bias"), "alternating")),
    ("model.layers.{i}.mlp.experts.down_proj",
     Fused((_EXPERT + "down.weight",), transposed=True)),
    # Published checkpoints use MXFP4, whose rows must be the inputs of one output.
    ("model.layers.{i}.mlp.experts.gate_up_proj_blocks",
     Fused((_EXPERT + "gate.weight", _EXPERT + "up.weight"), "alternating")),
    ("model.layers.{i}.mlp.experts.down_proj_blocks", _EXPERT + "down.weight"),
    ("model.layers.{i}.mlp.experts.down_proj_bias", _EXPERT + "down.bias"),
    *HF_RULES,
)  # fmt: skip


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a gpt-oss config.

    Keys besides the common ones: attention_bias (on Q, K, V and O; true where absent),
    sliding_window (128), layer_types (default: every other layer slides, from the first),
    num_local_experts, num_experts_per_tok, swiglu_limit (7), swiglu_alpha (1.702),
    initial_context_length (without effect, since rope has its own).
    """
    reader = ConfigReader({"head_dim": 64, **config}, "gpt_oss")
    for key in ("initial_context_length", "experts_per_token"):
        reader.raw(key)
    reader.must_be("swiglu_limit", _LIMIT)
    reader.must_be("swiglu_alpha", _ALPHA)
    bias = reader.boolean("attention_bias", True)
    window = reader.integer("sliding_window", 128, high=MAX_POSITIONS)
    experts, top_k = read_top_k(reader, "num_local_experts")
    layers = reader.integer("num_hidden_layers")
    mlp = Mlp(reader.integer("intermediate_size"), "swiglu_clamped", bias=True)
    moe = Moe(experts, top_k, mlp, "softmax_chosen", router_bias=True)
    return dense_spec(
        reader,
        "gpt_oss",
        biases=Biases(q=bias, k=bias, v=bias, o=bias),
        windows=lambda layers: typed_windows(reader, layers, window, lambda i: i % 2 == 0),
        ropes=lambda layers, dim: [read_rope(reader, dim, theta=_THETA)] * layers,
        moe=lambda act: [moe] * layers,
        norm_eps=1e-5,
        attention={"sinks": True},
    )


_GGUF_RULES: Rules = (
    ("blk.{i}.attn_sinks.weight", "layers.{i}.attn.sinks"),
    ("blk.{i}.post_attention_norm.weight", "layers.{i}.mlp_norm.weight"),
    *GGUF_EXPERTS,
)


def _whole_bounds(file: GgufFile) -> dict[str, Any]:
    """Files do not state that yarn's bounds are not rounded. (llama.cpp rounds them, so its
    frequencies differ slightly from those the model was trained with.)"""
    scaling = file.config.get("rope_scaling")
    return {"rope_scaling": {**scaling, "truncate": False}} if isinstance(scaling, dict) else {}


FAMILY = Family(
    name="gpt_oss",
    architectures=("GptOssForCausalLM",),
    spec=spec,
    rules=RULES,
    gguf=GgufFamily(
        arch="gpt-oss",
        rules=_GGUF_RULES,
        biases={"attention_bias": "blk.0.attn_q.bias"},
        keys={
            **WINDOW,
            **EXPERTS,
            "expert_count": "num_local_experts",
            "expert_feed_forward_length": "intermediate_size",
        },
        period=2,
        implied=_whole_bounds,
    ),
)
