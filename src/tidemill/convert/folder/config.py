"""config.json for a model that was read from a GGUF file.

As for GGUF, the result is verified: the family reads the config back, and the decoder must be
equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tidemill.base.errors import TidemillError, unsupported
from tidemill.convert.gguf.shape import NO_ROTATION, difference, plain_spec
from tidemill.loading.parts import ModelFiles
from tidemill.models.dense import Family
from tidemill.models.rope import Rope, RopeScaling, inverse_frequencies
from tidemill.models.spec import Attention, DecoderSpec

# transformers' model_type where it differs from our family's name.
_MODEL_TYPES = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "llama4": "llama4_text",
    "hunyuan": "hunyuan_v1_dense",
}
# Keys that transformers derives and rejects when given.
_DERIVED = {"falcon": ("head_dim",)}
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_CONTEXTS = [2**power for power in range(4, 24)]
_ROUNDING = 1e-6  # relative: divisors are float32
_STILL = 1e-20  # angles per position below this count as no rotation


def folder_config(files: ModelFiles, family: Family, dtype: str) -> dict[str, Any]:
    """The keys, verified by reading them back.

    Args:
        dtype: of the weights: F32, F16 or BF16.

    Raises:
        TidemillError: UNSUPPORTED when config.json cannot express a feature of this model.
    """
    config: dict[str, Any] = {
        "architectures": [family.architectures[0]],
        "model_type": _MODEL_TYPES.get(family.name, family.name),
        "torch_dtype": _DTYPES[dtype],
        **{k: _shortest(v) for k, v in files.config.items() if not k.startswith("_")},  # internal
        **_shortest(_rope_scaling(files.spec)),
    }
    config |= _proportional(files.spec, config)
    for key in _DERIVED.get(family.name, ()):
        config.pop(key, None)
    # Written even when empty: transformers would otherwise use those of the family's first model.
    ends = list(files.eos_token_ids)
    config["bos_token_id"] = files.bos_token_id
    config["eos_token_id"] = ends[0] if len(ends) == 1 else ends or None
    padding = (files.tokenizer.gguf or {}).get("tokenizer.ggml.padding_token_id")
    config["pad_token_id"] = padding if padding in range(files.spec.vocab_size) else None
    try:
        read = family.spec(config)
    except TidemillError as error:
        message = f"this model cannot be written as config.json ({error.message})"
        raise unsupported("out", message) from error
    field = difference(plain_spec(read), plain_spec(files.spec), "")
    if field is None and not _same_ropes(read, files.spec):
        field = "rope_scaling"
    if field is not None:
        raise unsupported(
            "out",
            f"config.json of this model's family lacks a key for a property of it ({field}); "
            "give a name that ends in .gguf as OUT",
        )
    return config


def _shortest(value: Any) -> Any:
    """The number before a file stored it as float32: the shortest decimal that rounds to the
    same."""
    if isinstance(value, float) and float(np.float32(value)) == value:
        return float(str(np.float32(value)))
    if isinstance(value, list):
        return [_shortest(one) for one in value]
    if isinstance(value, dict):
        return {key: _shortest(one) for key, one in value.items()}
    return value


def _ropes(spec: DecoderSpec) -> list[Rope | None]:
    mixers = [layer.mixer for layer in spec.layers]
    return [mixer.rope if isinstance(mixer, Attention) else None for mixer in mixers]


def _same_ropes(a: DecoderSpec, b: DecoderSpec) -> bool:
    for one, other in zip(_ropes(a), _ropes(b), strict=True):
        if one is None or other is None:
            if one is not other:
                return False
            continue
        pairs = [
            (inverse_frequencies(one, context), inverse_frequencies(other, context))
            for context in (1, None)
        ]
        pairs.append(([one.attention_factor], [other.attention_factor]))
        if any(not np.allclose(x, y, rtol=_ROUNDING, atol=_STILL) for x, y in pairs):
            return False
    return True


def _rope_scaling(spec: DecoderSpec) -> dict[str, Any]:
    """Scaling stored as tensors; the other scalings are in the config already."""
    rope = next((rope for rope in _ropes(spec) if rope is not None), None)
    if rope is None or rope.scaling is None or _rotating_share(rope) is not None:
        return {}
    if rope.scaling.kind == "factors":
        return {"rope_scaling": _llama3(rope, rope.scaling.factors)}
    if rope.scaling.kind == "longrope":
        return _longrope(rope.scaling, spec.max_positions)
    return {}


def _rotating_share(rope: Rope | None) -> float | None:
    """The share of rotating pairs of ropes whose divisors let only the first pairs rotate; else
    None."""
    factors = () if rope is None or rope.scaling is None else rope.scaling.factors
    rotating = sum(divisor == 1.0 for divisor in factors)
    still = factors[rotating:]
    if not factors or not all(divisor >= NO_ROTATION for divisor in still):
        return None
    return rotating / len(factors)


def _proportional(spec: DecoderSpec, config: Mapping[str, Any]) -> dict[str, Any]:
    """Ropes of the layer types (`layer_types`) in which only a share of the pairs rotates."""
    kinds, ropes = config.get("layer_types"), _ropes(spec)
    if not isinstance(kinds, list) or len(kinds) != len(ropes):
        return {}
    found = dict(config.get("rope_parameters") or {})
    for kind, rope in zip(kinds, ropes, strict=True):
        share = _rotating_share(rope)
        if rope is not None and share is not None:
            found[kind] = {
                "rope_type": "proportional",
                "rope_theta": _shortest(rope.theta),
                "partial_rotary_factor": share,
            }
    return {"rope_parameters": found} if found else {}


def _llama3(rope: Rope, divisors: tuple[float, ...]) -> dict[str, Any]:
    """The parameters of Llama 3.1's rule that yield these divisors.

    They assume its usual bounds (1 and 4). Then the context before scaling is a power of two, and
    the largest divisor is the factor.
    """
    factor = max(divisors)
    plain = Rope(rope.theta, rope.dim)
    for context in _CONTEXTS:
        scaling = RopeScaling("llama3", factor, 1.0, 4.0, context)
        pairs = zip(
            inverse_frequencies(plain),
            inverse_frequencies(Rope(rope.theta, rope.dim, scaling)),
            strict=True,
        )
        if np.allclose([a / b for a, b in pairs], divisors, rtol=_ROUNDING, atol=0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": context,
            }
    raise unsupported(
        "rope_freqs.weight",
        "the file's rope divisors follow no rule that config.json has a name for; give a name that "
        "ends in .gguf as OUT",
    )


def _longrope(scaling: RopeScaling, context: int) -> dict[str, Any]:
    section: dict[str, Any] = {
        "rope_type": "longrope",
        "long_factor": list(scaling.factors),
        "short_factor": list(scaling.short_factors),
    }
    original = scaling.original_context
    usual = 1.0
    if context > original > 1:
        usual = math.sqrt(1 + math.log(context / original) / math.log(original))
    if not math.isclose(scaling.attention_factor, usual, rel_tol=_ROUNDING):
        section["attention_factor"] = scaling.attention_factor
    return {"rope_scaling": section, "original_max_position_embeddings": original}
