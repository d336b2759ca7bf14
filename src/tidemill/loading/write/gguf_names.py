"""Which tensors a model's GGUF file has, and of which of the model's they are made."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import unsupported
from tidemill.models.dense import Family
from tidemill.models.naming import Fused, canonical_names, rope_order
from tidemill.models.spec import DecoderSpec

_FIELDS = {
    "{i}": r"(?P<i>\d+)",
    "{e}": r"(?P<e>\d+)",
    "{p}": r"(?P<p>[a-z]+)",
    "{t}": r"(?P<t>weight|bias)",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the file.

    Attributes:
        name: as stored.
        shape: outermost axis first.
        parts: canonical names; their rows follow one another.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[str, ...]


def layout(spec: DecoderSpec, family: Family) -> list[GgufTensor]:
    """The file's tensors, in the order of the model's.

    Raises:
        TidemillError: UNSUPPORTED for a tensor that the family's files have no name for.
    """
    assert family.gguf is not None
    expected = spec.expected_tensors()
    found: dict[str, GgufTensor] = {}
    for canonical in expected:
        name, held = _stored(family, canonical, expected)
        if name in found:
            continue
        per_expert = any("{e}" in part for part in held.parts)
        parts = _of_experts(held.parts, expected) if per_expert else held.parts
        shape = expected[parts[0]]
        if per_expert:
            shape = (len(parts), *shape)
        elif len(parts) > 1:
            shape = (sum(expected[part][0] for part in parts), *shape[1:])
        found[name] = GgufTensor(name, _folded(spec, canonical, shape), parts)
    return list(found.values())


def _of_experts(parts: tuple[str, ...], expected: dict[str, tuple[int, ...]]) -> tuple[str, ...]:
    found: list[str] = []
    while parts[0].format(e=len(found) // len(parts)) in expected:
        found += [part.format(e=len(found) // len(parts)) for part in parts]
    return tuple(found)


def _folded(spec: DecoderSpec, canonical: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Norms of heads with weights of their own are stored as a matrix."""
    match = re.fullmatch(r"layers\.(\d+)\.attn\.[qk]_norm\.weight", canonical)
    mixer = spec.attentions()[int(match[1])] if match else None
    if mixer is not None and mixer.qk_norm is not None and mixer.qk_norm.scope == "heads":
        return (shape[0] // mixer.head_dim, mixer.head_dim)
    return shape


def _stored(
    family: Family, canonical: str, expected: dict[str, tuple[int, ...]]
) -> tuple[str, Fused]:
    assert family.gguf is not None
    rules = family.gguf.rules
    for pattern, wanted in rules:
        held = wanted if isinstance(wanted, Fused) else Fused((wanted,) if wanted else ())
        if held.layout != "stacked" or held.transposed:
            continue
        for part in held.parts:
            expression = re.escape(part).replace(r"\{", "{").replace(r"\}", "}")
            for key, group in _FIELDS.items():
                expression = expression.replace(key, group)
            match = re.fullmatch(expression, canonical)
            if match is None:
                continue
            name = pattern.format(**match.groupdict())
            parts = canonical_names(rules, name, expected)[1].parts
            expert = match.groupdict().get("e")
            if canonical in [p.format(e=expert) for p in parts]:
                return name, Fused(parts)
    raise unsupported("out", f"{canonical} has no name in GGUF files of {family.name} models")


def row_order(spec: DecoderSpec, family: Family, canonical: str) -> NDArray[np.int64] | None:
    """Which of a tensor's rows the file has, in its order; None for all as they are."""
    assert family.gguf is not None
    match = re.fullmatch(r"layers\.(\d+)\.attn\.(\w+)\.(weight|bias)", canonical)
    if match is None or not family.gguf.stored.paired_rope:
        return None
    order = rope_order(spec.attentions()[int(match[1])], match[2])
    return None if order is None else np.argsort(order)
