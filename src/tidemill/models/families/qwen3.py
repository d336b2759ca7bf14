"""Qwen3, dense (Qwen team 2025): RMS norms on Q and K heads, an explicit head_dim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec, layer_windows
from tidemill.models.gguf_family import GgufFamily
from tidemill.models.naming import GGUF_RULES, HF_RULES
from tidemill.models.spec import DecoderSpec, QkNorm

_DEFAULT_HEAD_DIM = 128


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Qwen3 config.

    Keys besides the common ones: attention_bias (on Q, K, V and O), use_sliding_window,
    sliding_window, max_window_layers, layer_types. An absent head_dim is 128, whatever the hidden
    size.
    """
    reader = ConfigReader({"head_dim": _DEFAULT_HEAD_DIM, **config}, "qwen3")
    bias = reader.boolean("attention_bias")
    return dense_spec(
        reader,
        "qwen3",
        biases=Biases(q=bias, k=bias, v=bias, o=bias),
        qk_norm=QkNorm(),
        windows=lambda layers: layer_windows(reader, layers),
    )


FAMILY = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    spec=spec,
    rules=HF_RULES,
    gguf=GgufFamily(arch="qwen3", rules=GGUF_RULES, biases={"attention_bias": "blk.0.attn_q.bias"}),
)
