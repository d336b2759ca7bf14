"""Qwen2 and Qwen2.5 (Yang et al. 2024): biases on Q, K and V, none on O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec, layer_windows
from tidemill.models.gguf_family import GgufFamily
from tidemill.models.naming import GGUF_RULES, HF_RULES
from tidemill.models.spec import DecoderSpec


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Qwen2 config.

    Keys besides the common ones: use_sliding_window, sliding_window, max_window_layers,
    layer_types.
    """
    reader = ConfigReader(config, "qwen2")
    # Some Qwen2 configs have it; it is false in all text models.
    reader.must_be("use_mrope", False)
    return dense_spec(
        reader,
        "qwen2",
        biases=Biases(q=True, k=True, v=True),
        windows=lambda layers: layer_windows(reader, layers),
    )


FAMILY = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    spec=spec,
    rules=HF_RULES,
    gguf=GgufFamily(arch="qwen2", rules=GGUF_RULES),
)
