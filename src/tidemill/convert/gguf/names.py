"""The tensors of a model's GGUF file, and the model's tensors that each consists of."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import unsupported
from tidemill.models.dense import Family
from tidemill.models.naming import Fused, Rules, canonical_names, rope_order, split_rows
from tidemill.models.spec import DecoderSpec, Recurrent

_FIELDS = {
    "{i}": r"(?P<i>\d+)",
    "{e}": r"(?P<e>\d+)",
    "{h}": r"(?P<h>\d+)",
    "{p}": r"(?P<p>[a-z]+)",
    "{t}": r"(?P<t>weight|bias)",
}


_LOW_RANK = "layers.0.attn.q_down.weight"
# Family -> (tensor, name, alternative name): files use the alternative name when the model has the
# tensor.
_RENAMED = {
    "falcon": (("layers.0.mlp_norm.weight", "input_layernorm", "ln_attn"),),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3"),
        (
            (_LOW_RANK, "self_attn.q_proj", "self_attn.q_b_proj"),
            (_LOW_RANK, ".attn_q.", ".attn_q_b."),
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the file.

    Attributes:
        name: as stored.
        shape: outermost axis first.
        parts: canonical names, whose rows are concatenated.
        order: order of these rows in the file; None for the order of `parts`.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[str, ...]
    order: NDArray[np.int64] | None = None


def layout(spec: DecoderSpec, family: Family) -> list[GgufTensor]:
    """The file's tensors, in the order of the model's.

    Raises:
        TidemillError: UNSUPPORTED for a tensor without a name in the family's files.
    """
    assert family.gguf is not None
    expected = spec.expected_tensors()
    found: dict[str, GgufTensor] = {}
    for canonical in expected:
        stored = stored_name(family.gguf.rules, canonical, expected)
        if stored is None:
            raise unsupported(
                "out", f"{canonical} has no name in GGUF files of {family.name} models"
            )
        name, held = stored
        name = usual_name(family, name, expected)
        if name not in found:
            whole = whole_shape(spec, canonical, held, expected)
            order = None
            if held.layout == "heads":
                rows = [np.asarray(rows) for _, rows in split_rows(spec, held, expected)]
                order = np.argsort(np.concatenate(rows))
            found[name] = GgufTensor(name, *whole, order)
    return list(found.values())


def usual_name(family: Family, name: str, expected: Container[str]) -> str:
    """Name of this model's tensor, out of several names that a family's rules read."""
    for sign, one, other in _RENAMED.get(family.name, ()):
        if sign in expected:
            name = name.replace(one, other)
    return name


def whole_shape(
    spec: DecoderSpec, canonical: str, held: Fused, expected: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Shape and parts of the stored tensor that holds `canonical`, in the order of our axes."""
    many = any("{e}" in part or "{h}" in part for part in held.parts)
    parts = _each(held.parts, expected) if many else held.parts
    shape = expected[parts[0]]
    if held.layout == "latents":
        key, value = (expected[part] for part in parts[:2])
        return (len(parts) // 2 * (key[1] + value[0]), value[1]), parts
    if len(held.parts) > 1:
        rows = sum(expected[part.format(e=0, h=0)][0] for part in held.parts)
        shape = (rows, *shape[1:])
    if many:
        shape = (len(parts) // len(held.parts), *shape)
    return _folded(spec, canonical, shape), parts


def _each(parts: tuple[str, ...], expected: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """The parts of all experts, or of all heads."""
    found: list[str] = []
    while True:
        at = len(found) // len(parts)
        named = [part.format(e=at, h=at) for part in parts]
        if named[0] not in expected:
            return tuple(found)
        found += named


def _folded(spec: DecoderSpec, canonical: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of vectors that are stored as matrices: norms with weights per head, and Mamba-2's
    values per channel, head and group."""
    match = re.fullmatch(r"layers\.(\d+)\.(attn|rec)\.(.+)", canonical)
    if match is None:
        return shape
    layer, width = spec.layers[int(match[1])], None
    if match[2] == "rec":
        width = _matrix_widths(layer.recurrent).get(match[3])
    elif match[3] in ("q_norm.weight", "k_norm.weight"):
        mixer = layer.attention
        if mixer is not None and mixer.qk_norm is not None and mixer.qk_norm.scope == "heads":
            width = mixer.head_dim
    return shape if width is None else (shape[0] // width, width)


def _matrix_widths(mixer: Recurrent | None) -> dict[str, int]:
    assert mixer is not None
    widths = {"conv.weight": mixer.conv_kernel}
    if mixer.rule == "ssd":
        widths |= {"a_log": 1, "skip": 1}
        if mixer.norm_groups:
            widths["norm.weight"] = mixer.inner // mixer.norm_groups
    return widths


def stored_name(
    rules: Rules, canonical: str, expected: Mapping[str, tuple[int, ...]], *, anyhow: bool = False
) -> tuple[str, Fused] | None:
    """Name of the stored tensor that holds one of ours, and the tensors it holds; None without one.

    Args:
        anyhow: include transposed tensors and any layout (otherwise whole parts or heads' shares).
    """
    for pattern, wanted in rules:
        held = wanted if isinstance(wanted, Fused) else Fused((wanted,) if wanted else ())
        if not anyhow and (held.layout not in ("stacked", "heads") or held.transposed):
            continue
        for part in held.parts:
            expression = re.escape(part).replace(r"\{", "{").replace(r"\}", "}")
            for key, group in _FIELDS.items():
                expression = expression.replace(key, group)
            match = re.fullmatch(expression, canonical)
            if match is None:
                continue
            name = pattern.format(**match.groupdict())
            found = canonical_names(rules, name, expected)[1]
            fields = {"e": None, "h": None, **match.groupdict()}
            if canonical in [p.format(**fields) for p in found.parts]:
                return name, found
    return None


def row_order(spec: DecoderSpec, family: Family, canonical: str) -> NDArray[np.int64] | None:
    """Order of a tensor's rows in the file; None for our order."""
    assert family.gguf is not None
    match = re.fullmatch(r"layers\.(\d+)\.(attn|rec)\.([a-z_]+)(\.weight|\.bias|)", canonical)
    if match is None:
        return None
    layer, part = spec.layers[int(match[1])], match[3]
    if layer.recurrent is not None and match[2] == "rec":
        return tiled_rows(layer.recurrent, part) if family.gguf.stored.tiled_values else None
    if layer.attention is None or not family.gguf.stored.paired_rope:
        return None
    order = rope_order(layer.attention, part)
    return None if order is None else np.argsort(order)


def tiled_rows(mixer: Recurrent, part: str) -> NDArray[np.int64] | None:
    """Order of the rows of a mixer's tensor (of its output projection, the columns) with
    interleaved value heads; None for our order."""
    shared = mixer.value_heads // mixer.key_heads
    if shared == 1 or mixer.tiled:
        return None
    heads = np.arange(mixer.value_heads).reshape(mixer.key_heads, shared).T.reshape(-1)
    values = (heads[:, None] * mixer.value_dim + np.arange(mixer.value_dim)).reshape(-1)
    before = mixer.channels - mixer.inner  # queries and keys
    channels = np.concatenate([np.arange(before), before + values])
    taps = (channels[:, None] * mixer.conv_kernel + np.arange(mixer.conv_kernel)).reshape(-1)
    rows = {"qkv": channels, "conv": taps, "z": values, "out": values}
    return heads if part in ("a", "b", "a_log", "a_bias") else rows.get(part)
