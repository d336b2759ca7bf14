"""A model's fields: specs, the code between, the core's description and its stub say the same."""

from __future__ import annotations

import ast
import re
from dataclasses import fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import pytest
from helpers.random_model import make_spec

from tidemill.backends.native import _core
from tidemill.backends.native import weights as weights_module
from tidemill.backends.native.fields import copy_fields, shared_fields
from tidemill.models import layers, spec

CSRC = Path(__file__).parents[2] / "csrc"
STUB = Path(weights_module.__file__).with_name("_core.pyi")
CONFIGS = [c for n, c in vars(_core).items() if n.endswith(("Config", "Shape"))]
# Which spec is described by which class of the core.
PAIRS = [
    (spec.DecoderSpec, _core.ModelConfig),
    (layers.LayerInputs, _core.LayerInputsConfig),
    (layers.Layer, _core.LayerConfig),
    (layers.Attention, _core.LayerConfig),
    (layers.QkNorm, _core.LayerConfig),
    (layers.Recurrent, _core.RecurrentConfig),
    (layers.Latent, _core.LatentConfig),
    (layers.Mlp, _core.FeedForwardConfig),
    (layers.Moe, _core.ExpertsConfig),
]
EXAMPLES = {
    spec.DecoderSpec: make_spec(),
    layers.LayerInputs: layers.LayerInputs(1, 2, "silu"),
    layers.Layer: layers.Layer(None, None),
    layers.Attention: layers.Attention(2, 1, 8, None),
    layers.QkNorm: layers.QkNorm(),
    layers.Recurrent: layers.Recurrent("delta", 1, 2, 3, 4),
    layers.Latent: layers.Latent(1, 2, 3, 4),
    layers.Mlp: layers.Mlp(8),
    layers.Moe: layers.Moe(4, 2, layers.Mlp(8)),
}
# What weights.py names by parts: norms of blocks, Q and K, the linears of per-layer inputs.
BY_PARTS = {
    "attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm", "q_norm", "k_norm", "input_gate",
    "input_out", "router_norm", "experts_norm", "experts_post", "shared_post",
}  # fmt: skip
# What a spec states for others: shapes of tensors, which are checked before a model is described.
SHAPES = {
    "bias", "q_bias", "k_bias", "v_bias", "o_bias", "down_bias", "router_bias", "intermediate",
    "conv_bias", "skip", "pre_norm", "shared_norm", "no_mixer_norm", "v_from_k",
}  # fmt: skip
# What other rooms read of a spec.
ELSEWHERE = {"family", "foreign", "weights_dtype"}


def properties(config: type) -> dict[str, str]:
    """Name -> type of the fields of a class of the core itself, as its binding says."""
    found = {}
    for name, value in vars(config).items():
        if isinstance(value, property):
            signature = value.fget.__nb_signature__[0][0]
            found[name] = signature.split("-> ")[1].replace("tidemill.backends.native._core.", "")
    return found


def copied(source: type, config: type) -> list[tuple[str, type]]:
    """Shared fields that the spec holds as the core's type, or None."""
    hints = get_type_hints(source)
    found = []
    for name, kind in shared_fields(source, config):
        stated = getattr(source, name)
        hint = hints.get(name) or get_type_hints(stated.fget)["return"]
        kinds = set(get_args(hint)) - {type(None)} if isinstance(hint, UnionType) else {hint}
        if kinds == {kind}:
            found.append((name, kind))
    return found


def names_in(path: Path) -> set[str]:
    """Attributes and strings of a module."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    attributes = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    return attributes | {str(n.value) for n in nodes if isinstance(n, ast.Constant)}


def test_the_stub_is_the_binding() -> None:
    tree = ast.parse(STUB.read_text())
    stated = {
        c.name: (
            [ast.unparse(b) for b in c.bases],
            {
                ast.unparse(a.target): ast.unparse(a.annotation)
                for a in c.body
                if isinstance(a, ast.AnnAssign)
            },
        )
        for c in tree.body
        if isinstance(c, ast.ClassDef) and c.name.endswith(("Config", "Shape"))
    }
    bases = {c.__name__: [b.__name__ for b in c.__bases__ if b is not object] for c in CONFIGS}
    assert stated == {c.__name__: (bases[c.__name__], properties(c)) for c in CONFIGS}


@pytest.mark.parametrize(("source", "config"), PAIRS)
def test_shared_fields_are_copied(source: type, config: type) -> None:
    values: dict[str, Any] = {}
    for i, (name, kind) in enumerate(copied(source, config)):
        if name in {f.name for f in fields(source)}:
            values[name] = not getattr(config(), name) if kind is bool else kind(i + 3)
    described = config()
    copy_fields(replace(EXAMPLES[source], **values), described)
    assert {name: getattr(described, name) for name in values} == values


def test_a_value_of_another_type_is_no_shared_field() -> None:
    described = _core.LayerConfig()
    copy_fields(layers.Attention(2, 1, 8, None, sinks=True, window=None), described)
    assert described.sinks == -1  # the id of a vector, which has the switch's name
    assert described.window == 0
    assert described.heads == 2


def test_every_field_of_the_core_is_described() -> None:
    named = names_in(Path(weights_module.__file__)) | BY_PARTS
    named |= {name for source, config in PAIRS for name, _ in copied(source, config)}
    missing = {f"{c.__name__}.{n}" for c in CONFIGS for n in properties(c) if n not in named}
    assert missing == set()


def test_every_field_of_a_spec_reaches_the_core() -> None:
    named = names_in(Path(weights_module.__file__)) | SHAPES | ELSEWHERE
    for source, config in PAIRS:
        read = named | {name for name, _ in copied(source, config)}
        missing = {f.name for f in fields(source)} - read
        assert missing == set(), source.__name__


def test_every_field_of_the_core_is_read_there() -> None:
    code = [p for p in (CSRC / "model").glob("*.*") if p.name != "config_fields.inl"]
    read = set()
    for path in [*code, CSRC / "step" / "executor.cpp"]:
        read |= set(re.findall(r"\.(\w+)\b", path.read_text()))
        if path.name == "layers.h":  # LatentShape's, inherited
            read |= set(re.findall(r"\b(nope|rope|value|rank)\b", path.read_text()))
    unread = {f"{c.__name__}.{n}" for c in CONFIGS for n in properties(c) if n not in read}
    assert unread == set()
