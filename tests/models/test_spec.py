"""Rope frequencies against transformers, sizes against arithmetic, quantization against gguf."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tidemill.models.quantization import convert, stored_type, to_float32
from tidemill.models.spec import (
    Attention,
    DecoderSpec,
    Layer,
    Mlp,
    QkNorm,
    Rope,
    RopeScaling,
    inverse_frequencies,
)
from tidemill.models.tensors import EMBED, RawTensor, expected_nbytes


def spec(**changes: object) -> DecoderSpec:
    attention = Attention(heads=16, kv_heads=8, head_dim=128, rope=Rope(1e6, 128), qk_norm=QkNorm())
    fields: dict = {
        "family": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "max_positions": 40960,
        "layers": (Layer(attention, Mlp(3072)),) * 28, "norm_eps": 1e-6, "tied_embeddings": True,
    }  # fmt: skip
    return DecoderSpec(**(fields | changes))


def test_qwen3_06b_sizes() -> None:
    model = spec()
    assert model.parameters() == 596_049_920  # the published count
    assert model.kv_bytes_per_token("bfloat16") == 2 * 28 * 8 * 128 * 2
    assert model.kv_bytes_per_token("int8") == 2 * 28 * 8 * (128 + 4)
    # 4 bits a value; K has a pair of bfloat16 per 32 values, V one for the head.
    assert model.kv_bytes_per_token("int4") == 28 * 8 * (64 + 4 * 4 + 64 + 4)
    assert [g.kind for g in model.cache_groups()] == ["full"]


def test_windows_make_cache_groups() -> None:
    full = Attention(4, 2, 8, None)
    slide = Attention(4, 2, 8, None, window=16)
    layers = tuple(Layer(m, Mlp(8)) for m in (full, slide, full, slide))
    groups = spec(layers=layers).cache_groups()
    assert [(g.kind, g.layers, g.window) for g in groups] == [
        ("full", (0, 2), None), ("window", (1, 3), 16),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "scaling"),
    [
        ({"rope_type": "default"}, None),
        ({"rope_type": "linear", "factor": 4.0}, RopeScaling("linear", 4.0)),
        (
            {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            },
            RopeScaling("llama3", 8.0, 1.0, 4.0, 64),
        ),
    ],
)  # fmt: skip
def test_inverse_frequencies_equal_transformers(
    parameters: dict, scaling: RopeScaling | None
) -> None:
    config = LlamaConfig(
        hidden_size=96, num_attention_heads=4, head_dim=24, max_position_embeddings=512,
        rope_parameters={"rope_theta": 500.0, **parameters},
    )  # fmt: skip
    theirs = LlamaRotaryEmbedding(config).inv_freq.numpy()
    ours = inverse_frequencies(Rope(500.0, 24, scaling))
    np.testing.assert_allclose(ours, theirs, rtol=2e-6)


@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_0"])
def test_quantization_equals_the_gguf_package(dtype: str) -> None:
    x = np.random.default_rng(0).normal(size=(7, 96)).astype(np.float32)
    x[3] = 0.0
    raw = RawTensor("F32", x.shape, x.data.cast("B"))
    ours = convert(raw, dtype)
    kind = gguf.GGMLQuantizationType[dtype]
    theirs = gguf.quants.quantize(x, kind)
    assert bytes(ours.data) == theirs.tobytes()
    assert ours.nbytes == expected_nbytes(dtype, x.shape)
    np.testing.assert_array_equal(to_float32(ours), gguf.quants.dequantize(theirs, kind))


def test_int8_has_a_scale_per_row() -> None:
    x = np.random.default_rng(0).normal(size=(7, 77)).astype(np.float32)
    x[3] = 0.0
    ours = convert(RawTensor("F32", x.shape, x.data.cast("B")), "INT8")
    assert ours.nbytes == expected_nbytes("INT8", x.shape) == 7 * 81
    values, steps = to_float32(ours), np.abs(x).max(axis=1, keepdims=True) / 127
    assert (np.abs(values - x) <= 0.5001 * steps).all()
    # Every value is a whole number of steps, and the largest is there itself.
    whole = np.divide(values, steps, out=np.zeros_like(x), where=steps > 0)
    np.testing.assert_allclose(whole, np.round(whole), atol=1e-4)
    np.testing.assert_allclose(np.abs(values).max(axis=1), np.abs(x).max(axis=1), rtol=1e-6)


def test_stored_type_policy() -> None:
    def tensor(*shape: int, dtype: str = "BF16") -> RawTensor:
        return RawTensor(dtype, shape, memoryview(b""))

    assert stored_type("x", tensor(8, 64), "none") == "BF16"
    assert stored_type("x", tensor(8, 64), "q4_0") == "Q4_0"
    assert stored_type(EMBED, tensor(8, 64), "q4_0") == "Q8_0"
    assert stored_type("x", tensor(8, 72), "q8_0") == "BF16"  # rows are no whole blocks
    assert stored_type("x", tensor(8, 72), "int8") == "INT8"
    assert stored_type("x", tensor(64), "q8_0") == "BF16"  # a norm
    assert stored_type("x", tensor(8, 64, dtype="Q4_0"), "q8_0") == "Q4_0"  # never twice
