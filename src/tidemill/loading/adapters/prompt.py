"""PEFT's prompt adapters: vectors in front of the prompt (prompt tuning, P-tuning), or keys and
values of all layers there (prefix tuning).

All are stored alike, in one tensor: what an encoder of the training computed is saved, not the
encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tidemill.base.errors import model_file_error, unsupported
from tidemill.loading.adapters.base import values_of
from tidemill.loading.mapped import StoredTensor
from tidemill.models.adapters import Float32, Prefix
from tidemill.models.layers import Attention
from tidemill.models.naming import rope_order
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec

PREFIX = "PREFIX_TUNING"
KINDS = ("PROMPT_TUNING", "P_TUNING", PREFIX)
MAX_VECTORS = 4096
TENSOR = "prompt_embeddings"

# Settings of the training, which do not change what the saved vectors mean.
_NEUTRAL = frozenset((
    "auto_mapping", "base_model_name_or_path", "encoder_dropout", "encoder_hidden_size",
    "encoder_num_layers", "encoder_reparameterization_type", "inference_mode", "init_weights",
    "num_attention_heads", "num_layers", "peft_type", "peft_version", "prefix_projection",
    "prompt_tuning_init", "prompt_tuning_init_text", "revision", "task_type", "tokenizer_kwargs",
    "tokenizer_name_or_path",
))  # fmt: skip
_READ = frozenset(("num_virtual_tokens", "token_dim", "num_transformer_submodules"))
_OFF: tuple[object, ...] = (None, False, [], {})

# transformers multiplies vectors that it is given by the embedding's scale in these families; in
# others the scale is part of the embedding, which the vectors bypass.
_SCALED = frozenset(("granite", "granitemoe", "granitemoeshared", "granitemoehybrid"))
# transformers forgets the scale of the prompt's own tokens once it is given vectors.
_UNSCALED = frozenset(("falcon_h1", "minicpm"))


def read_prompt(
    config: Mapping[str, Any], stored: Mapping[str, StoredTensor], spec: DecoderSpec
) -> Float32:
    """The vectors [n, hidden_size] of a prompt adapter; see `Adapter.vectors`.

    Raises:
        TidemillError: UNSUPPORTED for a key or a family, MODEL_FILE for a value or a tensor;
            `param` is its name.
    """
    if spec.family in _UNSCALED:
        raise unsupported(
            "peft_type",
            f"prompt adapters of {spec.family} models are not supported: PEFT computes them "
            "without the scale of the embedding",
        )
    if spec.layer_inputs is not None:
        raise unsupported(
            "peft_type", f"prompt adapters of {spec.family} models with inputs of layers by token "
            "are not supported"
        )  # fmt: skip
    vectors = _table(config, stored, spec.hidden_size, spec.hidden_size)
    scale = spec.embed_scale if spec.family in _SCALED else 1.0
    return np.ascontiguousarray(vectors * np.float32(scale), np.float32)


def read_prefix(
    config: Mapping[str, Any],
    stored: Mapping[str, StoredTensor],
    spec: DecoderSpec,
    conventions: Conventions,
) -> Prefix:
    """The keys and values of a prefix.

    Args:
        conventions: of the files that it was trained with.

    Raises:
        TidemillError: see `read_prompt`.
    """
    layers = [layer.mixer for layer in spec.layers]
    first = layers[0]
    if not isinstance(first, Attention) or not all(
        isinstance(mixer, Attention)
        and mixer.latent is None
        and mixer.kv_layer is None
        and (mixer.kv_heads, mixer.head_dim) == (first.kv_heads, first.head_dim)
        for mixer in layers
    ):
        raise unsupported(
            "peft_type",
            f"prefix tuning of {spec.family} models is not supported: all layers must have keys "
            "and values of one shape",
        )
    width, count = first.kv_heads * first.head_dim, len(layers)
    for key, wanted in (("num_layers", count), ("num_attention_heads", first.kv_heads)):
        if config.get(key) not in (None, wanted):
            raise model_file_error(
                f"{key} is {str(config[key])[:40]}, and the base has {wanted}"
                + (" key heads" if key == "num_attention_heads" else ""),
                param=key,
            )
    table = _table(config, stored, width, 2 * count * width)
    parts = table.reshape(len(table), count, 2, first.kv_heads, first.head_dim)
    keys = []
    for i, mixer in enumerate(layers):
        found = parts[:, i, 0]
        order = rope_order(mixer, "k") if conventions.paired_rope else None  # type: ignore[arg-type]
        if order is not None:
            found = found.reshape(len(table), -1)[:, order].reshape(found.shape)
        keys.append(np.ascontiguousarray(found, np.float32))
    values = tuple(np.ascontiguousarray(parts[:, i, 1], np.float32) for i in range(count))
    return Prefix(tuple(keys), values)


def _table(
    config: Mapping[str, Any], stored: Mapping[str, StoredTensor], dim: int, width: int
) -> Float32:
    """The one tensor of an adapter, [n, width], after its settings were checked; `dim` is the
    base's `token_dim`."""
    for key, value in config.items():
        if key not in _NEUTRAL and key not in _READ and value not in _OFF:
            raise unsupported(
                key[:80], f"key {key[:80]!r} is not supported; only an empty value of it is"
            )
    count = config.get("num_virtual_tokens")
    if type(count) is not int or not 1 <= count <= MAX_VECTORS:
        raise model_file_error(
            f"num_virtual_tokens must be an integer from 1 to {MAX_VECTORS}",
            param="num_virtual_tokens",
        )
    if config.get("num_transformer_submodules") not in (None, 1):
        raise unsupported(
            "num_transformer_submodules", "num_transformer_submodules must be 1: the model is a "
            "decoder alone"
        )  # fmt: skip
    if config.get("token_dim") not in (None, dim):
        raise model_file_error(
            f"token_dim is {str(config['token_dim'])[:40]}, and that of the base is {dim}",
            param="token_dim",
        )
    for name in stored:
        if name != TENSOR:
            raise model_file_error(
                f"tensor {name[:200]!r} is not one of a prompt adapter: {TENSOR} is",
                param=name[:200],
            )
    if TENSOR not in stored:
        raise model_file_error(f"holds no tensor {TENSOR}", param=TENSOR)
    vectors = values_of(stored[TENSOR])
    if vectors.shape != (count, width):
        raise model_file_error(
            f"tensor {TENSOR!r} has shape {list(vectors.shape)}, and {[count, width]} "
            "follows from num_virtual_tokens and the base",
            param=TENSOR,
        )
    return vectors
