"""Mistral 7B and its dense successors (Jiang et al. 2023).

GGUF files of Mistral models say ``llama`` as their architecture, so that family reads them (and,
like llama.cpp, without a sliding window).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import MAX_POSITIONS, ConfigReader
from tidemill.models.dense import Family, dense_spec
from tidemill.models.naming import HF_RULES
from tidemill.models.spec import DecoderSpec

_DEFAULT_WINDOW = 4096


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Mistral config.

    `sliding_window` holds for every layer; null is full attention, and an absent key means 4096
    (what transformers takes it for).
    """
    reader = ConfigReader(config, "mistral")
    window: int | None = _DEFAULT_WINDOW
    if "sliding_window" in config:
        window = reader.optional_integer("sliding_window", high=MAX_POSITIONS)
    return dense_spec(reader, "mistral", windows=lambda layers: [window] * layers)


FAMILY = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    spec=spec,
    rules=HF_RULES,
)
