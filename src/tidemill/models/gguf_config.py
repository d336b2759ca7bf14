"""Converts GGUF metadata to the config that the families read.

Keys and meanings: the GGUF specification, "Standardized key-value pairs", and llama.cpp's
converter. Unknown keys under the architecture's prefix are errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import model_file_error, unsupported
from tidemill.models.gguf_family import GgufFamily, GgufFile

_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
# Keys with a reader of their own below.
_HANDLED = {
    "attention.value_length",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scale_linear",
}
# Known keys without effect here: the tensor layout implies them, they describe how the file was
# made, or they are sizes of absent parts.
_HARMLESS = {
    "tensor_data_layout",
    "rope.scaling.finetuned",
    "expert_count",
    "expert_used_count",
    "attention.causal",
    "pooling_type",
}
# Harmless keys that must have this value.
_FIXED = {"expert_count": 0, "expert_used_count": 0, "attention.causal": True, "pooling_type": 0}
_PATTERN = "attention.sliding_window_pattern"
_WINDOW = "attention.sliding_window"
_THETA = 10000.0  # for files without the key


def config_from_gguf(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, ...]],
    family: GgufFamily,
) -> dict[str, Any]:
    """The config that the family's `spec` takes.

    Args:
        metadata: the file's key-value pairs.
        tensors: stored name -> shape. Tensors imply what GGUF has no keys for (tied embeddings,
            biases, the vocabulary's size).
        family: the family that reads the file.

    Raises:
        TidemillError: MODEL_FILE or UNSUPPORTED naming a wrong or unknown key.
    """
    prefix = family.arch + "."
    own = {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}
    _check_known(own, family, prefix)
    known = {k: v for k, v in {**_KEYS, **family.keys}.items() if k not in family.unused}
    lists = {
        known[key]: value
        for key, value in own.items()
        if key in family.by_layer and isinstance(value, list)
    }
    config = {
        known[key]: _uniform(prefix + key, v)
        for key, v in own.items()
        if key in known and known[key] not in lists
    }
    embedding = tensors.get("token_embd.weight")
    if embedding:
        config.setdefault("vocab_size", embedding[0])
    config["tie_word_embeddings"] = "output.weight" not in tensors
    for key, tensor in (family.biases or {}).items():
        config[key] = _is_there(tensor, tensors)
    if "rms_norm_eps" not in config:
        raise model_file_error(
            f"GGUF keys {prefix}attention.layer_norm_rms_epsilon and "
            f"{prefix}attention.layer_norm_epsilon are both missing"
        )
    if not family.latent:
        _check_head_dim(own, config, prefix)
    if family.rope:
        config.setdefault("rope_theta", _THETA)
        if not family.latent:
            _add_rotated(own, config, prefix)
        _add_scaling(own, config, prefix)
    if family.period is not None:
        _add_windows(own, config, family.period, prefix)
    if family.implied is not None:
        config |= family.implied(GgufFile(own, tensors, config, lists))
    return {family.names.get(key, key): value for key, value in config.items()}


def _is_there(tensor: str, tensors: Mapping[str, Any]) -> bool:
    """Whether a file has this tensor, or one of this name with any number for ``{i}``."""
    first, any_layer, last = tensor.partition("{i}")
    if not any_layer:
        return tensor in tensors
    return any(name.startswith(first) and name.endswith(last) for name in tensors)


def _check_known(own: Mapping[str, Any], family: GgufFamily, prefix: str) -> None:
    windowed = {_PATTERN} if family.period is not None else set()
    for key, value in own.items():
        if key in family.keys or key in family.unused or key in windowed:
            continue
        if key not in _KEYS and key not in _HANDLED and key not in _HARMLESS:
            raise unsupported(
                prefix + key, f"GGUF key {prefix + key!r} is not known and could change the model"
            )
        if key in _FIXED and value != _FIXED[key]:
            raise unsupported(prefix + key, f"GGUF key {prefix + key!r} is {value!r}, which is "
                              "not supported")  # fmt: skip


def _uniform(key: str, value: Any) -> Any:
    """The value of a per-layer list whose entries are all equal, as some files write it."""
    if not isinstance(value, list):
        return value
    if not value or any(v != value[0] for v in value):
        raise unsupported(key, f"GGUF key {key!r} differs between layers, which is not supported")
    return value[0]


def _check_head_dim(own: Mapping[str, Any], config: dict[str, Any], prefix: str) -> None:
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if "head_dim" not in config and isinstance(heads, int) and isinstance(hidden, int) and heads:
        config["head_dim"] = hidden // heads
    key = "attention.value_length"
    if key in own and "head_dim" in config and own[key] != config["head_dim"]:
        raise unsupported(
            prefix + key,
            f"GGUF key {prefix + key!r} is {own[key]!r}; only the head dimension "
            f"({config['head_dim']}) is supported",
        )


def _add_rotated(own: Mapping[str, Any], config: dict[str, Any], prefix: str) -> None:
    """Add the number of rotating dimensions of a head, as the fraction that the families read."""
    dim, head_dim = own.get("rope.dimension_count"), config.get("head_dim")
    if not isinstance(head_dim, int) or head_dim < 1:
        return  # rejected with the head dimension
    dim = head_dim if dim is None else dim
    if not isinstance(dim, int) or isinstance(dim, bool) or not 2 <= dim <= head_dim or dim % 2:
        raise unsupported(
            prefix + "rope.dimension_count",
            f"GGUF key {prefix + 'rope.dimension_count'!r} is {dim!r}; an even number up to the "
            f"head dimension ({head_dim}) is supported",
        )
    share = dim / head_dim
    config["partial_rotary_factor"] = (
        share if int(head_dim * share) == dim else math.nextafter(share, 1.0)
    )


def _add_scaling(own: Mapping[str, Any], config: dict[str, Any], prefix: str) -> None:
    kind = own.get("rope.scaling.type", "linear" if "rope.scale_linear" in own else "none")
    if kind in ("none", "longrope"):  # longrope's factors are tensors: see `gguf_model`
        return
    if kind not in ("linear", "yarn"):
        raise unsupported(
            prefix + "rope.scaling.type",
            f"rope scaling {kind!r} is not supported (linear, yarn and longrope are)",
        )
    factor = own.get("rope.scaling.factor", own.get("rope.scale_linear"))
    if kind == "linear":
        if factor != 1.0:
            config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
        return
    if own.get("rope.scaling.attn_factor", 1.0) != 1.0:
        key = prefix + "rope.scaling.attn_factor"
        raise unsupported(key, f"GGUF key {key!r} with yarn is not supported")
    given = {
        "factor": factor,
        "original_max_position_embeddings": own.get("rope.scaling.original_context_length"),
        "attention_factor": own.get("rope.scaling.yarn_attn_factor"),
        "beta_fast": own.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": own.get("rope.scaling.yarn_beta_slow"),
    }
    said = {key: value for key, value in given.items() if value is not None}
    config["rope_scaling"] = {"rope_type": "yarn", **said}


def _add_windows(own: Mapping[str, Any], config: dict[str, Any], period: int, prefix: str) -> None:
    """Add which layers have a sliding window: as listed, or all except every n-th one."""
    layers, window = config.get("num_hidden_layers"), config.get("sliding_window")
    if not window:
        config["sliding_window"] = None
    if not isinstance(layers, int) or not 0 < layers < 2**16:
        return  # rejected with the number of layers
    given = own.get(_PATTERN, period)
    if isinstance(given, list):
        slides = [bool(value) for value in given]
    elif isinstance(given, int) and given > 0:
        slides = [i % given < given - 1 for i in range(layers)]
    else:
        raise model_file_error(f"GGUF key {prefix + _PATTERN!r} must be a number or a list")
    slides = [slide and bool(window) for slide in slides]
    config["layer_types"] = ["sliding_attention" if s else "full_attention" for s in slides]
