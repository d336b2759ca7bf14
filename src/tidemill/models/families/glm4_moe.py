"""GLM-4.5 to 4.7 (Zhipu AI 2025): DeepSeek-V3's experts behind grouped-query attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import MAX_LAYERS, ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec
from tidemill.models.families.deepseek import DRAFT_RULES, read_groups, read_routed
from tidemill.models.mtp import BEHIND, Mtp
from tidemill.models.naming import HF_EXPERTS, HF_RULES, Rules
from tidemill.models.rope_config import read_rope
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec, QkNorm

_PARTIAL = 0.5
_MLP = "model.layers.{i}.mlp."
RULES: Rules = (
    (_MLP + "gate.e_score_correction_bias", "layers.{i}.mlp.correction"),
    (_MLP + "shared_experts.{p}_proj.weight", "layers.{i}.mlp.shared.{p}.weight"),
    *HF_EXPERTS,
    *HF_RULES,
    *DRAFT_RULES,
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read the config of GLM-4.5 or a model with its architecture.

    Keys besides the common ones: attention_bias (on Q, K and V), use_qk_norm,
    partial_rotary_factor (0.5 where absent), and of the experts those of DeepSeek-V3:
    first_k_dense_replace, n_routed_experts, n_shared_experts, num_experts_per_tok,
    moe_intermediate_size, n_group, topk_group, norm_topk_prob, routed_scaling_factor.
    """
    reader = ConfigReader(config, "glm4_moe")
    for key in ("num_nextn_predict_layers", "num_mtp_layers"):
        reader.raw(key)
    count = reader.integer("num_hidden_layers", high=MAX_LAYERS)
    bias = reader.boolean("attention_bias")
    rule = {
        **read_groups(reader),
        "scoring": "sigmoid",
        "e_score_correction_bias": True,
        "normalize": reader.boolean("norm_topk_prob", True),
        "scale": 1.0,
    }
    return dense_spec(
        reader,
        "glm4_moe",
        biases=Biases(q=bias, k=bias, v=bias),
        qk_norm=QkNorm() if reader.boolean("use_qk_norm") else None,
        ropes=lambda layers, dim: [read_rope(reader, dim, partial=_PARTIAL)] * layers,
        norm_eps=1e-5,
        moe=read_routed(reader, count, rule),
    )


FAMILY = Family(
    name="glm4_moe", architectures=("Glm4MoeForCausalLM",), spec=spec, rules=RULES,
    stored=Conventions(draft_layers=True), mtp=Mtp(BEHIND),
)  # fmt: skip
