"""Phi-3, 3.5 and 4, dense (Abdin et al. 2024): fused projections, longrope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import MAX_POSITIONS, ConfigReader
from tidemill.models.dense import Family, dense_spec
from tidemill.models.gguf_family import WINDOW, GgufFamily, GgufFile
from tidemill.models.naming import GATE_UP, GGUF_GATE_UP, GGUF_QKV, HF_RULES, QKV, Rules
from tidemill.models.spec import DecoderSpec

RULES: Rules = (
    ("model.layers.{i}.self_attn.qkv_proj.{t}", QKV),
    ("model.layers.{i}.mlp.gate_up_proj.{t}", GATE_UP),
    *HF_RULES,
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Phi-3 config.

    Keys besides the common ones: sliding_window, original_max_position_embeddings,
    partial_rotary_factor.
    """
    reader = ConfigReader(config, "phi3")
    window = reader.optional_integer("sliding_window", high=MAX_POSITIONS)
    reader.raw("original_max_position_embeddings")
    return dense_spec(reader, "phi3", windows=lambda layers: [window] * layers, norm_eps=1e-5)


def gguf_window(file: GgufFile) -> dict[str, Any]:
    """Files state 0 for no window. (llama.cpp ignores windows, and differs beyond them.)"""
    return {"sliding_window": file.config.get("sliding_window") or None}


FAMILY = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    spec=spec,
    rules=RULES,
    gguf=GgufFamily(
        arch="phi3", rules=(*GGUF_GATE_UP, *GGUF_QKV), keys=WINDOW, implied=gguf_window
    ),
)
