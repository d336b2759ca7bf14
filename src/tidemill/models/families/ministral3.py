"""Ministral 3 (Mistral AI 2025): Mistral whose queries grow with their position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import model_file_error
from tidemill.models.config import MAX_POSITIONS, ConfigReader, checked_integer, checked_number
from tidemill.models.dense import Family, dense_spec
from tidemill.models.naming import HF_RULES
from tidemill.models.spec import DecoderSpec

_BETA, _ORIGINAL = "llama_4_scaling_beta", "original_max_position_embeddings"


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Ministral 3 config.

    Keys besides the common ones: sliding_window (of every layer; absent or null is none), and in
    rope_parameters llama_4_scaling_beta, by which queries grow at every multiple of
    original_max_position_embeddings.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    temperature = None
    if isinstance(rope, dict):
        kept = {k: v for k, v in rope.items() if k not in (_BETA, "max_position_embeddings")}
        if rope.get(_BETA):
            temperature = _attention_temperature(rope, config)
        config = {k: v for k, v in config.items() if k != "rope_scaling"}
        config["rope_parameters"] = kept
    reader = ConfigReader(config, "ministral3")
    window = reader.optional_integer("sliding_window", high=MAX_POSITIONS)
    return dense_spec(
        reader,
        "ministral3",
        windows=lambda layers: [window] * layers,
        norm_eps=1e-5,
        attention={"attention_temperature": temperature},
    )


def _attention_temperature(
    rope: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[float, float, int]:
    beta = checked_number(f"rope_parameters.{_BETA}", rope[_BETA])
    original = rope.get(_ORIGINAL, config.get(_ORIGINAL))
    if original is None:
        raise model_file_error(
            f"rope_parameters has {_BETA} and lacks {_ORIGINAL}", param=f"rope_parameters.{_BETA}"
        )
    length = checked_integer(f"rope_parameters.{_ORIGINAL}", original, 1, MAX_POSITIONS)
    return beta, float(length), 0


FAMILY = Family(
    name="ministral3", architectures=("Ministral3ForCausalLM",), spec=spec, rules=HF_RULES
)
