"""Hunyuan, dense (Tencent 2025): RMS norms on Q and K heads after the rotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily
from tidemill.models.naming import GGUF_RULES, HF_RULES, Rules
from tidemill.models.spec import DecoderSpec, QkNorm

RULES: Rules = (
    ("model.layers.{i}.self_attn.query_layernorm.weight", "layers.{i}.attn.q_norm.weight"),
    ("model.layers.{i}.self_attn.key_layernorm.weight", "layers.{i}.attn.k_norm.weight"),
    *HF_RULES,
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Hunyuan config.

    Keys besides the common ones: attention_bias (on Q, K, V and O), eod_token_id (without effect).
    """
    reader = ConfigReader(config, "hunyuan")
    reader.raw("eod_token_id")
    bias = reader.boolean("attention_bias")
    return dense_spec(
        reader,
        "hunyuan",
        biases=Biases(q=bias, k=bias, v=bias, o=bias),
        qk_norm=QkNorm(after_rope=True),
        norm_eps=1e-5,
    )


FAMILY = Family(
    name="hunyuan",
    architectures=("HunYuanDenseV1ForCausalLM",),
    spec=spec,
    rules=RULES,
    gguf=GgufFamily(
        arch="hunyuan-dense", rules=GGUF_RULES, biases={"attention_bias": "blk.0.attn_q.bias"}
    ),
)
