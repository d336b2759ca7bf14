"""How layers are divided among stages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.random_model import make_spec, make_tensors

from tidemill.models.spec import Attention, DecoderSpec
from tidemill.models.stages import cuts_of, divide_layers
from tidemill.models.tensors import TensorHeader

SPEC = make_spec(hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=96)


def _deep(layers: int, **changes: object) -> DecoderSpec:
    return replace(SPEC, layers=SPEC.layers[:1] * layers, **changes)  # type: ignore[arg-type]


def _sized(head: int, *layers: int) -> dict[str, TensorHeader]:
    sizes = {"embed.weight": head} | {f"layers.{i}.x": size for i, size in enumerate(layers)}
    return {name: TensorHeader("F32", (size // 4,), size, "") for name, size in sizes.items()}


@pytest.mark.parametrize(
    ("head", "sizes", "stages", "want"),
    [
        (0, [8, 8, 8, 8], 2, [(0, 2), (2, 4)]),
        (32, [8, 8, 8, 8], 2, [(0, 1), (1, 4)]),  # half of the head is worth two layers
        (0, [40, 8, 8, 8], 2, [(0, 1), (1, 4)]),
        (0, [8, 8, 8, 40, 8], 3, [(0, 3), (3, 4), (4, 5)]),
        (400, [8, 8, 8], 3, [(0, 1), (1, 2), (2, 3)]),  # each has one
    ],
)
def test_the_largest_part_is_as_small_as_can_be(
    head: int, sizes: list[int], stages: int, want: list[tuple[int, int]]
) -> None:
    spec = _deep(len(sizes), tied_embeddings=True)
    assert divide_layers(spec, _sized(head, *sizes), stages) == want


def test_keys_are_read_within_a_stage() -> None:
    first = SPEC.layers[0]
    assert isinstance(first.mixer, Attention)
    reads = replace(first, mixer=replace(first.mixer, kv_layer=1))
    spec = replace(SPEC, layers=(first, first, first, reads, first))
    assert cuts_of(spec) == [1, 4]
    with pytest.raises(ValueError, match="at most 3 parts, because layers read"):
        divide_layers(spec, make_tensors(SPEC), 4)


def test_more_stages_than_layers_are_too_many() -> None:
    with pytest.raises(ValueError, match=r"its 3 layers make at most 3 parts$"):
        divide_layers(SPEC, make_tensors(SPEC), 4)
