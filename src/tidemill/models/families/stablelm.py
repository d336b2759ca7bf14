"""StableLM 2 (Bellagente et al. 2024): layer norms, a quarter of each head rotates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import ConfigReader
from tidemill.models.dense import LAYER_NORM, Biases, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily
from tidemill.models.naming import GGUF_RULES, HF_NORM_RULES, HF_RULES
from tidemill.models.rope_config import read_rope
from tidemill.models.spec import DecoderSpec

_PARTIAL = 0.25
_NAMES = {"rms_norm_eps": "layer_norm_eps"}


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a StableLM config.

    Keys besides the common ones: layer_norm_eps, use_qkv_bias, use_parallel_residual,
    partial_rotary_factor (0.25). qk_layernorm (a norm per head) is rejected.
    """
    reader = ConfigReader(config, "stablelm", _NAMES)
    reader.must_be("qk_layernorm", False)
    bias = reader.boolean("use_qkv_bias")
    parallel = reader.boolean("use_parallel_residual")
    return dense_spec(
        reader,
        "stablelm",
        biases=Biases(q=bias, k=bias, v=bias),
        ropes=lambda layers, dim: [read_rope(reader, dim, partial=_PARTIAL)] * layers,
        norm=LAYER_NORM,
        norm_eps=1e-5,
        layer={"parallel": parallel, "shared_norm": parallel},
    )


FAMILY = Family(
    name="stablelm",
    architectures=("StableLmForCausalLM",),
    spec=spec,
    rules=(*HF_NORM_RULES, *HF_RULES),
    gguf=GgufFamily(
        arch="stablelm",
        rules=GGUF_RULES,
        biases={"use_qkv_bias": "blk.0.attn_q.bias"},
        unused=frozenset({"use_parallel_residual"}),  # files also set it for serial blocks
        names=_NAMES,
        implied=lambda file: {"use_parallel_residual": "blk.0.ffn_norm.weight" not in file.tensors},
    ),
)
