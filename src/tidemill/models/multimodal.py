"""Checkpoints with a vision part and a text decoder: only the text decoder is read.

Their config holds the decoder's keys in an object of its own (`text_config`; early configs mix them
with the others), and the names of its tensors have a prefix. Keys that published configs omit have
the defaults of the decoder's config class in transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tidemill.base.errors import model_file_error, unsupported
from tidemill.models.config import short_repr

LEFT_OUT = "the vision part of this file is not loaded: images are rejected"

# Keys for images and audio, which do not affect text.
_UNREAD = (
    "vision_", "image_", "video_", "audio_", "projector_", "multimodal_", "mm_", "boi_", "eoi_",
    "boa_", "eoa_", "spatial_merge_size", "ignore_index",
)  # fmt: skip
# Sections of multi-axis positions. All axes have the same position for text.
AXES = ("mrope_section", "mrope_interleaved")
_PARTS = (
    "visual.", "vision_tower.", "vision_model.", "vision_encoder.", "vision_projection.",
    "vision_language_adapter.", "patch_merger.", "multi_modal_projector.",
    "audio_tower.", "embed_vision.", "embed_audio.", "vision_embedder.",
)  # fmt: skip
# Prefixes of text decoders' tensor names -> prefixes of our families' names.
_PREFIXES = (
    ("model.language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)


@dataclass(frozen=True, slots=True)
class Text:
    """A text decoder: its architecture, and defaults of keys that its config may omit."""

    architecture: str
    absent: tuple[tuple[str, Any], ...] = ()


_GEMMA3 = (
    ("vocab_size", 262208), ("hidden_size", 2304), ("intermediate_size", 9216),
    ("num_hidden_layers", 26), ("num_attention_heads", 8), ("num_key_value_heads", 4),
    ("max_position_embeddings", 131072),
)  # fmt: skip
_GEMMA4 = (
    ("vocab_size", 262144), ("hidden_size", 2304), ("intermediate_size", 9216),
    ("num_hidden_layers", 30), ("num_attention_heads", 8), ("num_key_value_heads", 4),
    ("max_position_embeddings", 131072),
)  # fmt: skip
_LLAMA = (
    ("vocab_size", 32000), ("hidden_size", 4096), ("intermediate_size", 11008),
    ("num_hidden_layers", 32), ("num_attention_heads", 32), ("max_position_embeddings", 2048),
)  # fmt: skip
_QWEN2 = Text("Qwen2ForCausalLM", (("rope_theta", 1000000.0), ("rms_norm_eps", 1e-5)))
# text_config's model_type -> its decoder
_TEXTS: dict[str, Text] = {
    "gemma3_text": Text("Gemma3ForCausalLM", _GEMMA3),
    "gemma4_text": Text("Gemma4ForCausalLM", _GEMMA4),
    "gemma4_unified_text": Text(
        "Gemma4UnifiedForCausalLM", (*_GEMMA4[:-1], ("max_position_embeddings", 262144))
    ),
    "llama": Text("LlamaForCausalLM", _LLAMA),
    "llama4_text": Text("Llama4ForCausalLM"),
    "ministral3": Text("Ministral3ForCausalLM"),
    "mistral": Text("MistralForCausalLM"),
    "qwen2": Text("Qwen2ForCausalLM"),
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen3": Text("Qwen3ForCausalLM"),
    "qwen3_vl_text": Text("Qwen3ForCausalLM", (("rope_theta", 500000.0),)),
    "qwen3_vl_moe_text": Text(
        "Qwen3MoeForCausalLM", (("rope_theta", 500000.0), ("norm_topk_prob", True))
    ),
    "qwen3_5_text": Text("Qwen3_5ForCausalLM"),
    "qwen3_5_moe_text": Text("Qwen3_5MoeForCausalLM"),
}
# Architecture -> its decoder's model_type, for configs that name none.
_WHOLES: dict[str, str] = {
    "Gemma3ForConditionalGeneration": "gemma3_text",
    "Gemma4ForConditionalGeneration": "gemma4_text",
    "Gemma4UnifiedForConditionalGeneration": "gemma4_unified_text",
    "Llama4ForConditionalGeneration": "llama4_text",
    "LlavaForConditionalGeneration": "llama",
    "Mistral3ForConditionalGeneration": "mistral",
    "Qwen2VLForConditionalGeneration": "qwen2_vl_text",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl_text",
    "Qwen3VLForConditionalGeneration": "qwen3_vl_text",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe_text",
    "Qwen3_5ForConditionalGeneration": "qwen3_5_text",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe_text",
}
ARCHITECTURES = tuple(_WHOLES)

_T = TypeVar("_T")


def text_config(
    config: Mapping[str, Any], stored: Callable[[], Iterable[str]]
) -> dict[str, Any] | None:
    """Config of the text decoder of a checkpoint with a vision part; None for any other checkpoint.

    Args:
        config: config.json.
        stored: returns the names of the checkpoint's tensors. It is called when the config is
            ambiguous about whether embeddings are tied.

    Raises:
        TidemillError: MODEL_FILE when `text_config` is not an object, UNSUPPORTED when its decoder
            is not known.
    """
    architectures = config.get("architectures")
    listed = architectures if isinstance(architectures, list) else []
    whole = next((name for name in listed if isinstance(name, str) and name in _WHOLES), None)
    if whole is None:
        return None
    section = config.get("text_config")
    if section is not None and not isinstance(section, dict):
        raise model_file_error("config key 'text_config' must be an object", param="text_config")
    own = section or {}
    kind = own.get("model_type", _WHOLES[whole])
    if not isinstance(kind, str) or kind not in _TEXTS:
        raise unsupported(
            "text_config.model_type",
            f"{whole} with a text decoder of type {short_repr(kind)} is not supported; "
            f"{', '.join(_TEXTS)} are",
        )
    text = _TEXTS[kind]
    outer = {k: v for k, v in config.items() if not k.startswith(_UNREAD) and k != "text_config"}
    inner = {k: v for k, v in own.items() if v is not None or k not in outer}
    found = {**dict(text.absent), **outer, **inner, "architectures": [text.architecture]}
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(found.get(key), dict):
            found[key] = without_axes(found[key])
    return found | {"tie_word_embeddings": _tied(config, own, stored)}


def _tied(
    config: Mapping[str, Any], own: Mapping[str, Any], stored: Callable[[], Iterable[str]]
) -> Any:
    key = "tie_word_embeddings"
    said = [values[key] for values in (config, own) if values.get(key) is not None]
    if said and all(value == said[0] for value in said):
        return said[0]
    names = text_tensors(dict.fromkeys(stored()))
    return not any(name.startswith("lm_head.") for name in names)


def without_axes(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Rope parameters without the sections that separate the axes of images."""
    kept = {k: v for k, v in rope.items() if k not in AXES}
    return {k: "default" if k in ("type", "rope_type") and v == "mrope" else v
            for k, v in kept.items()}  # fmt: skip


def in_other_part(name: str) -> bool:
    """Whether a stored tensor belongs to a part other than the text decoder."""
    return name.removeprefix("model.").startswith(_PARTS)


def text_tensors(stored: Mapping[str, _T]) -> dict[str, _T]:
    """The text decoder's tensors under the names that its family knows, without those of other
    parts."""
    found = {}
    for name, tensor in stored.items():
        if in_other_part(name):
            continue
        prefix, ours = next((p for p in _PREFIXES if name.startswith(p[0])), ("", ""))
        found[ours + name.removeprefix(prefix)] = tensor
    return found
