"""Granite 3, dense (IBM 2024): multipliers of embedding, residual, attention and logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily, GgufFile
from tidemill.models.naming import GGUF_RULES, HF_RULES
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec


def multipliers(reader: ConfigReader) -> dict[str, Any]:
    """Granite's four multipliers, as arguments of `dense_spec`."""
    return {
        "attention": {"scale": reader.number("attention_multiplier", 1.0)},
        "embed_scale": reader.number("embedding_multiplier", 1.0),
        "residual_scale": reader.number("residual_multiplier", 1.0),
        "logit_scale": 1.0 / reader.number("logits_scaling", 1.0),
    }


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Granite config.

    Keys besides the common ones: attention_bias, mlp_bias, embedding_multiplier,
    residual_multiplier, attention_multiplier, logits_scaling.
    """
    reader = ConfigReader(config, "granite")
    bias = reader.boolean("attention_bias")
    biases = Biases(q=bias, k=bias, v=bias, o=bias, mlp=reader.boolean("mlp_bias"))
    return dense_spec(reader, "granite", biases=biases, **multipliers(reader))


GGUF_KEYS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}


def gguf_scale(file: GgufFile) -> dict[str, Any]:
    """Files without a scale of the scores use the default one."""
    head_dim = file.config.get("head_dim")
    usual = head_dim**-0.5 if isinstance(head_dim, int) and head_dim > 0 else None
    return {"attention_multiplier": file.config.get("attention_multiplier") or usual}


FAMILY = Family(
    name="granite",
    architectures=("GraniteForCausalLM",),
    spec=spec,
    rules=HF_RULES,
    gguf=GgufFamily(
        arch="granite",
        rules=GGUF_RULES,
        stored=Conventions(paired_rope=True),
        biases={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"},
        keys=GGUF_KEYS,
        implied=gguf_scale,
    ),
)
