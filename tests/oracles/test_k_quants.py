"""GGUF files of K types, as llama.cpp's Q4_K_M, against the weights the gguf package reads in them.

The package has no quantizer for these types, so the blocks are random; its dequantization is the
oracle, and a float64 decoder computes with what it gives.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf as package
import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, options
from helpers.kquants import mixed_type, random_k_tensor
from helpers.random_model import ReferenceDecoder, raw

from tidemill.backends import native, torch
from tidemill.loading import open_model

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP, VOCAB = 256, 8, 2, 32, 512, 515
METADATA: dict[str, Any] = {
    "block_count": 2,
    "context_length": 512,
    "embedding_length": HIDDEN,
    "feed_forward_length": MLP,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.key_length": HEAD_DIM,
    "attention.value_length": HEAD_DIM,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 10000.0,
    "vocab_size": VOCAB,
}
# Canonical name -> stored name and shape.
LAYER = {
    "attn.q.weight": ("attn_q", (HEADS * HEAD_DIM, HIDDEN)),
    "attn.k.weight": ("attn_k", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "attn.v.weight": ("attn_v", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "attn.o.weight": ("attn_output", (HIDDEN, HEADS * HEAD_DIM)),
    "mlp.gate.weight": ("ffn_gate", (MLP, HIDDEN)),
    "mlp.up.weight": ("ffn_up", (MLP, HIDDEN)),
    "mlp.down.weight": ("ffn_down", (HIDDEN, MLP)),
    "attn_norm.weight": ("attn_norm", (HIDDEN,)),
    "mlp_norm.weight": ("ffn_norm", (HIDDEN,)),
    "attn.q_norm.weight": ("attn_q_norm", (HEAD_DIM,)),
    "attn.k_norm.weight": ("attn_k_norm", (HEAD_DIM,)),
}
PLACES: dict[str, tuple[str, tuple[int, ...]]] = {
    "embed.weight": ("token_embd", (VOCAB, HIDDEN)),
    "final_norm.weight": ("output_norm", (HIDDEN,)),
    **{
        f"layers.{i}.{name}": (f"blk.{i}.{stored}", shape)
        for i in range(2)
        for name, (stored, shape) in LAYER.items()
    },
}


@pytest.fixture(scope="module", params=["tied", "untied"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A file, and what the package reads from it: canonical name -> float32 values."""
    places = dict(PLACES)
    if request.param == "untied":
        places["lm_head.weight"] = ("output", (VOCAB, HIDDEN))
    path = tmp_path_factory.mktemp("k-quants") / "model.gguf"
    writer = package.GGUFWriter(path, "qwen3")
    for key, value in METADATA.items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"qwen3.{key}", value)
    rng = np.random.default_rng(0)
    for name, (stored, shape) in places.items():
        if len(shape) == 1:
            writer.add_tensor(f"{stored}.weight", rng.uniform(0.8, 1.2, shape).astype(np.float32))
            continue
        kind = mixed_type(name)
        blocks = np.frombuffer(random_k_tensor(rng, shape, kind).data, np.uint8)
        writer.add_tensor(
            f"{stored}.weight", blocks.reshape(shape[0], -1),
            raw_dtype=package.GGMLQuantizationType[kind],
        )  # fmt: skip
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = {t.name: t for t in package.GGUFReader(path).tensors}
    values = {}
    for name, (stored, shape) in places.items():
        tensor = read[f"{stored}.weight"]
        found = package.quants.dequantize(tensor.data, tensor.tensor_type)
        values[name] = found.reshape(shape)
    return path, values


TOKENS = np.random.default_rng(1).integers(0, VOCAB, 80).tolist()


def expected(path: Path, values: dict[str, np.ndarray]) -> np.ndarray:
    tensors = {name: raw(array) for name, array in values.items()}
    return ReferenceDecoder(open_model(path).spec, tensors).logits(TOKENS)


def test_torch_computes_with_the_packages_values(written: Any) -> None:
    path, values = written
    files = open_model(path)
    driver = BackendDriver(torch.load(files.spec, files.tensors, options()))
    np.testing.assert_allclose(driver.all_logits(TOKENS), expected(path, values), atol=2e-4, rtol=0)
    driver.backend.close()


@pytest.mark.parametrize("isa", native.available_isas())
def test_native_stays_near_them(written: Any, isa: str) -> None:
    path, values = written
    files = open_model(path)
    want = expected(path, values)
    per_chunk = []
    for chunk in (None, 1):  # tiles and vectors
        driver = BackendDriver(native.load(files.spec, files.tensors, options(isa=isa, threads=2)))
        per_chunk.append(driver.all_logits(TOKENS, chunk))
        driver.backend.close()
    assert np.array_equal(*(logits.view(np.uint32) for logits in per_chunk))
    # What int8 activations cost, as with Q8_0 and Q4_0 (test_native_vs_transformers).
    assert np.square(per_chunk[0] - want).mean() / want.var() < 2e-3


def test_weights_stay_as_small_as_in_the_file(written: Any) -> None:
    path, _ = written
    files = open_model(path)
    backend = native.load(files.spec, files.tensors, options())
    # Panels: 4.625 bits for the file's 4.5; rows padded to 32; vectors as float32.
    assert backend.memory().weight_bytes < 1.03 * files.tensors.nbytes + 2 * 32 * HIDDEN
    backend.close()
