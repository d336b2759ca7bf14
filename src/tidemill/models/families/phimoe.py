"""Phi-3.5-MoE (Abdin et al. 2024): layer norms, two of 16 experts by GRIN's rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import MAX_POSITIONS, ConfigReader
from tidemill.models.dense import LAYER_NORM, Biases, Family, dense_spec, read_top_k
from tidemill.models.families.phi3 import gguf_window
from tidemill.models.gguf_family import EXPERTS, WINDOW, GgufFamily
from tidemill.models.naming import GGUF_EXPERTS, HF_NORM_RULES, HF_RULES, MIXTRAL_EXPERTS
from tidemill.models.rope_config import read_rope
from tidemill.models.spec import DecoderSpec, Mlp, Moe

_THETA = 1000000.0


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Phi-MoE config.

    Keys besides the common ones: attention_bias (on Q, K, V and O), lm_head_bias, sliding_window,
    num_local_experts, num_experts_per_tok (2), router_jitter_noise (tolerance within which a logit
    counts as one of the best); input_jitter_noise acts only in training.
    """
    reader = ConfigReader(config, "phimoe")
    for key in ("input_jitter_noise", "original_max_position_embeddings"):
        reader.raw(key)
    bias = reader.boolean("attention_bias")
    window = reader.optional_integer("sliding_window", high=MAX_POSITIONS)
    experts, top_k = read_top_k(reader, "num_local_experts")
    reader.must_be("num_experts_per_tok", 2)
    jitter = reader.number("router_jitter_noise", 0.01)
    width, layers = reader.integer("intermediate_size"), reader.integer("num_hidden_layers")

    def moe(act: str) -> list[Moe | None]:
        mlp = Mlp(width, act)
        return [Moe(experts, top_k, mlp, "sparse_mixer", False, jitter=jitter)] * layers

    return dense_spec(
        reader,
        "phimoe",
        biases=Biases(q=bias, k=bias, v=bias, o=bias),
        windows=lambda layers: [window] * layers,
        ropes=lambda layers, dim: [read_rope(reader, dim, theta=_THETA)] * layers,
        norm=LAYER_NORM,
        norm_eps=1e-5,
        moe=moe,
        head_bias=reader.boolean("lm_head_bias"),
    )


FAMILY = Family(
    name="phimoe",
    architectures=("PhimoeForCausalLM", "PhiMoEForCausalLM"),
    spec=spec,
    rules=(*MIXTRAL_EXPERTS, *HF_NORM_RULES, *HF_RULES),
    gguf=GgufFamily(
        arch="phimoe",
        rules=GGUF_EXPERTS,
        biases={"attention_bias": "blk.0.attn_q.bias", "lm_head_bias": "output.bias"},
        keys={
            **WINDOW,
            **EXPERTS,
            "expert_count": "num_local_experts",
            "attention.layer_norm_rms_epsilon": "rms_norm_eps",  # named so in these files
        },
        implied=gguf_window,
    ),
)
