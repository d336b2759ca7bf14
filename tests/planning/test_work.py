"""What steps compute and read, against sums made by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from helpers.sparse_model import LLAMA_7B

from tidemill.backends.base import HeldTensor
from tidemill.models.registry import family_for_config
from tidemill.models.tensors import TensorHeader
from tidemill.planning.work import Experts, Rows, Weights, Work, pairs, work_of

MIXTRAL = {
    **LLAMA_7B, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
    "num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8,
    "num_experts_per_tok": 2, "num_hidden_layers": 2,
}  # fmt: skip


def work(config: Mapping[str, Any]) -> Work:
    spec = family_for_config(config).spec(dict(config))
    shapes = spec.expected_tensors()
    headers = {n: TensorHeader("BF16", s, 2 * math.prod(s)) for n, s in shapes.items()}
    held = {n: HeldTensor(header.nbytes) for n, header in headers.items()}
    return work_of(spec, headers, held, "bfloat16", "bfloat16")


def test_a_dense_model() -> None:
    found = work(LLAMA_7B)
    layer = 4 * 4096 * 4096 + 3 * 4096 * 11008
    assert found.dense == Weights(32 * layer, 64 * layer)
    assert found.output == Weights(32000 * 4096, 2 * 32000 * 4096)
    assert found.experts is None and found.layers == 32
    # A token after 99 ones: 100 keys of 32 heads of 128, and as many values.
    one = Rows(1, 1, 99)
    products = 2 * (32 * layer + 32000 * 4096)
    assert found.flops(one) == products + 100 * 32 * 2 * 32 * (128 + 128)
    cached = 32 * 2 * 4096 * 2
    assert found.nbytes(one) == 64 * layer + 2 * 32000 * 4096 + 100 * cached
    # Weights are read once for all rows, each row's cache by itself.
    assert found.nbytes(Rows(3, 1, 99)) - found.nbytes(one) == 200 * cached
    assert found.flops(Rows(3, 1, 99)) == 3 * found.flops(one)


def test_experts_are_read_as_tokens_choose_them() -> None:
    found = work(MIXTRAL)
    expert = 3 * 4096 * 14336
    assert found.experts == Experts(Weights(2 * 8 * expert, 2 * 2 * 8 * expert), 0.25)
    read = found.experts.read
    assert read(1) == found.experts.weights.nbytes / 4
    assert read(2) == found.experts.weights.nbytes * (1 - 0.75**2)
    assert read(64) == pytest.approx(found.experts.weights.nbytes, rel=1e-6)
    # A token multiplies 2 of 8.
    dense = 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 8 * 4096)
    assert found.dense.values == dense
    assert found.flops(Rows(1, 1, 0)) == pytest.approx(
        2 * (dense + 2 * 2 * expert + 32000 * 4096) + 2 * 2 * 32 * 256
    )


def test_a_window_bounds_what_is_read_and_multiplied() -> None:
    config = {**LLAMA_7B, "architectures": ["MistralForCausalLM"], "model_type": "mistral",
              "sliding_window": 128}  # fmt: skip
    found = work(config)
    assert [kind.window for kind in found.attention] == [128]
    near, far = Rows(1, 1, 10_000), Rows(1, 1, 20_000)
    assert found.nbytes(near) == found.nbytes(far) and found.flops(near) == found.flops(far)
    assert pairs(4, 10) == 11 + 12 + 13 + 14 and pairs(4, 10, 3) == 12
