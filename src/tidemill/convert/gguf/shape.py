"""GGUF metadata of a decoder: its keys, and the tensors with rope factors.

The result is verified: the family reads the keys back, and the decoder must be equal.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import TidemillError, unsupported
from tidemill.convert.gguf.names import layout
from tidemill.convert.gguf.values import folded_spec
from tidemill.loading.gguf_rope import ATTENTION, DIVISORS, LONG, ORIGINAL, SHORT
from tidemill.loading.parts import ModelFiles
from tidemill.models.dense import Family
from tidemill.models.gguf_config import config_from_gguf
from tidemill.models.gguf_family import INNER, GgufFamily
from tidemill.models.registry import FAMILIES
from tidemill.models.rope import Rope, inverse_frequencies
from tidemill.models.spec import Attention, DecoderSpec, Latent, Mlp, Moe, Recurrent

_ROUNDING = 1e-6  # relative: numbers are float32 in GGUF
# Scalings stored as tensors; the others are keys.
_IN_TENSORS = ("llama3", "factors", "longrope")
# No effect within the trained context, and GGUF has no key for it.
_BEYOND = ("dynamic",)
NO_ROTATION = 1e30  # divides the frequencies of pairs that do not rotate


def gguf_family(files: ModelFiles) -> Family:
    """The family that reads this model's GGUF file; UNSUPPORTED without one."""
    spec = files.spec
    others = (other for which, other in _SPOKEN_FOR.get(spec.family, ()) if which(spec))
    name = next(others, spec.family)
    own = next(f for f in FAMILIES if f.name == name)
    if own.gguf is None:
        raise unsupported("out", f"GGUF files of {own.name} models are not written; give a folder")
    return own


def shape_metadata(files: ModelFiles, family: Family) -> dict[str, Any]:
    """The keys that describe the decoder, verified by reading them back.

    Raises:
        TidemillError: UNSUPPORTED when GGUF cannot express a feature of this model.
    """
    assert family.gguf is not None
    spec, arch = files.spec, family.gguf.arch
    own = _common(spec, family.gguf) | _rope(spec) | _windows(spec, family.gguf)
    own |= _latent(spec) | _recurrent(spec)
    for key in (*family.gguf.keys, *family.gguf.unused):
        value = _FURTHER[key](spec) if key in _FURTHER else None
        if value is not None:
            # Granite's key is the divisor of the logits, Cohere's the factor.
            divides = family.gguf.keys.get(key) == "logits_scaling"
            own[key] = 1.0 / value if divides else value
    metadata: dict[str, Any] = {"general.architecture": arch, "general.name": files.path.name}
    metadata |= {f"{arch}.{key}": _as_float32(value) for key, value in own.items()}
    _check_spec(files, family, metadata)
    return metadata


def _as_float32(value: Any) -> Any:
    return float(np.float32(value)) if isinstance(value, float) else value


def _common(spec: DecoderSpec, gguf: GgufFamily) -> dict[str, Any]:
    norm = "layer_norm_rms_epsilon" if spec.norm.kind == "rms" else "layer_norm_epsilon"
    own = {
        "block_count": len(spec.layers),
        "context_length": spec.max_positions,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": _widths(spec, "feed_forward_length" in gguf.by_layer),
        "attention.head_count": 0,
        f"attention.{norm}": spec.norm_eps,
        "vocab_size": spec.vocab_size,
    }
    mixer = next((m for m in spec.attentions().values() if m.window is None), _first(spec))
    if mixer is not None:
        own |= {
            "attention.head_count": mixer.heads,
            "attention.head_count_kv": _kv_heads(spec, "attention.head_count_kv" in gguf.by_layer),
            "attention.key_length": mixer.head_dim,
            "attention.value_length": mixer.v_dim,
        }
    return own


def _widths(spec: DecoderSpec, listed: bool) -> int | list[int]:
    """Widths of feed-forward blocks: per layer when they differ and may be listed (0 for no block);
    else that of the dense blocks, or of the experts if no block is dense."""
    widths = {i: _width(layer.mlp) for i, layer in enumerate(spec.layers) if layer.mlp is not None}
    every = [widths.get(i, 0) for i in range(len(spec.layers))]
    if listed and len(set(every)) > 1:
        return every
    dense = [widths[i] for i in widths if isinstance(spec.layers[i].mlp, Mlp)]
    return next(iter([*dense, *widths.values()]), 0)


def _width(mlp: Mlp | Moe) -> int:
    """Width of a feed-forward block. With `separate_norms` it is that of the dense MLP, which runs
    parallel to the experts."""
    if isinstance(mlp, Moe):
        mlp = mlp.shared if mlp.separate_norms and mlp.shared is not None else mlp.expert
    return mlp.intermediate


def _kv_heads(spec: DecoderSpec, listed: bool) -> int | list[int]:
    """KV heads per layer when they differ and may be listed (0 for none), else of the first
    layer."""
    heads = {i: mixer.kv_heads for i, mixer in spec.attentions().items()}
    every = [heads.get(i, 0) for i in range(len(spec.layers))]
    return every if listed and len(set(every)) > 1 else next(iter(heads.values()))


def _recurrent(spec: DecoderSpec) -> dict[str, Any]:
    mixer = next(iter(spec.recurrences().values()), None)
    if mixer is None:
        return {}
    return {
        "ssm.conv_kernel": mixer.conv_kernel,
        INNER: mixer.inner,
        "ssm.state_size": mixer.key_dim,
        "ssm.time_step_rank": mixer.value_heads,
        "ssm.group_count": mixer.key_heads,
    }


def _plain_rope(spec: DecoderSpec) -> Rope | None:
    """The rope of full-attention layers, else of any layer that rotates."""
    rotating = [mixer for mixer in spec.attentions().values() if mixer.rope is not None]
    return next((m.rope for m in [*[m for m in rotating if m.window is None], *rotating]), None)


def _rope(spec: DecoderSpec) -> dict[str, Any]:
    rope = _plain_rope(spec)
    if rope is None:
        return {}
    own: dict[str, Any] = {"rope.freq_base": rope.theta, "rope.dimension_count": rope.dim}
    scaling = rope.scaling
    if scaling is None:
        return own
    if scaling.kind == "longrope":
        own |= {ORIGINAL: scaling.original_context, ATTENTION: scaling.attention_factor}
    if scaling.kind in ("linear", "yarn"):
        own |= {"rope.scaling.type": scaling.kind, "rope.scaling.factor": scaling.factor}
    if scaling.kind == "yarn":
        own |= {
            ORIGINAL: scaling.original_context,
            "rope.scaling.yarn_beta_fast": scaling.beta_fast,
            "rope.scaling.yarn_beta_slow": scaling.beta_slow,
        }
    return own


def _latent(spec: DecoderSpec) -> dict[str, Any]:
    """Keys of latent attention: widths of heads, and the factor of the scores under yarn."""
    mixer, moe = _first(spec), _moe(spec)
    if mixer is None or mixer.latent is None:
        return {}
    latent = mixer.latent
    width = latent.nope + latent.rope
    own: dict[str, Any] = {
        "attention.key_length_mla": width,
        "attention.value_length_mla": latent.value,
    }
    if moe is not None:
        own["expert_gating_func"] = 2 if moe.scoring == "sigmoid" else 1
    scaling = mixer.rope.scaling if mixer.rope is not None else None
    if scaling is not None and scaling.kind == "yarn" and scaling.factor > 1:
        raised = math.sqrt(mixer.score_scale * math.sqrt(width)) - 1
        if raised > _ROUNDING:
            own["rope.scaling.yarn_log_multiplier"] = raised / math.log(scaling.factor)
    return own


def _windows(spec: DecoderSpec, gguf: GgufFamily) -> dict[str, Any]:
    period = gguf.period
    if period is None:
        return {}
    slides = [mixer.window is not None for mixer in spec.attentions().values()]
    usual = [i % period < period - 1 for i in range(len(slides))]
    if not gguf.full_factors and (slides == usual or not any(slides)):
        return {}
    return {"attention.sliding_window_pattern": slides}


def _moe(spec: DecoderSpec) -> Moe | None:
    return next((layer.mlp for layer in spec.layers if isinstance(layer.mlp, Moe)), None)


def _of_moe(value: Callable[[Moe], Any]) -> Callable[[DecoderSpec], Any]:
    def of_spec(spec: DecoderSpec) -> Any:
        moe = _moe(spec)
        return None if moe is None else value(moe)

    return of_spec


def _shared_width(moe: Moe) -> int | None:
    return None if moe.shared is None else moe.shared.intermediate


def _of_local(value: Callable[[Attention], Any]) -> Callable[[DecoderSpec], Any]:
    def of_spec(spec: DecoderSpec) -> Any:
        local = (mixer for mixer in spec.attentions().values() if mixer.window is not None)
        found = next(local, None)
        return None if found is None else value(found)

    return of_spec


def _recurrent_layers(spec: DecoderSpec) -> list[bool]:
    return [layer.recurrent is not None for layer in spec.layers]


def _interval(spec: DecoderSpec) -> int | None:
    """The period of layers with attention only, when every n-th layer and no other is one; else
    None."""
    kinds = _recurrent_layers(spec)
    every = kinds.index(False) + 1 if False in kinds else len(kinds) + 1
    return every if kinds == [(i + 1) % every > 0 for i in range(len(kinds))] else None


def _moe_step(spec: DecoderSpec) -> int | None:
    """The period of layers with experts."""
    sparse = (i for i, layer in enumerate(spec.layers) if isinstance(layer.mlp, Moe))
    first = next(sparse, None)
    return None if first is None else first + 1


def _first(spec: DecoderSpec) -> Attention | None:
    return next(iter(spec.attentions().values()), None)


def _of_attention(value: Callable[[Attention], Any]) -> Callable[[DecoderSpec], Any]:
    def of_spec(spec: DecoderSpec) -> Any:
        mixer = _first(spec)
        return None if mixer is None else value(mixer)

    return of_spec


def _of_latent(value: Callable[[Latent], Any]) -> Callable[[DecoderSpec], Any]:
    return _of_attention(lambda mixer: None if mixer.latent is None else value(mixer.latent))


def _thirds(spec: DecoderSpec) -> list[int] | None:
    """Number of pairs on each of three interleaved position axes; for text all axes have the same
    position."""
    rope = _plain_rope(spec)
    pairs = 0 if rope is None else rope.dim // 2
    return [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0]


def _has_experts(spec: DecoderSpec) -> bool:
    return _moe(spec) is not None


# Families whose GGUF files use another family's name for some models: (condition, that family).
_SPOKEN_FOR: dict[str, tuple[tuple[Callable[[DecoderSpec], bool], str], ...]] = {
    "mistral": ((lambda spec: True, "llama"),),
    "granitemoe": ((lambda spec: True, "granitemoeshared"),),
    "granitemoehybrid": (
        (lambda spec: not spec.recurrences() and _has_experts(spec), "granitemoeshared"),
        (lambda spec: not spec.recurrences(), "granite"),
    ),
    "nemotron_h": ((_has_experts, "nemotron_h_moe"),),
}


def _leading_dense(spec: DecoderSpec) -> int:
    sparse = [i for i, layer in enumerate(spec.layers) if isinstance(layer.mlp, Moe)]
    return sparse[0] if sparse else len(spec.layers)


# Keys of some families -> their value for a spec; None for no key.
_FURTHER: dict[str, Callable[[DecoderSpec], Any]] = {
    "attention.sliding_window": _of_local(lambda mixer: mixer.window),
    "attention.key_length_swa": _of_local(lambda mixer: mixer.head_dim),
    "attention.value_length_swa": _of_local(lambda mixer: mixer.head_dim),
    "attention.shared_kv_layers": lambda s: len(s.attentions()) - len(s.cached()),
    "embedding_length_per_layer_input": lambda s: s.layer_inputs.width if s.layer_inputs else 0,
    "interleave_moe_layer_step": _moe_step,
    "rope.dimension_count_swa": _of_local(lambda mixer: mixer.rope.dim if mixer.rope else None),
    "rope.freq_base_swa": _of_local(lambda mixer: mixer.rope.theta if mixer.rope else None),
    "attn_logit_softcapping": _of_attention(lambda mixer: mixer.softcap),
    "final_logit_softcapping": lambda s: s.logit_softcap,
    "attention.clamp_kqv": _of_attention(lambda mixer: mixer.clip),
    "attention.max_alibi_bias": lambda s: 8.0,
    "attention.scale": _of_attention(lambda mixer: mixer.score_scale),
    "embedding_scale": lambda s: s.embed_scale,
    "residual_scale": lambda s: s.residual_scale,
    "logit_scale": lambda s: s.logit_scale,
    "attention.layer_norm_epsilon": lambda s: s.norm_eps,
    "attention.layer_norm_rms_epsilon": lambda s: s.norm_eps,
    "attention.recurrent_layers": lambda s: None if _interval(s) else _recurrent_layers(s),
    "full_attention_interval": _interval,
    "rope.dimension_sections": _thirds,
    "rope.scaling.finetuned": lambda s: _plain_rope(s) is not None,
    "use_parallel_residual": lambda s: s.layers[0].parallel,
    "expert_count": _of_moe(lambda moe: moe.experts),
    "expert_used_count": _of_moe(lambda moe: moe.top_k),
    "expert_feed_forward_length": _of_moe(lambda moe: moe.expert.intermediate),
    "expert_shared_feed_forward_length": _of_moe(_shared_width),
    "expert_shared_count": _of_moe(
        lambda moe: (_shared_width(moe) or 0) // moe.expert.intermediate
    ),
    "expert_weights_scale": _of_moe(lambda moe: moe.scale),
    "expert_weights_norm": _of_moe(lambda moe: moe.normalize),
    "expert_group_count": _of_moe(lambda moe: moe.groups),
    "expert_group_used_count": _of_moe(lambda moe: moe.top_groups),
    "leading_dense_block_count": _leading_dense,
    "attention.q_lora_rank": _of_latent(lambda latent: latent.q_rank),
    "attention.kv_lora_rank": _of_latent(lambda latent: latent.rank),
}


def _check_spec(files: ModelFiles, family: Family, metadata: Mapping[str, Any]) -> None:
    assert family.gguf is not None
    try:
        shapes = {t.name: t.shape for t in layout(files.spec, family)}
        read = family.spec(config_from_gguf(metadata, shapes, family.gguf))
        expected = folded_spec(files, family)
    except TidemillError as error:
        message = f"this model cannot be written as GGUF ({error.message}); give a folder as OUT"
        raise unsupported("out", message) from error
    if (field := difference(plain_spec(read), plain_spec(expected), "")) is not None:
        raise unsupported(
            "out",
            f"GGUF files of this model's family lack a key for a property of it ({field}); give "
            "a folder as OUT",
        )


def difference(a: Any, b: Any, field: str) -> str | None:
    """Name of a field that differs by more than rounding; None for equal values."""
    if isinstance(a, float) and isinstance(b, float):
        return None if np.isclose(a, b, rtol=_ROUNDING, atol=0) else field
    if dataclasses.is_dataclass(a) and type(a) is type(b):
        for one in dataclasses.fields(a):
            found = difference(getattr(a, one.name), getattr(b, one.name), one.name)
            if found is not None:
                return found
        return None
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        differences = (difference(x, y, field) for x, y in zip(a, b, strict=True))
        return next((d for d in differences if d is not None), None)
    return None if a == b else field


def plain_spec(spec: DecoderSpec) -> DecoderSpec:
    """The spec without parts that files express in other ways: names, types, rope factors."""
    layers = []
    for layer in spec.layers:
        mixer, parallel = layer.mixer, layer.parallel_mixer
        if isinstance(mixer, Attention):
            rope = mixer.rope
            kind = None if rope is None or rope.scaling is None else rope.scaling.kind
            if rope is not None and kind in (*_IN_TENSORS, *_BEYOND):
                rope = dataclasses.replace(rope, scaling=None)
            mixer = dataclasses.replace(mixer, rope=rope, scale=mixer.score_scale)
        elif mixer is not None:
            mixer = _plain_recurrent(mixer)
        if parallel is not None:
            parallel = _plain_recurrent(parallel)
        layers.append(dataclasses.replace(layer, mixer=mixer, parallel_mixer=parallel))
    return dataclasses.replace(spec, family="", weights_dtype="", layers=tuple(layers))


def _plain_recurrent(mixer: Recurrent) -> Recurrent:
    """The mixer with value heads in the file's order; without a norm, gate_first has no effect."""
    gate_first = mixer.gate_first or not mixer.norm_groups
    return dataclasses.replace(mixer, gate_first=gate_first, tiled=False)


def rope_tensors(spec: DecoderSpec, *, full: bool = False) -> dict[str, NDArray[np.float32]]:
    """Stored name -> float32 [dim / 2]: divisors of the frequencies, when no key expresses the
    scaling.

    Args:
        full: the divisors apply only to layers without a window.

    Raises:
        TidemillError: UNSUPPORTED for layers with different factors, which the tensors cannot
            express.
    """
    rope, mixers = _plain_rope(spec), spec.attentions().values()
    if rope is None or rope.scaling is None or rope.scaling.kind not in _IN_TENSORS:
        return {}
    chosen = [m for m in mixers if m.window is None or not full]
    if any(mixer.rope not in (rope, None) for mixer in chosen):
        raise unsupported("out", "layers with rope factors of their own are not written to GGUF")
    if rope.scaling.kind == "longrope":
        lists = {LONG: rope.scaling.factors, SHORT: rope.scaling.short_factors}
        return {name: np.array(values, np.float32) for name, values in lists.items()}
    plain = inverse_frequencies(dataclasses.replace(rope, scaling=None))
    with np.errstate(divide="ignore"):  # for pairs that do not rotate
        divisors: NDArray[np.float64] = np.array(plain) / np.array(inverse_frequencies(rope))
    return {DIVISORS: np.minimum(divisors, NO_ROTATION).astype(np.float32)}
