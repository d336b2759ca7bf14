"""OLMo 2 and 3 (OLMo team 2025): only post norms, and norms over all of Q and of K."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily
from tidemill.models.naming import GGUF_RULES, HF_RULES, Rules
from tidemill.models.spec import DecoderSpec, QkNorm

RULES: Rules = (
    ("model.layers.{i}.post_attention_layernorm.weight", "layers.{i}.attn_post_norm.weight"),
    ("model.layers.{i}.post_feedforward_layernorm.weight", "layers.{i}.mlp_post_norm.weight"),
    *HF_RULES,
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read an OLMo 2 config. Key besides the common ones: attention_bias."""
    return _spec(ConfigReader(config, "olmo2"), "olmo2", lambda layers: [None] * layers)


def _spec(reader: ConfigReader, family: str, windows: Any) -> DecoderSpec:
    bias = reader.boolean("attention_bias")
    return dense_spec(
        reader,
        family,
        biases=Biases(q=bias, k=bias, v=bias, o=bias),
        qk_norm=QkNorm(scope="full"),
        windows=windows,
        norm_eps=1e-5,
        layer={"pre_norm": False, "post_norm": True},
    )


FAMILY = Family(
    name="olmo2",
    architectures=("Olmo2ForCausalLM",),
    spec=spec,
    rules=RULES,
    gguf=GgufFamily(arch="olmo2", rules=GGUF_RULES, biases={"attention_bias": "blk.0.attn_q.bias"}),
)
