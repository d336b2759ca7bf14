"""Ordered rules from a checkpoint's tensor names to the canonical ones.

A rule is (pattern, canonical). ``{i}`` stands for a layer's index, ``{e}`` for an expert's, ``{p}``
for a word, ``{t}`` for weight or bias. The first matching rule applies; if several match, the first
whose tensors the model has. None as canonical marks a known tensor that is not needed, `Fused` one
that holds several of ours. When only the canonical name has ``{e}``, the stored tensor's first axis
counts the experts. ``{h}`` occurs in no stored name and counts the heads.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import model_file_error
from tidemill.models import tensors as names
from tidemill.models.sources import AS_NAMED, Conventions, Rows, Source, paired_order, pick
from tidemill.models.spec import Attention, DecoderSpec, Latent, Recurrent


@dataclass(frozen=True, slots=True)
class Fused:
    """A stored tensor whose rows belong to several of ours.

    Attributes:
        parts: canonical names.
        layout: ``stacked``: one part after the other; ``alternating``: rows of the parts in turn;
            ``grouped``: Q, K and V of one KV head after the other, Q with all heads that share it;
            ``heads``: each part's share of one head after the other; ``delta``: of a recurrent
            mixer, Q, K, V and z of one key head after the other; ``latents``: the matrices of one
            head (``{h}``) after the other, from latents, those of K transposed.
        transposed: weights are stored [in, out]; None: decided by their shape.
    """

    parts: tuple[str, ...]
    layout: str = "stacked"
    transposed: bool | None = False


Rules = tuple[tuple[str, str | Fused | None], ...]

# Canonical name of GGUF's vector of rope divisors (not a weight of the spec).
ROPE_FACTORS = "rope_factors"
# Our vectors that may be stored with more axes -> number of axes.
_FLATTENED = {
    "_norm.weight": (2,), "rec.conv.weight": (2, 3), "rec.norm.weight": (2,), "rec.a_log": (2,),
    "rec.skip": (2,),
}  # fmt: skip

HF_RULES: Rules = (
    ("model.embed_tokens.weight", names.EMBED),
    ("model.norm.weight", names.FINAL_NORM),
    ("lm_head.{t}", "lm_head.{t}"),
    ("model.layers.{i}.input_layernorm.weight", "layers.{i}.attn_norm.weight"),
    ("model.layers.{i}.post_attention_layernorm.weight", "layers.{i}.mlp_norm.weight"),
    ("model.layers.{i}.self_attn.rotary_emb.inv_freq", None),  # written before transformers 4.32
    ("model.rotary_emb.inv_freq", None),
    ("model.layers.{i}.self_attn.{p}_norm.weight", "layers.{i}.attn.{p}_norm.weight"),
    ("model.layers.{i}.self_attn.{p}_proj.{t}", "layers.{i}.attn.{p}.{t}"),
    ("model.layers.{i}.mlp.{p}_proj.{t}", "layers.{i}.mlp.{p}.{t}"),
)

# Layer norms, which have biases.
HF_NORM_RULES: Rules = (
    ("model.norm.{t}", "final_norm.{t}"),
    ("model.layers.{i}.input_layernorm.{t}", "layers.{i}.attn_norm.{t}"),
    ("model.layers.{i}.post_attention_layernorm.{t}", "layers.{i}.mlp_norm.{t}"),
)
QKV = Fused(tuple(f"layers.{{i}}.attn.{p}.{{t}}" for p in "qkv"))
GROUPED_QKV = dataclasses.replace(QKV, layout="grouped")
GATE_UP = Fused(("layers.{i}.mlp.gate.{t}", "layers.{i}.mlp.up.{t}"))

HF_EXPERTS: Rules = (
    ("model.layers.{i}.mlp.gate.weight", "layers.{i}.mlp.router.weight"),
    (
        "model.layers.{i}.mlp.experts.{e}.{p}_proj.weight",
        "layers.{i}.mlp.experts.{e}.{p}.weight",
    ),
)
_EXPERT = "layers.{i}.mlp.experts.{e}."
# Experts in one tensor, as transformers 5 writes them for some families.
STACKED_EXPERTS: tuple[tuple[str, Fused], ...] = (
    ("model.layers.{i}.mlp.experts.gate_up_proj",
     Fused((_EXPERT + "gate.weight", _EXPERT + "up.weight"))),
    ("model.layers.{i}.mlp.experts.down_proj", Fused((_EXPERT + "down.weight",))),
)  # fmt: skip
_SPARSE = "model.layers.{i}.block_sparse_moe."
MIXTRAL_EXPERTS: Rules = (
    (_SPARSE + "gate.weight", "layers.{i}.mlp.router.weight"),
    (_SPARSE + "experts.{e}.w1.weight", "layers.{i}.mlp.experts.{e}.gate.weight"),
    (_SPARSE + "experts.{e}.w2.weight", "layers.{i}.mlp.experts.{e}.down.weight"),
    (_SPARSE + "experts.{e}.w3.weight", "layers.{i}.mlp.experts.{e}.up.weight"),
)

GGUF_RULES: Rules = (
    ("token_embd.weight", names.EMBED),
    ("token_embd_norm.{t}", "embed_norm.{t}"),
    ("position_embd.weight", names.POSITIONS),
    ("output_norm.{t}", "final_norm.{t}"),
    ("output.{t}", "lm_head.{t}"),
    ("rope_freqs.weight", ROPE_FACTORS),
    ("rope_factors_long.weight", ROPE_FACTORS),
    ("rope_factors_short.weight", ROPE_FACTORS),
    ("blk.{i}.attn_norm.{t}", "layers.{i}.attn_norm.{t}"),
    ("blk.{i}.ffn_norm.{t}", "layers.{i}.mlp_norm.{t}"),
    ("blk.{i}.post_attention_norm.weight", "layers.{i}.attn_post_norm.weight"),
    ("blk.{i}.post_ffw_norm.weight", "layers.{i}.mlp_post_norm.weight"),
    ("blk.{i}.attn_rot_embd", None),  # rope tables of early converters
    ("blk.{i}.attn_output.{t}", "layers.{i}.attn.o.{t}"),
    ("blk.{i}.attn_{p}_norm.{t}", "layers.{i}.attn.{p}_norm.{t}"),
    ("blk.{i}.attn_{p}.{t}", "layers.{i}.attn.{p}.{t}"),
    ("blk.{i}.ffn_{p}.{t}", "layers.{i}.mlp.{p}.{t}"),
)
# Experts; early files have a tensor per expert.
GGUF_EXPERTS: Rules = (
    ("blk.{i}.ffn_gate_inp.{t}", "layers.{i}.mlp.router.{t}"),
    ("blk.{i}.ffn_gate_inp_shexp.weight", "layers.{i}.mlp.shared_gate.weight"),
    ("blk.{i}.ffn_{p}_exps.{t}", "layers.{i}.mlp.experts.{e}.{p}.{t}"),
    ("blk.{i}.ffn_{p}_shexp.weight", "layers.{i}.mlp.shared.{p}.weight"),
    ("blk.{i}.ffn_{p}.{e}.weight", "layers.{i}.mlp.experts.{e}.{p}.weight"),
    *GGUF_RULES,
)
GGUF_QKV: Rules = (("blk.{i}.attn_qkv.{t}", QKV), *GGUF_RULES)
GGUF_QKV_TOO: Rules = (*GGUF_RULES, ("blk.{i}.attn_qkv.{t}", QKV))  # only in early files
GGUF_GATE_UP: Rules = (("blk.{i}.ffn_up.{t}", GATE_UP),)

_T = TypeVar("_T")

_FIELDS = {
    "{i}": r"(?P<i>0|[1-9][0-9]{0,5})",
    "{e}": r"(?P<e>0|[1-9][0-9]{0,5})",
    "{p}": r"(?P<p>[a-z]+)",
    "{t}": r"(?P<t>weight|bias)",
}


@functools.cache
def _compiled(rules: Rules) -> tuple[tuple[re.Pattern[str], str | Fused | None], ...]:
    compiled = []
    for pattern, canonical in rules:
        expression = re.escape(pattern).replace(r"\{", "{").replace(r"\}", "}")
        for field, group in _FIELDS.items():
            expression = expression.replace(field, group)
        compiled.append((re.compile(expression), canonical))
    return tuple(compiled)


def canonical_names(
    rules: Rules, stored: str, expected: Container[str] | None = None
) -> tuple[bool, Fused]:
    """(known, the canonical names it holds); a known tensor that is not needed holds none. A name
    may keep ``{e}``: the expert is then an index into the tensor. If several rules match, the first
    whose tensors are `expected` (for experts, the first one's) applies, or else the first of all.
    """
    found: tuple[bool, Fused] | None = None
    for pattern, canonical in _compiled(rules):
        match = pattern.fullmatch(stored)
        if match is None:
            continue
        fields = {"e": "{e}", "h": "{h}", **match.groupdict()}
        if isinstance(canonical, Fused):
            parts = tuple(part.format(**fields) for part in canonical.parts)
            held = dataclasses.replace(canonical, parts=parts)
        else:
            held = Fused(() if canonical is None else (canonical.format(**fields),))
        found = found or (True, held)
        if expected is None or all(part.format(e=0, h=0) in expected for part in held.parts):
            return True, held
    return found or (False, Fused(()))


def with_prefix(rules: Rules, stored: Mapping[str, _T]) -> dict[str, _T]:
    """Stored names as in a causal model. A checkpoint of the layers alone omits the prefix
    ``model.``."""
    first = next((pattern for pattern, name in rules if name == names.EMBED), "")
    prefix, dot, rest = first.partition(".")
    if not dot or rest not in stored or any(name.startswith(prefix + dot) for name in stored):
        return dict(stored)
    heads = ("lm_head.", "score.")
    return {n if n.startswith(heads) else prefix + dot + n: t for n, t in stored.items()}


def match_tensors(
    spec: DecoderSpec,
    rules: Rules,
    stored: Mapping[str, tuple[int, ...]],
    conventions: Conventions = AS_NAMED,
) -> dict[str, Source]:
    """Maps every tensor of the spec to a stored tensor, or to part of one.

    Args:
        spec: the model.
        rules: the file format's names.
        stored: stored name -> shape.
        conventions: conversions of stored tensors.

    Returns:
        canonical name -> source, for exactly `spec.expected_tensors()`.

    Raises:
        TidemillError: MODEL_FILE naming tensors that are missing, not part of the model, or of
            another shape than the config says.
    """
    expected = spec.expected_tensors()
    found: dict[str, Source] = {}
    unexpected: list[str] = []
    for name, shape in stored.items():
        if name.startswith(conventions.left_out):
            continue
        known, held = canonical_names(rules, name, expected)
        for expert, parts in _members(spec, held, shape):
            if not parts or any(part not in expected for part in parts):
                # An output projection stored with tied embeddings is a copy of them.
                drafts = conventions.draft_layers and _behind(spec, parts)
                copied = not parts or parts[0] in (names.LM_HEAD, ROPE_FACTORS)
                unread = _of_shared_kv(spec, parts)
                if not known or not (copied or drafts or unread):
                    unexpected.append(name)
                continue
            one = dataclasses.replace(held, parts=parts)
            for part, source in _views(spec, one, name, shape, expert, expected, conventions):
                if part in found:
                    raise model_file_error(
                        f"tensors {found[part].stored!r} and {name!r} are the same"
                    )
                found[part] = source
    missing = [name for name in expected if name not in found]
    if missing:
        raise model_file_error(
            f"the model lacks {len(missing)} tensors, among them {_some(missing)} (our names); "
            "the file is incomplete or its config describes another model"
        )
    if unexpected:
        raise model_file_error(
            f"the file holds {len(unexpected)} tensors that its config does not account for, among "
            f"them {_some(unexpected)}; the config describes another model"
        )
    return found


def views_of(
    spec: DecoderSpec,
    rules: Rules,
    name: str,
    shape: tuple[int, ...],
    conventions: Conventions,
    expected: Mapping[str, tuple[int, ...]],
    *,
    as_linear: bool = False,
) -> dict[str, Source]:
    """Canonical name -> source of the tensors that one stored tensor holds; empty for a name that
    is none of the model's.

    Args:
        name, shape: of the stored tensor.
        expected: canonical name -> shape of the model's tensors.
        as_linear: the shape is [out, in] whatever order the family stores the matrix in.

    Raises:
        TidemillError: MODEL_FILE for another shape than the config says.
    """
    _, held = canonical_names(rules, name, expected)
    if as_linear:
        held = dataclasses.replace(held, transposed=False)
    found: dict[str, Source] = {}
    for expert, parts in _members(spec, held, shape):
        if not parts or any(part not in expected for part in parts):
            return {}
        one = dataclasses.replace(held, parts=parts)
        found |= dict(_views(spec, one, name, shape, expert, expected, conventions))
    return found


def _members(
    spec: DecoderSpec, held: Fused, shape: tuple[int, ...]
) -> Iterator[tuple[int | None, tuple[str, ...]]]:
    """(index into the first axis or None, canonical names) of each expert or head in a tensor."""
    experts: Iterable[int | None] = (None,)
    heads = held.layout == "stacked" and any("{h}" in part for part in held.parts)
    if heads or any("{e}" in part for part in held.parts):
        experts = range(shape[0] if len(shape) > 1 else 0)
    for expert in experts:
        head = expert if heads else "{h}"
        parts = tuple(part.format(e=expert, h=head) for part in held.parts)
        yield expert, _of_heads(spec, parts) if held.layout == "latents" else parts


def _views(
    spec: DecoderSpec,
    held: Fused,
    name: str,
    shape: tuple[int, ...],
    expert: int | None,
    expected: Mapping[str, tuple[int, ...]],
    conventions: Conventions,
) -> Iterator[tuple[str, Source]]:
    """(canonical name, its view) of each part that a tensor holds, shapes checked."""
    parts, transposed = held.parts, held.transposed
    if transposed is None:
        rows_of = sum(expected[part][0] for part in parts)
        transposed = shape[-2:] == (expected[parts[0]][1], rows_of)
    for part, rows in split_rows(spec, held, expected):
        turned = held.layout == "latents" and ".k_up." in part
        source = Source(name, expert, transposed, rows, turned=turned)
        flat = shape
        axes = next((n for end, n in _FLATTENED.items() if part.endswith(end)), ())
        if len(shape) in axes:
            source = dataclasses.replace(source, flat=True)
            flat = (math.prod(shape),)
        source = _source(spec, part, source, conventions)
        if held.layout == "latents":
            _check_heads(source, flat, parts, expected)
        else:
            _check_shape(source, flat, expected[part], parts, expected)
        yield part, source


def _of_heads(spec: DecoderSpec, parts: tuple[str, ...]) -> tuple[str, ...]:
    heads = range(1 if _behind(spec, parts) else _attention_of(spec, parts[0]).heads)
    return tuple(part.format(h=head) for head in heads for part in parts)


def _behind(spec: DecoderSpec, parts: tuple[str, ...]) -> bool:
    """Whether the parts belong to a layer after the last one."""
    if not parts:
        return False
    first = parts[0].split(".")
    return first[0] == "layers" and int(first[1]) >= len(spec.layers)


def _of_shared_kv(spec: DecoderSpec, parts: tuple[str, ...]) -> bool:
    """Whether the parts produce K and V of a layer that reads another layer's."""
    match = re.match(r"layers\.(\d+)\.attn\.[kv](_norm)?\.", parts[0] if parts else "")
    mixer = spec.attentions().get(int(match[1])) if match else None
    return mixer is not None and mixer.kv_layer is not None


def _check_heads(
    source: Source,
    stored: tuple[int, ...],
    parts: tuple[str, ...],
    expected: Mapping[str, tuple[int, ...]],
) -> None:
    rows = sum(expected[part][".k_up." in part] for part in parts)
    full = (rows, expected[parts[-1]][1])
    if stored != full:
        raise model_file_error(
            f"tensor {source.stored!r} has shape {list(stored)}, but the config says {list(full)}",
            param=source.stored,
        )


def _check_shape(
    source: Source,
    stored: tuple[int, ...],
    wanted: tuple[int, ...],
    parts: tuple[str, ...],
    expected: Mapping[str, tuple[int, ...]],
) -> None:
    axes = len(wanted) + (source.expert is not None)
    whole = (sum(expected[part][0] for part in parts), *wanted[1:])
    full = whole[::-1] if source.transposed else whole
    if len(stored) == axes and stored[axes - len(wanted) :] == full:
        return
    chosen = len(parts) == 1 and source.rows is not None and len(stored) == axes
    if chosen and source.shape(stored) == wanted:  # rows of a longer tensor
        return
    raise model_file_error(
        f"tensor {source.stored!r} has shape {list(stored)}, but the config says "
        f"{list(full) if source.expert is None else ['experts', *full]}",
        param=source.stored,
    )


def split_rows(
    spec: DecoderSpec, held: Fused, expected: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, Rows | None]]:
    """Each part with its rows of the stored tensor; None for all rows."""
    parts, layout = held.parts, held.layout
    if len(parts) == 1:
        yield parts[0], None
    elif layout == "stacked":
        start = 0
        for part in parts:
            yield part, slice(start, start + expected[part][0])
            start += expected[part][0]
    elif layout == "latents":
        start = 0
        for part in parts:
            taken = expected[part][".k_up." in part]
            yield part, slice(start, start + taken)
            start += taken
    elif layout == "alternating":
        for i, part in enumerate(parts):
            yield part, slice(i, None, len(parts))
    elif layout in ("heads", "delta"):
        yield from _by_head(spec, parts, layout, expected)
    else:
        mixer = _attention_of(spec, parts[0])
        group = mixer.heads // mixer.kv_heads
        count = (mixer.heads + 2 * mixer.kv_heads) * mixer.head_dim
        rows = np.arange(count).reshape(mixer.kv_heads, group + 2, mixer.head_dim)
        chosen = (rows[:, :group], rows[:, group], rows[:, group + 1])
        for part, of_part in zip(parts, chosen, strict=True):
            yield part, of_part.reshape(-1)


def _by_head(
    spec: DecoderSpec, parts: tuple[str, ...], layout: str, expected: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, Rows]]:
    mixer = spec.layers[int(parts[0].split(".")[1])].mixer
    if layout == "heads":  # (part, rows of one head), in order
        assert mixer is not None
        heads = mixer.heads if isinstance(mixer, Attention) else mixer.key_heads
        pieces = [(part, expected[part][0] // heads) for part in parts]
    else:
        assert isinstance(mixer, Recurrent)
        heads, value = mixer.key_heads, mixer.inner // mixer.key_heads
        qkv, z = parts
        pieces = [(qkv, mixer.key_dim), (qkv, mixer.key_dim), (qkv, value), (z, value)]
    width = sum(count for _, count in pieces)
    rows = np.arange(heads * width).reshape(heads, width)
    found: dict[str, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}
    at = 0
    for part, count in pieces:
        found.setdefault(part, []).append(rows[:, at : at + count].reshape(-1))
        at += count
    for part, lists in found.items():
        yield part, np.concatenate(lists)


def _attention_of(spec: DecoderSpec, canonical: str) -> Attention:
    mixer = spec.layers[int(canonical.split(".")[1])].mixer
    assert isinstance(mixer, Attention)
    return mixer


def _source(
    spec: DecoderSpec,
    canonical: str,
    source: Source,
    conventions: Conventions,
) -> Source:
    rows = source.rows
    parts = canonical.split(".")
    in_layer = parts[0] == "layers"
    norm = parts[-1] == "weight" and parts[-2].endswith("norm") and "rec" not in parts
    if conventions.paired_rope and in_layer and parts[2] == "attn":
        order = rope_order(_attention_of(spec, canonical), parts[3])
        rows = rows if order is None else pick(rows, order)
    if canonical == names.POSITIONS and conventions.position_offset:
        first = conventions.position_offset
        rows = slice(first, first + spec.max_positions)
    return dataclasses.replace(
        source,
        transposed=source.transposed and parts[-1] == "weight",
        rows=rows,
        plus=1.0 if conventions.norms_less_one and norm else 0.0,
        decay=conventions.decays and canonical.endswith(".rec.a_log"),
    )


def rope_order(mixer: Attention, part: str) -> NDArray[np.int64] | None:
    """Order in which the rows of an attention tensor (``q``, ``k_norm``, ...) are read from
    paired rope files to be in rotate-half order; None when the order is equal."""
    if mixer.latent is not None:
        return _latent_order(mixer, mixer.latent, part)
    heads = {"q": mixer.heads, "k": mixer.kv_heads}.get(part)
    if part in ("q_norm", "k_norm") and mixer.qk_norm is not None:
        heads = mixer.heads if part == "q_norm" else mixer.kv_heads
        heads = 1 if mixer.qk_norm.scope == "head" else heads
    if heads is None or mixer.rope is None:
        return None
    return paired_order(heads, mixer.head_dim, mixer.rope.dim)


def _latent_order(mixer: Attention, latent: Latent, part: str) -> NDArray[np.int64] | None:
    """Order in latent attention. The end of each query and of [latent, key] rotates."""
    if part == "q":
        return paired_order(mixer.heads, latent.nope + latent.rope, latent.rope, latent.nope)
    if part == "kv_down":
        return paired_order(1, latent.rank + latent.rope, latent.rope, latent.rank)
    return None


def _some(items: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(items)[:4])
