"""The native backend against a float64 decoder: every feature of a spec, every type, every ISA."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, options
from helpers.random_model import ReferenceDecoder, make_spec, make_tensors, raw, with_windows

from tidemill.backends import native
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.models.quantization import to_float32
from tidemill.models.spec import DecoderSpec, Mlp, QkNorm, Rope, RopeScaling

TOKENS = np.random.default_rng(1).integers(0, 131, 70).tolist()

SPECS = {
    "gqa": make_spec(),
    "untied": make_spec(tied=False),
    "mha-biases": make_spec(
        kv_heads=6, q_bias=True, k_bias=True, v_bias=True, o_bias=True, mlp_bias=True
    ),
    "qk-norm": make_spec(qk_norm=QkNorm(), head_dim=32, heads=4, kv_heads=1),
    "partial-rope": make_spec(rope=Rope(500.0, 6)),
    "llama3-rope": make_spec(
        rope=Rope(10000.0, 10, RopeScaling("llama3", 8.0, 1.0, 4.0, original_context=32))
    ),
    "windows": with_windows(make_spec(), [None, 20, 33]),
    "scale": make_spec(scale=0.25, head_dim=2),
    "odd-sizes": make_spec(hidden=66, intermediate=101, vocab=67, heads=3, kv_heads=3, head_dim=14),
}


def tokens_of(spec: DecoderSpec) -> list[int]:
    return [t % spec.vocab_size for t in TOKENS]


def logits_of(spec: DecoderSpec, tensors: dict, chunk: int | None = None, **changes: object):
    backend = native.load(spec, tensors, options(**changes))
    try:
        return BackendDriver(backend, 16).all_logits(tokens_of(spec), chunk)
    finally:
        backend.close()


@pytest.mark.parametrize("isa", native.available_isas())
@pytest.mark.parametrize("name", SPECS)
def test_float32_equals_the_reference(name: str, isa: str) -> None:
    spec = SPECS[name]
    tensors = make_tensors(spec)
    expected = ReferenceDecoder(spec, tensors).logits(tokens_of(spec))
    got = logits_of(spec, tensors, chunk=23, isa=isa, threads=2)
    assert np.abs(got - expected).max() < 5e-5  # far inside the promised 1e-3


# Error allowed (root mean square, as a share of the logits') against the dequantized weights: what
# is left is the rounding of activations (bf16: 8 bits; int8: a scale per 32 values).
TOLERANCES = {
    ("F32", "bfloat16"): 0.012,  # the weights are rounded to bf16 too
    ("F16", "bfloat16"): 1e-5,  # computed in float32
    ("F16", "float32"): 1e-5,
    ("BF16", "bfloat16"): 0.012,
    ("BF16", "float32"): 1e-5,
    ("Q8_0", "bfloat16"): 0.03,
    ("Q4_0", "bfloat16"): 0.03,
    ("Q8_0", "float32"): 0.03,
    ("INT8", "bfloat16"): 0.04,  # one scale for all of a token's values
}


def error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(((got - expected) ** 2).mean() / (expected**2).mean()))


@pytest.mark.parametrize("isa", native.available_isas())
@pytest.mark.parametrize(("stored", "dtype"), TOLERANCES)
def test_weight_types_equal_the_dequantized_reference(stored: str, dtype: str, isa: str) -> None:
    spec = make_spec(heads=4, head_dim=32)
    tensors = make_tensors(spec, stored)
    expected = ReferenceDecoder(spec, tensors).logits(tokens_of(spec))
    got = logits_of(spec, tensors, dtype=dtype, isa=isa)
    assert error(got, expected) < TOLERANCES[stored, dtype]


# ``Q4_K_M`` has its embedding, output projection and some layers in Q6_K. Limits are those of Q8_0
# and Q4_0; with Q6_K half of it again: a scale per 256 activations, where these have one per 32.
@pytest.mark.parametrize("isa", native.available_isas())
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("stored", "limit"), [("Q4_K", 0.03), ("Q5_K", 0.03), ("Q6_K", 0.045), ("Q4_K_M", 0.045)]
)
def test_k_types_equal_the_dequantized_reference(
    stored: str, limit: float, tied: bool, isa: str
) -> None:
    spec = make_spec(hidden=256, heads=8, head_dim=32, intermediate=512, tied=tied)
    tensors = make_tensors(spec, stored)
    expected = ReferenceDecoder(spec, tensors).logits(tokens_of(spec))
    got = logits_of(spec, tensors, dtype="bfloat16", isa=isa, threads=2)
    assert error(got, expected) < limit


@pytest.mark.parametrize(("kv_dtype", "limit"), [("bfloat16", 0.02), ("int8", 0.03), ("int4", 0.3)])
@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
def test_kv_types(kv_dtype: str, limit: float, block_size: int) -> None:
    spec = make_spec(head_dim=32)
    tensors = make_tensors(spec)
    expected = ReferenceDecoder(spec, tensors).logits(tokens_of(spec))
    got = logits_of(spec, tensors, kv_dtype=kv_dtype, block_size=block_size)
    assert error(got, expected) < limit


@pytest.mark.parametrize("quantize", ["q8_0", "q4_0", "int8"])
@pytest.mark.parametrize("tied", [True, False])
def test_quantizing_at_load_equals_quantized_files(quantize: str, tied: bool) -> None:
    spec = make_spec(heads=4, head_dim=32, tied=tied)
    tensors = make_tensors(spec)
    ends = ("embed.weight", "lm_head.weight")
    quantized = {
        name: raw(
            to_float32(t), "Q8_0" if name in ends and quantize == "q4_0" else quantize.upper()
        )
        if len(t.shape) == 2
        else t
        for name, t in tensors.items()
    }
    got = logits_of(spec, tensors, quantize=quantize)
    assert np.array_equal(got, logits_of(spec, quantized))
    assert not np.array_equal(got, logits_of(spec, tensors))


def test_memory_counts_every_weight() -> None:
    spec = make_spec(heads=4, head_dim=32, hidden=64, intermediate=96, vocab=128, tied=False)
    backend = native.load(spec, make_tensors(spec, "Q8_0"), options())
    matrices = sum(np.prod(s) for s in spec.expected_tensors().values() if len(s) == 2)
    floats = backend.memory().weight_bytes - matrices * 34 // 32
    assert 0 < floats < 4 * 128 * 3 * spec.hidden_size  # norms, padded
    backend.allocate_cache((10,))
    assert backend.memory().kv_bytes >= 10 * 16 * spec.kv_bytes_per_token("float32")
    backend.close()
    assert backend.memory().weight_bytes == backend.memory().kv_bytes == 0


@pytest.mark.parametrize(
    ("change", "kind", "named"),
    [
        (lambda s: replace(s, layers=(replace(s.layers[0], mlp=Mlp(96, "tanh")),)),
         ErrorKind.UNSUPPORTED, "tanh"),
        (lambda s: make_spec(head_dim=9, rope=Rope(1e4, 8)), ErrorKind.UNSUPPORTED, "head_dim"),
    ],
)  # fmt: skip
def test_unsupported_specs_are_named(change, kind: ErrorKind, named: str) -> None:
    spec = change(make_spec())
    with pytest.raises(TidemillError) as caught:
        native.load(spec, make_tensors(spec), options())
    assert caught.value.kind is kind
    assert named in caught.value.message


def test_damaged_tensors_are_named() -> None:
    spec = make_spec()
    tensors = make_tensors(spec)
    name = "layers.1.mlp.up.weight"
    broken = {
        "missing": {k: v for k, v in tensors.items() if k != name},
        "short": {**tensors, name: replace(tensors[name], data=tensors[name].data[:-4])},
        "shape": {**tensors, name: replace(tensors[name], shape=(64, 96))},
        "extra": {**tensors, "layers.1.mlp.up.weight2": tensors[name]},
    }
    for what, changed in broken.items():
        with pytest.raises(TidemillError) as caught:
            native.load(spec, changed, options())
        assert caught.value.kind is ErrorKind.MODEL_FILE, what
        assert name in caught.value.message, what


@pytest.mark.parametrize(
    ("changes", "kind", "param"),
    [
        ({"isa": "sse9"}, ErrorKind.CONFIG, "isa"),
        ({"threads": 0}, ErrorKind.CONFIG, "threads"),
        ({"dtype": "float16"}, ErrorKind.CONFIG, "dtype"),
        ({"kv_dtype": "int2"}, ErrorKind.CONFIG, "kv_dtype"),
        ({"device": "cuda"}, ErrorKind.UNSUPPORTED, "device"),
    ],
)
def test_wrong_options_are_named(changes: dict, kind: ErrorKind, param: str) -> None:
    spec = make_spec()
    with pytest.raises(TidemillError) as caught:
        native.load(spec, make_tensors(spec), options(**changes))
    assert (caught.value.kind, caught.value.param) == (kind, param)


def test_a_cache_larger_than_memory_is_refused() -> None:
    spec = make_spec()
    backend = native.load(spec, make_tensors(spec), options())
    for blocks in (2**31 - 1, 2**40):
        with pytest.raises(TidemillError) as caught:
            backend.allocate_cache((blocks,))
        assert caught.value.kind is ErrorKind.RESOURCE
    backend.allocate_cache((8,))  # and it still works
    assert BackendDriver(backend, 8).all_logits([1, 2, 3]).shape == (3, spec.vocab_size)
