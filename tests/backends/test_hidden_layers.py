"""Vectors in place of embeddings, and hidden states of any layer: native and torch agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, options
from helpers.random_model import make_spec, make_tensors, mixers_beside, with_recurrence

from tidemill.backends import native, torch
from tidemill.backends.base import (
    HIDDEN_ALL,
    HIDDEN_LAST,
    HIDDEN_NONE,
    LOGITS_ALL,
    Backend,
    EmbeddingOverrides,
    LayerSlice,
    StepOutputs,
)
from tidemill.base.errors import TidemillError
from tidemill.models.spec import DecoderSpec

SPECS = {
    "attention": replace(make_spec(), embed_scale=3.0),
    "recurrent": with_recurrence(make_spec()),
    "two-mixers": mixers_beside(make_spec()),
}
RNG = np.random.default_rng(3)
TOKENS = [int(t) for t in RNG.integers(0, 131, 9)]
OTHERS = [int(t) for t in RNG.integers(0, 131, 5)]


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest) -> DecoderSpec:
    return SPECS[request.param]


@pytest.fixture
def backends(spec: DecoderSpec) -> Iterator[dict[str, Backend]]:
    tensors = make_tensors(spec)
    loaded = {
        "native": native.load(spec, tensors, options(threads=2)),
        "torch": torch.load(spec, tensors, options()),
    }
    yield loaded
    for backend in loaded.values():
        backend.close()


def step(
    driver: BackendDriver,
    texts: list[list[int]],
    *,
    hidden: list[int] | None = None,
    layers: list[int] | None = None,
    overrides: EmbeddingOverrides | None = None,
    slice_: LayerSlice | None = None,
) -> StepOutputs:
    rows = [(driver.sequence(text), len(text)) for text in texts]
    inputs = driver.inputs(rows, logits=LOGITS_ALL)
    inputs.hidden = None if hidden is None else np.array(hidden, np.uint8)
    inputs.hidden_layers = None if layers is None else np.array(layers, np.int32)
    inputs.overrides, inputs.slice = overrides, slice_
    return driver.backend.submit(inputs).result()


def embedding_rows(spec: DecoderSpec, tokens: list[int]) -> np.ndarray:
    """What the embedding yields for the tokens."""
    table = make_tensors(spec)["embed.weight"]
    values = np.frombuffer(bytes(table.data), np.float32).reshape(table.shape)
    return np.ascontiguousarray(values[tokens] * spec.embed_scale, np.float32)


def test_hidden_states_of_every_layer(backends: dict[str, Backend], spec: DecoderSpec) -> None:
    layers = list(range(len(spec.layers) + 1))
    found = {
        name: step(
            BackendDriver(backend), [TOKENS, OTHERS], hidden=[HIDDEN_ALL, HIDDEN_LAST],
            layers=layers,
        )
        for name, backend in backends.items()
    }  # fmt: skip
    ours, theirs = found["native"], found["torch"]
    assert ours.layer_hidden is not None and theirs.layer_hidden is not None
    assert ours.layer_hidden.shape == (len(layers), len(TOKENS) + 1, spec.hidden_size)
    np.testing.assert_allclose(ours.layer_hidden, theirs.layer_hidden, atol=2e-4)
    first = embedding_rows(spec, [*TOKENS, OTHERS[-1]])
    np.testing.assert_array_equal(ours.layer_hidden[0], first)
    assert np.abs(ours.layer_hidden[1:] - ours.layer_hidden[:-1]).max(axis=(1, 2)).min() > 0.01


def test_keeping_them_changes_no_bit(backends: dict[str, Backend], spec: DecoderSpec) -> None:
    driver = BackendDriver(backends["native"])
    plain = step(driver, [TOKENS, OTHERS], hidden=[HIDDEN_ALL, HIDDEN_NONE])
    kept = step(driver, [TOKENS, OTHERS], hidden=[HIDDEN_ALL, HIDDEN_NONE], layers=[1, 2])
    assert plain.layer_hidden is None and plain.logits is not None
    np.testing.assert_array_equal(plain.logits, kept.logits)
    np.testing.assert_array_equal(plain.hidden, kept.hidden)


def test_given_vectors_stand_for_tokens(backends: dict[str, Backend], spec: DecoderSpec) -> None:
    text = [*OTHERS[:2], 0, 0, *OTHERS[4:]]
    given = EmbeddingOverrides(np.array([11, 12], np.int32), embedding_rows(spec, OTHERS[2:4]))
    for name, backend in backends.items():
        driver = BackendDriver(backend)
        meant = step(driver, [TOKENS, OTHERS])
        found = step(driver, [TOKENS, text], overrides=given)
        if name == "native":
            np.testing.assert_array_equal(found.logits, meant.logits)
        else:
            np.testing.assert_allclose(found.logits, meant.logits, atol=1e-5)


def test_vectors_of_no_token(backends: dict[str, Backend], spec: DecoderSpec) -> None:
    rows = RNG.normal(size=(3, spec.hidden_size)).astype(np.float32)
    given = EmbeddingOverrides(np.array([0, 4, 13], np.int32), rows)
    logits = {
        name: step(BackendDriver(backend), [TOKENS, OTHERS], overrides=given).logits
        for name, backend in backends.items()
    }
    np.testing.assert_allclose(logits["native"], logits["torch"], atol=2e-4)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("hidden_layers", {"hidden": [HIDDEN_ALL], "layers": [9]}),
        ("hidden_layers", {"hidden": [HIDDEN_ALL], "layers": [1, 1]}),
        ("hidden_layers", {"layers": [1]}),
        ("hidden_layers", {"hidden": [1], "layers": [1], "slice_": LayerSlice(1, 0, 3)}),
        ("override_tokens", {"overrides": EmbeddingOverrides(np.array([9], np.int32), None)}),
        ("override_tokens", {"overrides": EmbeddingOverrides(np.array([3, 2], np.int32), None)}),
        ("override_rows", {"overrides": EmbeddingOverrides(np.array([3], np.int32), None)}),
    ],
)
def test_what_contradicts_itself_is_an_error(field: str, changes: dict) -> None:
    spec = SPECS["attention"]
    if (given := changes.get("overrides")) is not None:
        width = spec.hidden_size - (field == "override_rows")
        rows = np.zeros((len(given.tokens), width), np.float32)
        changes = {"overrides": EmbeddingOverrides(given.tokens, rows)}
    backend = native.load(spec, make_tensors(spec), options())
    with pytest.raises(TidemillError, match=field) as failed:
        step(BackendDriver(backend), [TOKENS], **changes)
    assert failed.value.param == field
    backend.close()
