"""Ministral (Mistral AI 2024): Mistral with a window on some of the layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import MAX_POSITIONS, ConfigReader
from tidemill.models.dense import Family, dense_spec, typed_windows
from tidemill.models.naming import HF_RULES
from tidemill.models.spec import DecoderSpec


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Ministral config.

    Keys besides the common ones: sliding_window (4096 where absent, null is none), layer_types.
    """
    reader = ConfigReader({"sliding_window": 4096, **config}, "ministral")
    window = reader.optional_integer("sliding_window", high=MAX_POSITIONS)
    return dense_spec(
        reader,
        "ministral",
        windows=lambda layers: typed_windows(
            reader, layers, window, lambda layer: window is not None
        ),
    )


FAMILY = Family(
    name="ministral", architectures=("MinistralForCausalLM",), spec=spec, rules=HF_RULES
)
