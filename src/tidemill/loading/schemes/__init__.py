"""Quantization schemes of Hugging Face checkpoints: selection by the config, and the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidemill.base.errors import model_file_error, unsupported
from tidemill.loading.mapped import StoredTensor
from tidemill.loading.places import Place, one_tensor
from tidemill.loading.schemes import awq, compressed, gptq, hqq, mxfp4, nf4, scaled
from tidemill.loading.schemes.base import Scheme, assemble

# Sections of config.json with quantization settings; the second is an old name.
QUANTIZATION_KEYS = ("quantization_config", "compression_config")

_Reader = Callable[[Mapping[str, Any]], tuple[Scheme, ...]]


def _bitsandbytes(config: Mapping[str, Any]) -> tuple[Scheme, ...]:
    return (nf4.scheme(), scaled.int8(config))


def _auto_round(config: Mapping[str, Any]) -> tuple[Scheme, ...]:
    """The scheme that AutoRound used: it writes the format of another scheme and names it."""
    packing = str(config.get("packing_format") or "")
    if config.get("extra_config"):
        raise unsupported(
            "quantization_config.extra_config", "AutoRound settings by layer are not read"
        )
    if "awq" in packing:
        return (awq.scheme(config),)
    if "gptq" in packing:
        return (gptq.scheme({**config, "desc_act": False}),)
    raise unsupported(
        "quantization_config.packing_format",
        f"AutoRound packing_format {packing[:60]!r} is not read; export it as auto_gptq or "
        "auto_awq",
    )


_METHODS: dict[str, _Reader] = {
    "gptq": lambda config: (gptq.scheme(config),),
    "awq": lambda config: (awq.scheme(config),),
    "fp8": lambda config: (scaled.fp8(config),),
    "fbgemm_fp8": lambda config: (scaled.fp8(config),),
    "compressed-tensors": compressed.schemes,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": lambda config: (mxfp4.scheme(config),),
    "hqq": lambda config: (hqq.scheme(),),
    "auto-round": _auto_round,
    "intel/auto-round": _auto_round,
}


def quantization_schemes(config: Mapping[str, Any]) -> tuple[Scheme, ...]:
    """The schemes that a config.json's ``quantization_config`` names; empty without one.

    Raises:
        TidemillError: UNSUPPORTED naming an unsupported method or setting.
    """
    section = next((config[key] for key in QUANTIZATION_KEYS if config.get(key)), None)
    if not section:
        return ()
    if not isinstance(section, dict):
        raise model_file_error(
            "config key 'quantization_config' must be an object", param="quantization_config"
        )
    method = section.get("quant_method")
    if not isinstance(method, str) or method not in _METHODS:
        raise unsupported(
            "quantization_config.quant_method",
            f"weights quantized by {str(method)[:40]!r} are not read ({', '.join(_METHODS)} are): "
            "use a float checkpoint with --quantize, or a GGUF file",
        )
    return _METHODS[method](section)


def place_weights(
    schemes: tuple[Scheme, ...], stored: Mapping[str, StoredTensor]
) -> tuple[dict[str, StoredTensor | Place], tuple[str, ...]]:
    """Name -> place of a checkpoint's weights, each quantized weight as one, and notes for users.

    Types are not checked here, because an unneeded tensor may have any type.
    """
    found: dict[str, StoredTensor | Place] = dict(stored)
    ignored = 0
    for scheme in schemes:
        plain = {n: t for n, t in found.items() if isinstance(t, StoredTensor)}
        weights = {n: t for n, t in found.items() if not isinstance(t, StoredTensor)}
        more, left = assemble(scheme, plain)
        found = {**more, **weights}
        ignored += left
    notes = []
    if ignored:
        notes.append(
            f"{ignored} tensors say how activations or the KV cache were meant to be quantized; "
            "they are not followed: activations keep more bits here"
        )
    return found, tuple(notes)


def checked_place(place: StoredTensor | Place) -> Place:
    """A weight the model needs; UNSUPPORTED for an unsupported type."""
    return one_tensor(place) if isinstance(place, StoredTensor) else place
