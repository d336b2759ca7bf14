"""Models that no family supports: the sizes that transformers needs to run them, from config.json.

Nothing here is specific to an architecture. The few numbers needed before the model is built are
looked up under the names that configs of causal language models use for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.base.errors import model_file_error, unsupported
from tidemill.models.config import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, checked_integer

# Endings of architecture names that are, or contain, a causal language model.
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ModelWithLMHead", "ForConditionalGeneration")
# For a model without a stated context (recurrent models have none); memory is the real bound.
UNSTATED_POSITIONS = 2**20

_NAMES: dict[str, tuple[str, ...]] = {
    "vocab_size": ("vocab_size",),
    "hidden_size": ("hidden_size", "d_model", "n_embd", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
    "kv_heads": ("num_key_value_heads", "n_head_kv", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "positions": (
        *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
        "context_length",
    ),
}


@dataclass(frozen=True, slots=True)
class Foreign:
    """What a spec holds instead of layers, for the backend `transformers`.

    Attributes:
        architecture: as config.json names it.
        config: config.json as JSON text, without the quantization settings of the weights.
        token_bytes: bytes of a sequence's state per token; an estimate from the config's sizes
            until the model is loaded.
        fixed_bytes: bytes of a sequence's state independent of its length.
        in_pieces: prefill can be chunked at no cost.
        why: the reason why no family reads it; empty when the user selected transformers.
    """

    architecture: str
    config: str
    token_bytes: int
    fixed_bytes: int = 0
    in_pieces: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class ForeignSizes:
    """Sizes stated by a config: see `DecoderSpec`."""

    vocab_size: int
    hidden_size: int
    max_positions: int
    tied_embeddings: bool


def read_foreign(config: Mapping[str, Any], why: str = "") -> tuple[Foreign, ForeignSizes]:
    """Describe a model that no family reads, from its config.json; `why` is the reason.

    Raises:
        TidemillError: UNSUPPORTED when it is not a causal language model or needs its own code,
            MODEL_FILE when a size is missing or out of range.
    """
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise model_file_error(
            "config.json names no architectures; it does not describe a causal language model",
            param="architectures",
        )
    name = str(architectures[0])[:80]
    if not name.endswith(_CAUSAL) or config.get("is_encoder_decoder") is True:
        raise unsupported("architectures", f"architecture {name!r} is not a causal language model")
    if not isinstance(config.get("model_type"), str):
        raise model_file_error(
            "config key 'model_type' is missing: transformers finds a model's code by it",
            param="model_type",
        )
    text = config.get("text_config")
    sizes = text if isinstance(text, dict) else config
    hidden = _size(sizes, "hidden_size", MAX_SIZE)
    vocab = _size(sizes, "vocab_size", MAX_SIZE)
    layers = _optional(sizes, "layers", MAX_LAYERS) or 1
    heads = _optional(sizes, "heads", MAX_SIZE) or 1
    kv_heads = _optional(sizes, "kv_heads", MAX_SIZE) or heads
    head_dim = _optional(sizes, "head_dim", MAX_SIZE) or max(1, hidden // heads)
    foreign = Foreign(
        name,
        json.dumps({k: v for k, v in config.items() if k not in _DROPPED}, sort_keys=True),
        token_bytes=2 * 4 * layers * kv_heads * head_dim,
        why=why,
    )
    positions = _optional(sizes, "positions", MAX_POSITIONS) or UNSTATED_POSITIONS
    return foreign, ForeignSizes(vocab, hidden, positions, bool(sizes.get("tie_word_embeddings")))


# Quantization is handled by the loader, and a checkpoint never selects the code that runs.
_DROPPED_TEXT = """
    quantization_config compression_config auto_map attn_implementation _attn_implementation
    _attn_implementation_internal experts_implementation _experts_implementation torch_dtype dtype
    transformers_version _name_or_path use_kernels
"""
_DROPPED = frozenset(_DROPPED_TEXT.split())


def _optional(config: Mapping[str, Any], size: str, high: int) -> int | None:
    for key in _NAMES[size]:
        value = config.get(key)
        if value is not None and not isinstance(value, list):
            return checked_integer(key, value, 1, high)
    return None


def _size(config: Mapping[str, Any], size: str, high: int) -> int:
    value = _optional(config, size, high)
    if value is None:
        raise model_file_error(f"config key {_NAMES[size][0]!r} is missing", param=_NAMES[size][0])
    return value
