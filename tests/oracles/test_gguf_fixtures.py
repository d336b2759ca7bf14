"""GGUF files made by llama.cpp's converter give llama.cpp's and transformers' logits.

The files and the logits come from `make parity` (see docs/parity.md), so this needs neither.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, options

from tidemill.backends import native, torch
from tidemill.loading import open_model
from tidemill.models.spec import RopeScaling

FIXTURES = Path(__file__).parents[1] / "fixtures" / "gguf"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.gguf"))
FLOAT = ("F32", "F16", "BF16")

# Largest difference from transformers, which dequantizes and computes in float32 as torch does.
EXACT = 1e-4
# Mean squared difference over the variance, where one side rounds activations to 8 bits or to the
# weights' type.
ROUNDED = 2e-3


def logits(backend: Any, name: str, tokens: list[int]) -> np.ndarray:
    files = open_model(FIXTURES / f"{name}.gguf")
    driver = BackendDriver(backend.load(files.spec, files.tensors, options()))
    got = driver.all_logits(tokens)
    driver.backend.close()
    return got[::4]


def test_the_fixtures_are_there() -> None:
    kinds = {name.rpartition("-")[2] for name in NAMES}
    assert kinds == {"f32", "f16", "bf16", "q8_0", "q4_0"}
    assert {"Llama", "Mistral", "Qwen2", "Qwen3"} == {name.split("-")[0] for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_outside_readers(name: str) -> None:
    expected = np.load(FIXTURES / f"{name}.npz")
    tokens = expected["tokens"].tolist()
    reference = logits(torch, name, tokens)
    np.testing.assert_allclose(reference, expected["transformers"], atol=EXACT, rtol=0)
    distance = np.square(reference - expected["llama_cpp"]).mean() / expected["llama_cpp"].var()
    assert distance < (1e-9 if name.endswith("-f32") else ROUNDED)

    ours = logits(native, name, tokens)
    if open_model(FIXTURES / f"{name}.gguf").spec.weights_dtype in FLOAT:
        np.testing.assert_allclose(ours, reference, atol=1e-3, rtol=0)
    else:
        assert np.square(ours - reference).mean() / reference.var() < ROUNDED


def test_what_the_files_say() -> None:
    files = open_model(FIXTURES / "Llama-llama3-rope-f32.gguf")
    assert files.format == "gguf"
    spec = files.spec
    assert (spec.family, spec.weights_dtype, spec.tied_embeddings) == ("llama", "F32", False)
    rope = spec.layers[0].mixer.rope
    assert rope is not None and rope.scaling is not None
    assert rope.scaling.kind == "factors" and len(rope.scaling.factors) == 8
    assert max(rope.scaling.factors) == 8.0 and 1.7 < min(rope.scaling.factors) < 1.8
    assert (files.bos_token_id, files.eos_token_ids) == (1, (2,))
    text = files.tokenizer
    assert text.gguf is not None and len(text.gguf["tokenizer.ggml.tokens"]) == spec.vocab_size
    assert text.special["bos_token"] == "<s>" and text.special["eos_token"] == "</s>"

    linear = open_model(FIXTURES / "Llama-linear-rope-f32.gguf").spec.layers[0].mixer.rope
    assert linear is not None and linear.scaling == RopeScaling("linear", 4.0)
    assert open_model(FIXTURES / "Qwen3-f32.gguf").spec.tied_embeddings
    assert open_model(FIXTURES / "Llama-biases-f32.gguf").spec.layers[0].mixer.o_bias
