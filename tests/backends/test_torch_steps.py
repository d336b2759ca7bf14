"""Steps of the torch backend: two in flight, masks, logprobs, copies, failures, number types."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, options, sampling_inputs
from helpers.random_model import ReferenceDecoder, make_spec, make_tensors, with_windows

from tidemill.backends import native
from tidemill.backends import torch as torch_backend
from tidemill.backends.base import LOGITS_ALL
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.models.spec import QkNorm

SPEC = with_windows(make_spec(q_bias=True, qk_norm=QkNorm()), [None, 20, None])
TENSORS = make_tensors(SPEC)
TOKENS = np.random.default_rng(1).integers(0, SPEC.vocab_size, 60).tolist()


def make_driver(spec=SPEC, tensors=TENSORS, **changes: object) -> BackendDriver:
    return BackendDriver(torch_backend.load(spec, tensors, options(**changes)), 24)


@pytest.fixture
def driver() -> Iterator[BackendDriver]:
    made = make_driver()
    yield made
    made.backend.close()


def test_float32_equals_the_reference(driver: BackendDriver) -> None:
    expected = ReferenceDecoder(SPEC, TENSORS).logits(TOKENS)
    for chunk in (None, 13):
        assert np.abs(driver.all_logits(TOKENS, chunk) - expected).max() < 5e-5


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"dtype": "bfloat16", "kv_dtype": "bfloat16"}, 0.02),
        ({"kv_dtype": "bfloat16"}, 0.01),
        ({"kv_dtype": "int8"}, 0.02),
        ({"kv_dtype": "int4"}, 0.3),
    ],
)
def test_narrow_types_stay_near(changes: dict, limit: float) -> None:
    expected = ReferenceDecoder(SPEC, TENSORS).logits(TOKENS)
    driver = make_driver(**changes)
    error = np.square(driver.all_logits(TOKENS) - expected).mean() / np.square(expected).mean()
    assert np.sqrt(error) < limit
    driver.backend.close()


def test_quantizing_computes_with_the_dequantized_weights() -> None:
    spec = make_spec(heads=4, head_dim=32)
    plain, packed = make_tensors(spec), make_tensors(spec, "Q8_0")
    at_load = make_driver(spec, plain, quantize="q8_0")
    from_file = make_driver(spec, packed)
    np.testing.assert_array_equal(at_load.all_logits(TOKENS), from_file.all_logits(TOKENS))
    at_load.backend.close()
    from_file.backend.close()


def test_two_steps_in_flight_equal_one_after_the_other(driver: BackendDriver) -> None:
    prompts = [TOKENS[:9], TOKENS[20:45]]
    expected = driver.greedy(prompts, 2)
    sequences = [driver.sequence(p) for p in prompts]
    rows = [(s, len(s.tokens)) for s in sequences]
    first = driver.backend.submit(driver.inputs(rows, sample=True))
    ahead = driver.inputs([(s, 1) for s in sequences[::-1]], sample=True, future=[1, 0])
    second = driver.backend.submit(ahead)
    with pytest.raises(TidemillError, match="two steps"):
        while True:  # the first may be done before the second is in
            assert not (first.done() and second.done())
            driver.backend.submit(ahead)
    one, two = first.result().sampled.tolist(), second.result().sampled.tolist()
    assert [[one[0], two[1]], [one[1], two[0]]] == expected


def test_a_failed_step_voids_the_one_after_it(driver: BackendDriver) -> None:
    sequence = driver.sequence(TOKENS[:4])
    waiting = driver.inputs([(sequence, 4)], sample=True)
    waiting.await_mask[:] = 1  # holds the first step until the second is in
    first = driver.backend.submit(waiting)
    second = driver.backend.submit(driver.inputs([(sequence, 1)], sample=True, future=[0]))
    first.set_mask(0, 0, np.zeros((SPEC.vocab_size + 7) // 8, np.uint8))
    assert first.result().sampled.tolist() == [-1]
    with pytest.raises(TidemillError) as caught:
        second.result()
    assert caught.value.kind == ErrorKind.INTERNAL


def test_sampling_waits_for_the_mask(driver: BackendDriver) -> None:
    sequence = driver.sequence(TOKENS[:5])
    inputs = driver.inputs([(sequence, 5)], sample=True)
    inputs.await_mask[:] = 1
    handle = driver.backend.submit(inputs)
    assert not handle.done()
    allowed = np.zeros(SPEC.vocab_size, np.uint8)
    allowed[[17, 130]] = 1
    handle.set_mask(0, 0, np.packbits(allowed, bitorder="little"))
    outputs = handle.result()
    assert outputs.logits is not None
    best = 17 if outputs.logits[0, 17] > outputs.logits[0, 130] else 130
    assert outputs.sampled.tolist() == [best]


def test_closing_ends_a_step_that_waits() -> None:
    driver = make_driver()
    inputs = driver.inputs([(driver.sequence(TOKENS[:5]), 5)], sample=True)
    inputs.await_mask[:] = 1
    handle = driver.backend.submit(inputs)
    driver.backend.close()
    with pytest.raises(TidemillError, match="closed"):
        handle.result()
    with pytest.raises(TidemillError, match="closed"):
        driver.backend.submit(inputs)


def log_softmax(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def test_logprobs_and_targets(driver: BackendDriver) -> None:
    sequence = driver.sequence(TOKENS[:7])
    sampling = sampling_inputs(1, num_logprobs=3, position=7)
    inputs = driver.inputs([(sequence, 7)], sample=True, logits=LOGITS_ALL, sampling=sampling)
    inputs.target_ids[:6] = TOKENS[1:7]
    inputs.target_logprobs[:] = 1
    outputs = driver.backend.submit(inputs).result()
    assert outputs.logits is not None and outputs.logprobs is not None
    expected = log_softmax(outputs.logits)
    token = int(outputs.sampled[0])
    assert outputs.logprobs.chosen[0] == pytest.approx(expected[-1, token], abs=1e-5)
    assert outputs.logprobs.top_ids[0].tolist() == np.argsort(-expected[-1])[:3].tolist()
    assert outputs.targets is not None
    rows = np.arange(6)
    np.testing.assert_allclose(outputs.targets.chosen, expected[rows, TOKENS[1:7]], atol=1e-5)
    np.testing.assert_array_equal(outputs.targets.top_ids[:, 0], expected[:6].argmax(axis=1))


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "int4"])
def test_copied_and_exported_blocks_hold_the_same(kv_dtype: str) -> None:
    driver = make_driver(kv_dtype=kv_dtype)
    source = driver.sequence(TOKENS[:33])
    driver.run([(source, 32)])
    expected = driver.run([(source, 1)]).logits

    # The same context through copies made by the step itself.
    twin = driver.sequence(TOKENS[:33])
    twin.computed = 32
    inputs = driver.inputs([(twin, 1)])
    inputs.copies = tuple(
        np.array(list(zip(s[:2], t[:2], strict=True)), np.int32)
        for s, t in zip(source.tables, twin.tables, strict=True)
    )
    copied = driver.backend.submit(inputs).result().logits
    np.testing.assert_array_equal(copied, expected)

    # And through another backend.
    other = make_driver(kv_dtype=kv_dtype)
    other.sequence(TOKENS[:3])
    third = other.sequence(TOKENS[:33])
    third.computed = 32
    inputs = other.inputs([(third, 1)])
    for group in range(driver.groups):
        blocks = np.array(source.tables[group][:2], np.int32)
        exported = driver.backend.export_blocks(group, blocks)
        target = np.array(third.tables[group][:2], np.int32)
        other.backend.import_blocks(group, target, exported)
    np.testing.assert_array_equal(other.backend.submit(inputs).result().logits, expected)
    driver.backend.close()
    other.backend.close()


def test_both_backends_sample_the_same_tokens() -> None:
    drivers = [
        make_driver(),
        BackendDriver(native.load(SPEC, TENSORS, options()), 24),
    ]
    changes = {
        "temperature": np.linspace(0.3, 2.0, 16),
        "top_p": np.linspace(0.5, 1.0, 16),
        "top_k": np.arange(16) * 3,
        "seed": np.arange(16) + 2**62,
        "choice": np.arange(16) % 3,
        "position": 8,
    }
    tokens = []
    for driver in drivers:
        rows = [(driver.sequence(TOKENS[i : i + 8]), 8) for i in range(16)]
        sampling = sampling_inputs(16, **changes)
        tokens.append(driver.run(rows, sample=True, sampling=sampling).sampled.tolist())
        driver.backend.close()
    assert tokens[0] == tokens[1]


def test_a_step_without_rows(driver: BackendDriver) -> None:
    inputs = driver.inputs([(driver.sequence(TOKENS[:3]), 3)])
    empty = driver.inputs([(driver.sequence(TOKENS[:3]), 3)])
    for name in ("token_ids", "context_len", "logits", "sample", "await_mask", "target_ids"):
        setattr(empty, name, getattr(empty, name)[:0])
    empty.target_logprobs = empty.target_logprobs[:0]
    empty.row_start = empty.row_start[:1]
    empty.block_tables = tuple(t[:0] for t in empty.block_tables)
    assert driver.backend.submit(empty).result().sampled.size == 0
    assert driver.backend.submit(inputs).result().logits is not None


def test_memory_and_progress(driver: BackendDriver) -> None:
    memory = driver.backend.memory()
    assert memory.weight_bytes == 4 * SPEC.parameters()
    assert memory.kv_bytes == 24 * 16 * SPEC.kv_bytes_per_token("float32")
    before = driver.backend.progress()
    driver.all_logits(TOKENS[:4])
    assert driver.backend.progress() > before


@pytest.mark.parametrize(
    ("changes", "param"), [({"device": "nonsense"}, "device"), ({"device": "cuda:99"}, "device")]
)
def test_wrong_devices_are_named(changes: dict, param: str) -> None:
    with pytest.raises(TidemillError) as caught:
        make_driver(**changes)
    assert (caught.value.kind, caught.value.param) == (ErrorKind.CONFIG, param)
