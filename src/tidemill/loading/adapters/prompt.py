"""PEFT's prompt adapters: vectors in front of the prompt, from prompt tuning and P-tuning.

Both are stored alike: what P-tuning's encoder has computed is saved, not the encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tidemill.base.errors import model_file_error, unsupported
from tidemill.loading.adapters.base import values_of
from tidemill.loading.mapped import StoredTensor
from tidemill.models.adapters import Float32
from tidemill.models.spec import DecoderSpec

KINDS = ("PROMPT_TUNING", "P_TUNING")
MAX_VECTORS = 4096
TENSOR = "prompt_embeddings"

# Settings of the training, which do not change what the saved vectors mean.
_NEUTRAL = frozenset((
    "auto_mapping", "base_model_name_or_path", "encoder_dropout", "encoder_hidden_size",
    "encoder_num_layers", "encoder_reparameterization_type", "inference_mode",
    "num_attention_heads", "num_layers", "peft_type", "peft_version", "prompt_tuning_init",
    "prompt_tuning_init_text", "revision", "task_type", "tokenizer_kwargs",
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
    for key, value in config.items():
        if key not in _NEUTRAL and key not in _READ and value not in _OFF:
            raise unsupported(
                key[:80], f"key {key[:80]!r} is not supported; only an empty value of it is"
            )
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
    if config.get("token_dim") not in (None, spec.hidden_size):
        raise model_file_error(
            f"token_dim is {str(config['token_dim'])[:40]}, and vectors of the base have "
            f"{spec.hidden_size} values",
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
    if vectors.shape != (count, spec.hidden_size):
        raise model_file_error(
            f"tensor {TENSOR!r} has shape {list(vectors.shape)}, and {[count, spec.hidden_size]} "
            "follows from num_virtual_tokens and the base",
            param=TENSOR,
        )
    scale = spec.embed_scale if spec.family in _SCALED else 1.0
    return np.ascontiguousarray(vectors * np.float32(scale), np.float32)
