"""What the core counts of its steps: every nanosecond once; what products and attention read."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, options, wait_loaded
from helpers.random_model import MODELS, make_spec, make_tensors, with_windows

from tidemill.backends import native
from tidemill.backends.base import BackendProfile, KernelCount
from tidemill.backends.native import profiling
from tidemill.base.errors import TidemillError
from tidemill.contract.profile import LOOP, PART, STEP, read_events
from tidemill.models.spec import DecoderSpec


def profiled(
    spec: DecoderSpec, rows: list[int], *, events: int = 0, threads: int = 1
) -> BackendProfile:
    """A step with a row of each of these lengths, from the beginning of its text."""
    backend = native.load(spec, make_tensors(spec), options(threads=threads))
    try:
        assert wait_loaded(backend) is None
        driver = BackendDriver(backend, 64)
        backend.start_profile(events)
        made = [(driver.sequence(range(1, n + 1)), n) for n in rows]
        backend.submit(driver.inputs(made, sample=True, return_logits=False)).result()
        found = backend.end_profile()
        assert found is not None and backend.end_profile() is None
        return found
    finally:
        backend.close()


def kernels(found: BackendProfile, kernel: str) -> list[KernelCount]:
    return [of for of in found.kernels if of.kernel == kernel]


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("threads", [1, 3])
def test_every_nanosecond_of_a_step_is_counted_once(name: str, threads: int) -> None:
    spec = MODELS[name](make_spec())
    found = profiled(spec, [5, 1], threads=threads)
    assert (found.steps, found.rows, found.tokens) == (1, 2, 6)
    assert sum(of.ns for of in found.kernels) == pytest.approx(found.step_ns, rel=1e-9)
    assert all(0 <= of.busy_ns <= threads * of.ns + 1 for of in found.kernels) and found.step_ns
    parts = {of.part for of in found.kernels}
    assert {"embedding", "head", "sampling"} <= parts
    assert ("recurrent" in parts) == bool(spec.state_bytes)
    assert ("experts" in parts) == (name == "shared KV") == ("layer_inputs" in parts)
    assert ("attention" in parts) == (name != "state alone")
    assert bool(kernels(found, "scan")) == bool(spec.state_bytes)
    assert "await_weights" not in parts


def test_products_and_attention_are_counted_as_they_are() -> None:
    spec = make_spec(vocab=128, hidden=64, heads=4, kv_heads=2, head_dim=16, layers=2)
    found = profiled(with_windows(spec, [None, 4]), [40])
    tokens, values = 40, {"full": 40 * 41 // 2, "window": 1 + 2 + 3 + 37 * 4}
    attention = {of.part: of for of in kernels(found, "attention")}
    each = 2 * 4 * (16 + 16)  # per query and position that it sees: both products of all heads
    assert attention["attention"].operations == each * values["full"]
    assert attention["window_attention"].operations == each * values["window"]
    mixer = 64 * 64 * 2 + 64 * 32 * 2  # q and o, k and v
    products = Counter[str]()
    for of in kernels(found, "product"):
        products[of.part] += of.operations
        assert of.few is (of.part == "head") and of.weights == "F32"
    assert products["attention"] == products["window_attention"] == 2 * tokens * mixer
    assert products["feed_forward"] == 2 * tokens * 2 * 3 * 64 * 96
    assert products["head"] == 2 * 128 * 64  # of the last token alone
    [head] = [of for of in kernels(found, "product") if of.part == "head"]
    assert head.nbytes >= 4 * 128 * 64 and head.nbytes < 1.1 * 4 * 128 * 64


def test_a_few_rows_read_every_weight_and_key_once() -> None:
    spec = make_spec(vocab=128, hidden=64, heads=4, kv_heads=2, head_dim=16, layers=2)
    found = profiled(spec, [9, 1])
    read = sum(of.nbytes for of in kernels(found, "product"))
    weights = 4 * (2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96) + 128 * 64)
    assert weights <= read < 1.1 * weights
    [attention] = kernels(found, "attention")
    assert attention.few and attention.nbytes == 2 * (9 + 1) * 2 * 2 * 16 * 4


def test_the_trace_has_steps_parts_and_loops_in_time_and_ends_in_time() -> None:
    spec = make_spec()
    found = profiled(spec, [3], events=100_000, threads=2)
    events = list(read_events(found.events))
    [step] = [one for one in events if one.what == STEP]
    assert (step.rows, step.tokens, step.ns) == (1, 3, int(found.step_ns))
    layers = {one.layer for one in events if found.parts[one.part] == "attention"}
    assert layers == set(range(3))
    for one in events:
        assert step.begin <= one.begin and one.begin + one.ns <= step.begin + step.ns + 2
    assert {one.thread for one in events if one.what == LOOP} <= {0, 1}
    named = {found.kernel_names[one.kernel] for one in events if one.what == LOOP}
    assert named == {"product", "attention", "elementwise", "sampling"}
    assert {one.what for one in events} == {STEP, PART, LOOP} and found.cut_events == 0
    cut = profiled(spec, [3], events=5)
    assert len(list(read_events(cut.events))) == 5 and cut.cut_events > 20


def test_counting_changes_no_logit_and_is_taken_once_at_a_time() -> None:
    spec = MODELS["recurrent"](make_spec())
    backend = native.load(spec, make_tensors(spec), options(threads=2))
    driver = BackendDriver(backend, 64)

    def logits() -> np.ndarray:
        sequence = driver.sequence(range(1, 20))
        found = backend.submit(driver.inputs([(sequence, 19)], sample=True)).result().logits
        driver.free(sequence)
        assert found is not None
        return found

    plain = logits()
    backend.start_profile(0)
    with pytest.raises(TidemillError, match="being taken already"):
        backend.start_profile(0)
    assert (logits() == plain).all()
    found = backend.end_profile()
    assert found is not None and found.steps == 1
    assert (logits() == plain).all()
    backend.start_profile(0)
    empty = backend.end_profile()
    assert empty is not None and empty.steps == 0 and not empty.kernels
    backend.close()


def test_a_step_that_fails_leaves_the_counting_in_order() -> None:
    spec = make_spec()
    backend = native.load(spec, make_tensors(spec), options(threads=1))
    driver = BackendDriver(backend, 64)
    backend.start_profile(0)
    inputs = driver.inputs([(driver.sequence([1, 2]), 2)], sample=True)
    inputs.token_ids[0] = -1  # what a step before sampled, and there is none
    with pytest.raises(TidemillError):
        backend.submit(inputs).result()
    backend.submit(driver.inputs([(driver.sequence([1, 2]), 2)], sample=True)).result()
    found = backend.end_profile()
    assert found is not None and sum(of.ns for of in found.kernels) == pytest.approx(found.step_ns)
    backend.close()


def test_what_the_machine_can_do_is_measured_with_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(profiling, "RATE_BYTES", 1 << 20)
    spec = make_spec()
    backend = native.load(spec, make_tensors(spec), options(threads=2))
    found = backend.machine_rates()
    assert found is not None and found.read_bandwidth > 1e8
    if backend.memory().isa != "portable":
        # A multiply-add of bytes is several times one of floats, on every instruction set.
        assert found.operations["int8"] > found.operations["float32"] > 1e9
    monkeypatch.setattr(profiling, "RATE_BYTES", 1 << 60)
    assert backend.machine_rates() is None  # it would take too much memory
    backend.close()
