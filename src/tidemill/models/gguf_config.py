"""GGUF metadata as the config the families read.

Keys and meanings: the GGUF specification, "Standardized key-value pairs", and what llama.cpp's
converter writes. Keys under the architecture's prefix that no table knows are errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import model_file_error, unsupported
from tidemill.models.dense import GgufFamily

_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
# Read below, in ways of their own.
_HANDLED = {
    "attention.value_length",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scale_linear",
}
# Known, and without effect here: the tensor layout says nothing new, the trained length before
# scaling, how the file was made, sizes of pieces that are absent.
_HARMLESS = {
    "tensor_data_layout",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "expert_count",
    "expert_used_count",
    "attention.causal",
    "pooling_type",
}
# Those of them that must have this value.
_FIXED = {"expert_count": 0, "expert_used_count": 0, "attention.causal": True, "pooling_type": 0}


def config_from_gguf(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, ...]],
    family: GgufFamily,
) -> dict[str, Any]:
    """The config that the family's `spec` takes.

    Args:
        metadata: the file's key-value pairs.
        tensors: stored name -> shape: what GGUF does not say in keys, tensors tell (tied
            embeddings, biases, the vocabulary's size).
        family: whose file it is.

    Raises:
        TidemillError: MODEL_FILE or UNSUPPORTED naming the key that is wrong or not understood.
    """
    prefix = family.arch + "."
    own = {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}
    for key, value in own.items():
        if key not in _KEYS and key not in _HANDLED and key not in _HARMLESS:
            raise unsupported(
                prefix + key, f"GGUF key {prefix + key!r} is not known and could change the model"
            )
        if key in _FIXED and value != _FIXED[key]:
            raise unsupported(prefix + key, f"GGUF key {prefix + key!r} is {value!r}, which is "
                              "not supported")  # fmt: skip
    config = {_KEYS[key]: _uniform(prefix + key, v) for key, v in own.items() if key in _KEYS}
    embedding = tensors.get("token_embd.weight")
    if embedding:
        config.setdefault("vocab_size", embedding[0])
    config["tie_word_embeddings"] = "output.weight" not in tensors
    for key, tensor in (family.biases or {}).items():
        config[key] = tensor in tensors
    if "rms_norm_eps" not in config:
        raise model_file_error(f"GGUF key {prefix}attention.layer_norm_rms_epsilon is missing")
    _check_head_dim(own, config, prefix)
    _add_scaling(own, config, prefix)
    return config


def _uniform(key: str, value: Any) -> Any:
    """Some files give per-layer lists; one value repeated is that value."""
    if not isinstance(value, list):
        return value
    if not value or any(v != value[0] for v in value):
        raise unsupported(key, f"GGUF key {key!r} differs between layers, which is not supported")
    return value[0]


def _check_head_dim(own: Mapping[str, Any], config: dict[str, Any], prefix: str) -> None:
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if "head_dim" not in config and isinstance(heads, int) and isinstance(hidden, int) and heads:
        config["head_dim"] = hidden // heads
    for key in ("attention.value_length", "rope.dimension_count"):
        if key in own and "head_dim" in config and own[key] != config["head_dim"]:
            raise unsupported(
                prefix + key,
                f"GGUF key {prefix + key!r} is {own[key]!r}; only the head dimension "
                f"({config['head_dim']}) is supported",
            )


def _add_scaling(own: Mapping[str, Any], config: dict[str, Any], prefix: str) -> None:
    kind = own.get("rope.scaling.type", "linear" if "rope.scale_linear" in own else "none")
    if kind == "none":
        return
    if kind != "linear":
        raise unsupported(
            prefix + "rope.scaling.type", f"rope scaling {kind!r} is not supported (linear is)"
        )
    factor = own.get("rope.scaling.factor", own.get("rope.scale_linear"))
    if factor != 1.0:
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
