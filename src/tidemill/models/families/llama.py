"""Llama 2 and 3.x (Touvron et al. 2023; Llama 3.1's rope scaling is `rope_type` llama3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily
from tidemill.models.naming import GGUF_RULES, HF_RULES
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Llama config.

    Keys besides the common ones: attention_bias (on Q, K, V and O) and mlp_bias.
    """
    reader = ConfigReader(config, "llama")
    bias = reader.boolean("attention_bias")
    biases = Biases(q=bias, k=bias, v=bias, o=bias, mlp=reader.boolean("mlp_bias"))
    return dense_spec(reader, "llama", biases=biases)


FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    spec=spec,
    rules=HF_RULES,
    gguf=GgufFamily(
        arch="llama",
        rules=GGUF_RULES,
        stored=Conventions(paired_rope=True),
        biases={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"},
    ),
)
