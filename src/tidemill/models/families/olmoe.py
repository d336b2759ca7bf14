"""OLMoE (Muennighoff et al. 2024): 64 small experts, norms over all of Q and of K."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec, read_top_k
from tidemill.models.gguf_family import EXPERTS, GgufFamily
from tidemill.models.naming import GGUF_EXPERTS, HF_EXPERTS, HF_RULES
from tidemill.models.spec import DecoderSpec, Mlp, Moe, QkNorm


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read an OLMoE config.

    Keys besides the common ones: attention_bias, clip_qkv, num_experts (or num_local_experts),
    num_experts_per_tok, norm_topk_prob.
    """
    reader = ConfigReader(config, "olmoe")
    bias = reader.boolean("attention_bias")
    name = "num_local_experts" if config.get("num_experts") is None else "num_experts"
    experts, top_k = read_top_k(reader, name)
    width, layers = reader.integer("intermediate_size"), reader.integer("num_hidden_layers")
    normalize = reader.boolean("norm_topk_prob")
    return dense_spec(
        reader,
        "olmoe",
        biases=Biases(q=bias, k=bias, v=bias, o=bias),
        qk_norm=QkNorm(scope="full"),
        moe=lambda act: [Moe(experts, top_k, Mlp(width, act), normalize=normalize)] * layers,
        norm_eps=1e-5,
        attention={"clip": reader.optional_number("clip_qkv")},
    )


FAMILY = Family(
    name="olmoe",
    architectures=("OlmoeForCausalLM",),
    spec=spec,
    rules=(*HF_EXPERTS, *HF_RULES),
    gguf=GgufFamily(
        arch="olmoe",
        rules=GGUF_EXPERTS,
        keys={**EXPERTS, "expert_count": "num_experts"},
        implied=lambda file: {"norm_topk_prob": False},
    ),
)
