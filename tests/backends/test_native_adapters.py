"""Adapters in the native executor: a row is what it is alone, whatever adapters are beside it.

Compared with PEFT in `tests/oracles/test_served_adapters.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, DrivenSequence, options
from helpers.random_model import make_spec, make_tensors, with_recurrence

from tidemill.backends import native
from tidemill.backends import torch as torch_backend
from tidemill.backends.base import LOGITS_ALL, Backend, BackendOptions
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.models import tensors as names
from tidemill.models.adapters import Changes, Product, adaptable_tensors
from tidemill.models.quantization import to_float32
from tidemill.models.spec import DecoderSpec, Mlp, Moe, QkNorm

SPEC = make_spec(
    hidden=96, heads=6, kv_heads=2, head_dim=16, intermediate=160, vocab=131, layers=2,
    qk_norm=QkNorm(),
)  # fmt: skip
RANKS = (1, 64, 2, 16, 3, 8, 33, 4, 48, 5, 32, 7, 24, 6, 12, 64)
BASE = -1
TYPES = [
    ("F32", "float32", "float32"),
    ("BF16", "bfloat16", "bfloat16"),
    ("Q8_0", "bfloat16", "bfloat16"),
    ("Q4_0", "bfloat16", "int8"),
]


def linear_change(
    spec: DecoderSpec, rank: int, seed: int, only: Sequence[str] = ()
) -> dict[str, Product]:
    """Random changes of all matrices that are multiplied, the output layer and the embedding."""
    rng = np.random.default_rng(seed)
    changes = {}
    for name, shape in adaptable_tensors(spec).items():
        if len(shape) != 2 or ".rec.conv" in name or (only and name not in only):
            continue
        a = rng.standard_normal((rank, shape[1]), np.float32) / np.float32(np.sqrt(shape[1]))
        b = rng.standard_normal((shape[0], rank), np.float32) / np.float32(np.sqrt(rank))
        changes[name] = Product(a, b, 0.4)
    return changes


def full_change(spec: DecoderSpec, seed: int) -> Changes:
    """Low-rank changes with gains, and norms of their own."""
    rng = np.random.default_rng(seed)
    products = {
        name: replace(p, gain=1 + 0.2 * rng.standard_normal(len(p.b), np.float32))
        for name, p in linear_change(spec, 5, seed).items()
    }
    shapes = spec.expected_tensors()
    norms = [name for name in shapes if "norm" in name and ".rec." not in name]
    saved = {n: 1 + 0.3 * rng.standard_normal(shapes[n], np.float32) for n in norms}
    return Changes(products, saved)


def load(spec: DecoderSpec, dtype: str, compute: BackendOptions) -> Backend:
    return native.load(spec, make_tensors(spec, dtype), compute)


def run(
    driver: BackendDriver, rows: Sequence[tuple[DrivenSequence, int]], slots: Sequence[int]
) -> list[np.ndarray]:
    """Logits of all positions of each row."""
    inputs = driver.inputs(rows, logits=LOGITS_ALL)
    inputs.adapters = np.array(slots, np.int32)
    logits = driver.backend.submit(inputs).result().logits
    assert logits is not None
    return [logits[a:b] for a, b in pairwise(inputs.row_start)]


def prompt(row: int, count: int) -> list[int]:
    return np.random.default_rng(row).integers(0, SPEC.vocab_size, count).tolist()


def batch(
    backend: Backend, slots: Sequence[int], counts: Sequence[int], seeds: Sequence[int]
) -> list[np.ndarray]:
    """Logits of prompts of these lengths and of a token after each, in two steps."""
    driver = BackendDriver(backend, 256)
    sequences = [driver.sequence(prompt(s, n + 1)) for s, n in zip(seeds, counts, strict=True)]
    first = run(driver, list(zip(sequences, counts, strict=True)), slots)
    second = run(driver, [(s, 1) for s in sequences], slots)
    return [np.concatenate(pair) for pair in zip(first, second, strict=True)]


@pytest.mark.parametrize(("dtype", "compute", "kv"), TYPES)
def test_a_row_is_what_it_is_alone(dtype: str, compute: str, kv: str) -> None:
    """32 rows, 16 adapters of ranks 1 to 64 and base rows between; one prompt is long enough for
    the block of gate and up that is computed at once."""
    slots = [i // 2 if i % 4 else BASE for i in range(32)]
    counts = [1 + i % 3 for i in range(31)] + [40]
    loaded = {}
    for threads in (1, 2):
        loaded[threads] = load(SPEC, dtype, options(dtype=compute, kv_dtype=kv, threads=threads))
        for slot, rank in enumerate(RANKS):
            loaded[threads].load_adapter(slot, Changes(linear_change(SPEC, rank, slot)))
    together = batch(loaded[2], slots, counts, range(32))
    for row in (0, 1, 2, 5, 13, 23, 30, 31):
        alone = batch(loaded[1], [slots[row]], [counts[row]], [row])
        np.testing.assert_array_equal(together[row], alone[0])
    backwards = batch(loaded[2], slots[::-1], counts[::-1], range(31, -1, -1))
    for found, again in zip(together, backwards[::-1], strict=True):
        np.testing.assert_array_equal(found, again)
    # A base row is the base's, without adapters in the step, and an adapter changes its rows.
    plain = batch(loaded[1], [BASE], [counts[0]], [0])
    np.testing.assert_array_equal(together[0], plain[0])
    assert np.abs(batch(loaded[1], [0], [counts[0]], [0])[0] - plain[0]).max() > 0.05
    for backend in loaded.values():
        backend.close()


@pytest.mark.parametrize("isa", native.available_isas())
def test_every_instruction_set_computes_the_change(isa: str) -> None:
    """Against torch in float32, a mixed batch; bit for bit against the row alone."""
    changes = {0: full_change(SPEC, 1), 1: Changes(linear_change(SPEC, 33, 2))}
    backend = load(SPEC, "F32", options(threads=2, isa=isa))
    reference = torch_backend.load(SPEC, make_tensors(SPEC), options())
    for slot, change in changes.items():
        backend.load_adapter(slot, change)
        reference.load_adapter(slot, change)
    slots, counts = [1, BASE, 0, 1, 0], [3, 2, 37, 1, 5]
    found = batch(backend, slots, counts, range(5))
    wanted = batch(reference, slots, counts, range(5))
    for row, (a, b) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_allclose(a, b, atol=1e-3, rtol=0)
        alone = batch(backend, [slots[row]], [counts[row]], [row])
        np.testing.assert_array_equal(a, alone[0])
    backend.close()
    reference.close()


@pytest.mark.parametrize("kind", ["experts", "recurrent"])
def test_layers_of_other_kinds(kind: str) -> None:
    spec = SPEC
    if kind == "recurrent":
        spec = with_recurrence(make_spec(hidden=96, heads=6, kv_heads=2, head_dim=16))
    else:
        moe = Moe(4, 2, Mlp(64), shared=Mlp(32), shared_gate=True)
        spec = replace(spec, layers=tuple(replace(x, mlp=moe) for x in spec.layers))
    change = Changes(linear_change(spec, 6, 3))
    backend = load(spec, "F32", options(threads=2))
    reference = torch_backend.load(spec, make_tensors(spec), options())
    for each in (backend, reference):
        each.load_adapter(7, change)
    slots, counts = [7, BASE, 7], [5, 3, 2]
    found = batch(backend, slots, counts, range(3))
    for row, wanted in enumerate(batch(reference, slots, counts, range(3))):
        np.testing.assert_allclose(found[row], wanted, atol=1e-3, rtol=0)
        alone = batch(backend, [slots[row]], [counts[row]], [row])
        np.testing.assert_array_equal(found[row], alone[0])
    backend.close()
    reference.close()


def test_gains_of_inputs_and_whole_matrices() -> None:
    """DoRA with a magnitude per column, and saved matrices, in low bits: of the base as packed."""
    tensors = make_tensors(SPEC, "Q8_0")
    rng = np.random.default_rng(9)
    q, o = (names.layer_name(1, f"attn.{part}.weight") for part in "qo")
    products = linear_change(SPEC, 4, 4, only=(q, names.EMBED))
    products[q] = replace(
        products[q], input_gain=1 + 0.2 * rng.standard_normal(96, np.float32),
        gain=1 + 0.2 * rng.standard_normal(96, np.float32),
    )  # fmt: skip
    products[names.EMBED] = replace(
        products[names.EMBED], gain=1 + 0.2 * rng.standard_normal(131, np.float32),
        input_gain=1 + 0.2 * rng.standard_normal(96, np.float32),
    )  # fmt: skip
    saved = {
        o: rng.standard_normal((96, 96), np.float32) / np.float32(9),
        names.LM_HEAD: to_float32(tensors[names.EMBED]) * np.float32(1.1),
    }
    change = Changes(products, saved)
    backend = native.load(SPEC, tensors, options(threads=2))
    reference = torch_backend.load(SPEC, tensors, options())
    for each in (backend, reference):
        each.load_adapter(0, change)
    found, wanted = (batch(b, [0, BASE], [7, 7], [1, 1]) for b in (backend, reference))
    # The base's products alone, whose activations have 8 bits, differ by as much.
    tolerance = 2 * np.abs(found[1] - wanted[1]).max() + 1e-3
    np.testing.assert_allclose(found[0], wanted[0], atol=tolerance, rtol=0)
    assert np.abs(wanted[0] - wanted[1]).max() > 4 * tolerance
    backend.close()
    reference.close()


def test_a_step_keeps_the_adapter_that_it_was_submitted_with() -> None:
    """Slots are emptied and filled while steps run; no step waits and none sees half an adapter."""
    backend = load(SPEC, "F32", options(threads=2))
    known = {seed: Changes(linear_change(SPEC, 8, seed)) for seed in (1, 2)}
    wanted = {}
    for seed, change in known.items():
        backend.load_adapter(0, change)
        wanted[seed] = batch(backend, [0], [40], [3])[0]
    done = threading.Event()

    def swap() -> None:
        for _ in range(20):
            backend.unload_adapter(1)
            backend.load_adapter(1, known[1])
            backend.load_adapter(0, known[1])
            backend.load_adapter(0, known[2])
        done.set()

    thread = threading.Thread(target=swap)
    thread.start()
    driver = BackendDriver(backend, 256)
    while True:
        ended = done.is_set()
        sequence = driver.sequence(prompt(3, 41))
        found = run(driver, [(sequence, 40)], [0])[0]
        driver.free(sequence)
        assert any(np.array_equal(found, logits[:40]) for logits in wanted.values())
        if ended:
            break
    thread.join()
    np.testing.assert_array_equal(found, wanted[2][:40])
    backend.close()


def test_an_empty_slot_and_what_is_not_computed_are_refused_by_name() -> None:
    spec = with_recurrence(make_spec(hidden=64, heads=4, kv_heads=2, head_dim=16))
    backend = load(spec, "F32", options())
    with pytest.raises(TidemillError, match="slot 3 is empty"):
        batch(backend, [3], [2], [0])
    name = "layers.0.rec.norm.weight"
    values = np.ones(spec.expected_tensors()[name], np.float32)
    with pytest.raises(TidemillError, match=r"rec\.norm\.weight: .*--backend torch") as refused:
        backend.load_adapter(3, Changes(replaced={name: values}))
    assert refused.value.kind is ErrorKind.UNSUPPORTED
    assert refused.value.param == name
    with pytest.raises(TidemillError, match="slot 3 is empty"):
        batch(backend, [3], [2], [0])
    backend.close()


def test_the_bytes_are_those_of_each_adapters_own_rank() -> None:
    backend = load(SPEC, "Q8_0", options(dtype="bfloat16"))
    adapters = [Changes(linear_change(SPEC, rank, 0)) for rank in (4, 8)]
    sizes = [backend.load_adapter(slot, adapter) for slot, adapter in enumerate(adapters)]
    assert sizes[0] < sizes[1] < 2.01 * sizes[0]
    backend.close()
