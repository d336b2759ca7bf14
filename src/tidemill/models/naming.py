"""Ordered rules from a checkpoint's tensor names to the canonical ones.

A rule is (pattern, canonical). ``{i}`` stands for a layer's index and ``*`` for anything. The first
rule that matches decides; None as canonical marks a tensor that is known and not needed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping

from tidemill.base.errors import model_file_error
from tidemill.models import tensors as names
from tidemill.models.spec import DecoderSpec

Rules = tuple[tuple[str, str | None], ...]

# Canonical name of the vector of rope divisors that GGUF files carry (not a weight of the spec).
ROPE_FACTORS = "rope_factors"

HF_RULES: Rules = (
    ("model.embed_tokens.weight", names.EMBED),
    ("model.norm.weight", names.FINAL_NORM),
    ("lm_head.weight", names.LM_HEAD),
    ("model.layers.{i}.input_layernorm.weight", "layers.{i}.attn_norm.weight"),
    ("model.layers.{i}.post_attention_layernorm.weight", "layers.{i}.mlp_norm.weight"),
    ("model.layers.{i}.self_attn.rotary_emb.inv_freq", None),  # written before transformers 4.32
    ("model.rotary_emb.inv_freq", None),
    ("model.layers.{i}.self_attn.{p}_norm.weight", "layers.{i}.attn.{p}_norm.weight"),
    ("model.layers.{i}.self_attn.{p}_proj.{t}", "layers.{i}.attn.{p}.{t}"),
    ("model.layers.{i}.mlp.{p}_proj.{t}", "layers.{i}.mlp.{p}.{t}"),
)

GGUF_RULES: Rules = (
    ("token_embd.weight", names.EMBED),
    ("output_norm.weight", names.FINAL_NORM),
    ("output.weight", names.LM_HEAD),
    ("rope_freqs.weight", ROPE_FACTORS),
    ("blk.{i}.attn_norm.weight", "layers.{i}.attn_norm.weight"),
    ("blk.{i}.ffn_norm.weight", "layers.{i}.mlp_norm.weight"),
    ("blk.{i}.attn_rot_embd", None),  # rope tables of early converters
    ("blk.{i}.attn_output.{t}", "layers.{i}.attn.o.{t}"),
    ("blk.{i}.attn_{p}_norm.weight", "layers.{i}.attn.{p}_norm.weight"),
    ("blk.{i}.attn_{p}.{t}", "layers.{i}.attn.{p}.{t}"),
    ("blk.{i}.ffn_{p}.{t}", "layers.{i}.mlp.{p}.{t}"),
)

_FIELDS = {
    "{i}": r"(?P<i>0|[1-9][0-9]{0,5})",
    "{p}": r"(?P<p>[a-z]+)",
    "{t}": r"(?P<t>weight|bias)",
}


@functools.cache
def _compiled(rules: Rules) -> tuple[tuple[re.Pattern[str], str | None], ...]:
    compiled = []
    for pattern, canonical in rules:
        expression = re.escape(pattern).replace(r"\{", "{").replace(r"\}", "}")
        for field, group in _FIELDS.items():
            expression = expression.replace(field, group)
        compiled.append((re.compile(expression), canonical))
    return tuple(compiled)


def canonical_name(rules: Rules, stored: str) -> tuple[bool, str | None]:
    """(known, canonical): canonical is None for a known tensor that is not needed."""
    for pattern, canonical in _compiled(rules):
        match = pattern.fullmatch(stored)
        if match is not None:
            return True, None if canonical is None else canonical.format(**match.groupdict())
    return False, None


def match_tensors(
    spec: DecoderSpec, rules: Rules, stored: Mapping[str, tuple[int, ...]]
) -> dict[str, str]:
    """Which stored tensor is which tensor of the spec.

    Args:
        spec: the model.
        rules: the file format's names.
        stored: stored name -> shape.

    Returns:
        canonical name -> stored name, for exactly `spec.expected_tensors()`.

    Raises:
        TidemillError: MODEL_FILE naming tensors that are missing, not part of the model, or of
            another shape than the config says.
    """
    expected = spec.expected_tensors()
    found: dict[str, str] = {}
    unexpected: list[str] = []
    for name in stored:
        known, canonical = canonical_name(rules, name)
        if canonical in expected:
            if canonical in found:
                raise model_file_error(f"tensors {found[canonical]!r} and {name!r} are the same")
            found[canonical] = name
        elif not known or canonical not in (None, names.LM_HEAD, ROPE_FACTORS):
            # An output projection stored beside tied embeddings is a copy of them.
            unexpected.append(name)
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
    for canonical, name in found.items():
        if stored[name] != expected[canonical]:
            raise model_file_error(
                f"tensor {name!r} has shape {list(stored[name])}, but the config says "
                f"{list(expected[canonical])}",
                param=name,
            )
    return found


def _some(items: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(items)[:4])
