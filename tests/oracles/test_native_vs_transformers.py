"""The native backend: in float32 against transformers, in narrower types against the reference.

The reference of a quantized model is the torch backend in float32 on the dequantized weights, so
that what is measured is the executor's own rounding (activations in bfloat16 or int8), not the
weights'. Its error is stated as mean squared difference over the logits' variance.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from helpers.backend_driver import BackendDriver, options
from helpers.references import prompt, reference_greedy, reference_logits
from helpers.tiny_checkpoints import CASES, QUANTIZABLE, make_model, save

from tidemill.backends import native, torch
from tidemill.loading import open_model

FLOAT32_TOLERANCE = 1e-3
# (compute type, quantization, KV type) -> bound of the normalised error, about twice what the
# worst of these models measured. Quantized matrices multiply int8 activations in either type.
ROUNDED: dict[tuple[str, str, str], float] = {
    ("bfloat16", "none", "bfloat16"): 2e-4,
    ("bfloat16", "q8_0", "bfloat16"): 2e-3,
    ("bfloat16", "q4_0", "bfloat16"): 2e-3,
    ("float32", "q8_0", "float32"): 2e-3,
    ("float32", "q4_0", "float32"): 2e-3,
    ("float32", "none", "int8"): 4e-4,
    ("float32", "none", "int4"): 8e-2,
}


def _driver(backend: Any, folder: Path, **changes: object) -> BackendDriver:
    files = open_model(folder)
    return BackendDriver(backend.load(files.spec, files.tensors, options(**changes)))


@pytest.fixture(scope="module", params=sorted(CASES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    model = make_model(request.param)
    folder = tmp_path_factory.mktemp("oracle") / request.param
    return model, save(model, folder)


def test_float32_logits_equal(case: Any) -> None:
    model, folder = case
    tokens = prompt(75)
    expected = reference_logits(model, tokens)
    driver = _driver(native, folder, threads=2)
    for chunk in (None, 7):
        got = driver.all_logits(tokens, chunk)
        np.testing.assert_allclose(got, expected, atol=FLOAT32_TOLERANCE, rtol=0)
    driver.backend.close()


def test_float32_greedy_continuations_equal(case: Any) -> None:
    model, folder = case
    prompts = [prompt(5, seed=1), prompt(33, seed=2)]
    driver = _driver(native, folder)
    assert driver.greedy(prompts, 64) == [reference_greedy(model, p, 64) for p in prompts]
    driver.backend.close()


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_half_weights_in_float32_equal(stored: str, tmp_path: Path) -> None:
    folder = save(make_model("qwen2", dtype=stored), tmp_path / "model")
    tokens = prompt(40)
    # Read again: widening the model in memory would keep its rope frequencies rounded.
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    expected = reference_logits(model, tokens)
    driver = _driver(native, folder)
    np.testing.assert_allclose(driver.all_logits(tokens), expected, atol=FLOAT32_TOLERANCE, rtol=0)
    driver.backend.close()


@pytest.mark.parametrize("kind", sorted(ROUNDED), ids="-".join)
@pytest.mark.parametrize("name", sorted(QUANTIZABLE))
def test_rounded_types_stay_near_the_dequantized_reference(
    name: str, kind: tuple[str, str, str], tmp_path: Path
) -> None:
    dtype, quantize, kv_dtype = kind
    folder = save(make_model(name, dtype="bfloat16"), tmp_path / "model")
    tokens = prompt(60)
    reference = _driver(torch, folder, quantize=quantize)
    expected = reference.all_logits(tokens)
    driver = _driver(native, folder, dtype=dtype, quantize=quantize, kv_dtype=kv_dtype)
    got = driver.all_logits(tokens)
    error = np.square(got - expected).mean() / expected.var()
    assert error < ROUNDED[kind]
    for used in (driver, reference):
        used.backend.close()
