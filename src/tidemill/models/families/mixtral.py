"""Mixtral (Jiang et al. 2024): Mistral with experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import MAX_POSITIONS, ConfigReader
from tidemill.models.dense import Family, dense_spec, read_top_k
from tidemill.models.gguf_family import EXPERTS, GgufFamily
from tidemill.models.naming import GGUF_EXPERTS, HF_RULES, MIXTRAL_EXPERTS, Rules
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec, Mlp, Moe

RULES: Rules = (*MIXTRAL_EXPERTS, *HF_RULES)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Mixtral config.

    Keys besides the common ones: sliding_window, num_local_experts, num_experts_per_tok.
    """
    reader = ConfigReader(config, "mixtral")
    reader.must_be("router_jitter_noise", 0.0)
    window = reader.optional_integer("sliding_window", high=MAX_POSITIONS)
    experts, top_k = read_top_k(reader, "num_local_experts")
    width = reader.integer("intermediate_size")
    layers = reader.integer("num_hidden_layers")
    return dense_spec(
        reader,
        "mixtral",
        windows=lambda layers: [window] * layers,
        moe=lambda act: [Moe(experts, top_k, Mlp(width, act))] * layers,
        norm_eps=1e-5,
    )


FAMILY = Family(
    name="mixtral",
    architectures=("MixtralForCausalLM",),
    spec=spec,
    rules=RULES,
    gguf=GgufFamily(
        arch="llama",
        rules=GGUF_EXPERTS,
        stored=Conventions(paired_rope=True),
        keys={**EXPERTS, "expert_count": "num_local_experts"},
        experts=True,
    ),
)
