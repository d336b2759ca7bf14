"""Codes, constants and a step's fields, which Python and `csrc/` both state, are the same."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from tidemill.backends import base
from tidemill.backends.native import _core, layout, weights
from tidemill.base.errors import ErrorKind
from tidemill.models import kv_types, layers

CSRC = Path(__file__).parents[2] / "csrc"
# Where the core writes a name in its own way.
OTHER_NAMES = {"I8": "INT8"}
KV_NAMES = {"F32": "float32", "BF16": "bfloat16", "I8": "int8", "I4": "int4"}


def enum(path: str, name: str) -> dict[str, int]:
    """Name -> code of an enumeration of the core."""
    text = re.sub(r"//.*", "", (CSRC / path).read_text())
    (body,) = re.findall(rf"enum class {name}\b[^{{]*\{{([^}}]*)\}}", text)
    codes: dict[str, int] = {}
    for item in body.split(","):
        if item := item.strip():
            entry, _, code = item.partition("=")
            codes[entry.strip()] = int(code) if code else len(codes)
    return codes


def constant(path: str, name: str) -> int:
    (value,) = re.findall(rf"\b{name} = (\d+)", (CSRC / path).read_text())
    return int(value)


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


@pytest.mark.parametrize(
    ("path", "name", "stated"),
    [
        ("kernels/kernels.h", "Activation", (*layers.ACTIVATIONS, "sigmoid")),  # sigmoid: of gates
        ("model/route.h", "Scoring", weights.SCORINGS),
        ("model/layers.h", "NormScope", weights.QK_SCOPES),
    ],
)
def test_codes_are_places_in_a_list(path: str, name: str, stated: tuple[str, ...]) -> None:
    codes = {snake(entry): code for entry, code in enum(path, name).items()}
    assert codes == {entry: i for i, entry in enumerate(stated)}


def test_codes_of_types() -> None:
    types = enum("kernels/kernels.h", "WeightType")
    assert {OTHER_NAMES.get(n, n): code for n, code in types.items()} == layout.WEIGHT_TYPES
    cached = enum("kernels/kernels.h", "KvType")
    assert {KV_NAMES[n]: code for n, code in cached.items()} == weights.KV_TYPES


def test_constants() -> None:
    assert constant("kernels/kernels.h", "kKvGroup") == kv_types.INT4_GROUP
    assert constant("kernels/kernels.h", "kPanel") == _core.PANEL_ROWS
    assert constant("model/recurrent.h", "kMaxConvKernel") == layers.MAX_CONV_KERNEL
    for kind in ("LOGITS", "HIDDEN"):
        for part in ("NONE", "LAST", "ALL"):
            code = constant("runtime/step.h", f"k{kind.title()}{part.title()}")
            assert code == getattr(base, f"{kind}_{part}")


def test_kinds_of_errors() -> None:
    kinds = set(re.findall(r'ErrorKind::\w+, "(\w+)"', (CSRC / "bindings.cpp").read_text()))
    assert kinds and kinds <= {kind.value for kind in ErrorKind}


@pytest.mark.parametrize("inputs", [base.StepInputs, base.SamplingInputs, base.EmbeddingOverrides])
def test_every_field_of_a_step_is_read(inputs: type) -> None:
    read = set(re.findall(r'"(\w+)"', (CSRC / "bindings_step.cpp").read_text()))
    assert {f.name for f in fields(inputs)} - read == set()
