"""Rope factors that GGUF files store as tensors: llama3's divisors, and longrope's two lists."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from tidemill.base.errors import model_file_error
from tidemill.loading.mapped import StoredTensor
from tidemill.loading.places import one_tensor
from tidemill.models.config import MAX_POSITIONS, checked_integer, checked_number
from tidemill.models.rope import Rope, RopeScaling
from tidemill.models.spec import Attention, DecoderSpec

DIVISORS = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
ORIGINAL, ATTENTION = "rope.scaling.original_context_length", "rope.scaling.attn_factor"


def with_rope_factors(
    spec: DecoderSpec,
    metadata: Mapping[str, Any],
    stored: Mapping[str, StoredTensor],
    layers: Container[int] | None = None,
) -> DecoderSpec:
    """The spec with the scaling from tensors, on all layers that rotate, or on those of `layers`
    that do.

    Raises:
        TidemillError: MODEL_FILE naming the invalid tensor or key.
    """
    if not any(name in stored for name in (DIVISORS, LONG, SHORT)):
        return spec
    made = []
    for i, layer in enumerate(spec.layers):
        mixer = layer.mixer
        chosen = layers is None or i in layers
        if chosen and isinstance(mixer, Attention) and mixer.rope is not None:
            scaling = _scaling(spec, mixer.rope, metadata, stored)
            rope = dataclasses.replace(mixer.rope, scaling=scaling)
            layer = dataclasses.replace(layer, mixer=dataclasses.replace(mixer, rope=rope))
        made.append(layer)
    return dataclasses.replace(spec, layers=tuple(made))


def _scaling(
    spec: DecoderSpec, rope: Rope, metadata: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> RopeScaling:
    if LONG not in stored and SHORT not in stored:
        return RopeScaling("factors", factors=_factors(stored, DIVISORS, rope))
    prefix = f"{metadata.get('general.architecture')}."
    original = metadata.get(prefix + ORIGINAL, spec.max_positions)
    context = checked_integer(prefix + ORIGINAL, original, 1, MAX_POSITIONS)
    attention = checked_number(prefix + ATTENTION, metadata.get(prefix + ATTENTION, 1.0))
    return RopeScaling(
        "longrope",
        spec.max_positions / context,
        original_context=context,
        factors=_factors(stored, LONG, rope),
        short_factors=_factors(stored, SHORT, rope),
        attention_factor=attention,
    )


def _factors(stored: Mapping[str, StoredTensor], name: str, rope: Rope) -> tuple[float, ...]:
    if name not in stored:
        raise model_file_error(
            f"tensor {name!r} is missing, although its counterpart exists", param=name
        )
    pairs = rope.dim // 2
    if stored[name].shape != (pairs,):
        raise model_file_error(f"tensor {name!r} must hold {pairs} positive numbers", param=name)
    factors = one_tensor(stored[name]).values()
    if not np.isfinite(factors).all() or factors.min() <= 0:
        raise model_file_error(f"tensor {name!r} must hold {pairs} positive numbers", param=name)
    if rope.scaling is not None:
        raise model_file_error(
            f"tensor {name!r} and {rope.scaling.kind} rope scaling exclude each other", param=name
        )
    return tuple(factors.tolist())
