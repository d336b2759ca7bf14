"""Steps in flight: futures, masks, failures, log-probabilities, copies, blocks out and in."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from helpers.backend_driver import (
    BackendDriver,
    DrivenSequence,
    options,
    sampling_inputs,
    wait_loaded,
)
from helpers.random_model import make_spec, make_tensors, with_recurrence, with_windows

from tidemill.backends import native
from tidemill.backends.base import LOGITS_ALL, LOGITS_LAST, LOGITS_NONE, Backend, StepInputs
from tidemill.base.errors import ErrorKind, TidemillError

SPEC = make_spec(vocab=101)
TENSORS = make_tensors(SPEC)


@pytest.fixture
def backend() -> Iterator[Backend]:
    loaded = native.load(SPEC, TENSORS, options(threads=2))
    yield loaded
    loaded.close()


@pytest.fixture
def driver(backend: Backend) -> BackendDriver:
    return BackendDriver(backend, 64)


def refused(backend: Backend, inputs: StepInputs) -> TidemillError:
    with pytest.raises(TidemillError) as caught:
        backend.submit(inputs)
    return caught.value


def mask(*allowed: int) -> np.ndarray:
    bits = np.zeros(SPEC.vocab_size, bool)
    bits[list(allowed)] = True
    return np.packbits(bits, bitorder="little")


def test_two_plans_in_flight_equal_one_after_the_other(driver: BackendDriver) -> None:
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6, 5], [35]]
    expected = driver.greedy(prompts, 12)
    rows = [driver.sequence(p) for p in prompts]
    order = [0, 1, 2]
    handles = [driver.backend.submit(
        driver.inputs([(rows[r], len(rows[r].tokens)) for r in order], sample=True)
    )]  # fmt: skip
    got: list[list[int]] = [[], [], []]
    for step in range(1, 12):
        # The next step starts from tokens that are not known yet, in another order of rows.
        before, order = order, order[1:] + order[:1]
        future = [before.index(r) for r in order]
        inputs = driver.inputs([(rows[r], 1) for r in order], sample=True, future=future)
        handles.append(driver.backend.submit(inputs))
        for r, token in zip(before, handles.pop(0).result().sampled.tolist(), strict=True):
            got[r].append(token)
        assert len(got[0]) == step
    for r, token in zip(order, handles.pop(0).result().sampled.tolist(), strict=True):
        got[r].append(token)
    assert got == expected


def test_a_third_step_is_refused_until_a_result_is_taken(driver: BackendDriver) -> None:
    a, b, c = (driver.inputs([(driver.sequence([7]), 1)]) for _ in range(3))
    first = driver.backend.submit(a)
    second = driver.backend.submit(b)
    error = refused(driver.backend, c)
    assert error.kind is ErrorKind.INTERNAL and "outstanding" in error.message
    assert first.result() is first.result() and first.done()
    third = driver.backend.submit(c)
    assert np.array_equal(second.result().logits, third.result().logits)


def test_a_dropped_handle_is_not_outstanding(driver: BackendDriver) -> None:
    for _ in range(6):
        handle = driver.backend.submit(driver.inputs([(driver.sequence([7]), 1)]))
        while not handle.done():
            time.sleep(0.001)
        del handle
        gc.collect()


def test_penalties_count_the_future_token(driver: BackendDriver) -> None:
    first, second = ([driver.sequence([5, 6])] for _ in range(2))
    token = int(driver.run([(first[0], 2)], sample=True).sampled[0])
    penalty = {"presence": 2.0, "repetition": 1.5, "history_prompt": np.array([2], np.int32)}

    def sampling(history: list[int]):
        return sampling_inputs(
            1, history=np.array(history, np.int32),
            history_start=np.array([0, len(history)], np.int32), **penalty,
        )  # fmt: skip

    first[0].tokens.append(token)
    expected = driver.run([(first[0], 1)], sample=True, sampling=sampling([5, 6, token]))
    handle = driver.backend.submit(driver.inputs([(second[0], 2)], sample=True))
    future = driver.inputs([(second[0], 1)], sample=True, future=[0], sampling=sampling([5, 6]))
    later = driver.backend.submit(future)
    assert handle.result().sampled[0] == token
    assert later.result().sampled[0] == expected.sampled[0]


def test_sampling_waits_for_the_masks(driver: BackendDriver) -> None:
    rows = [(driver.sequence([9, 8, 7, t]), 4) for t in range(3)]
    free = driver.run(rows, sample=True).sampled
    for row, _ in rows:
        row.computed = 0
    inputs = driver.inputs(rows, sample=True)
    inputs.await_mask[:] = [1, 0, 1]
    handle = driver.backend.submit(inputs)
    time.sleep(0.05)
    assert not handle.done()
    handle.set_mask(2, 0, mask(31))
    time.sleep(0.02)
    assert not handle.done()
    threading.Timer(0.05, handle.set_mask, (0, 0, mask(17, int(free[0])))).start()
    assert handle.result().sampled.tolist() == [free[0], free[1], 31]


def test_a_mask_that_leaves_nothing_ends_its_row_only(driver: BackendDriver) -> None:
    rows = [(driver.sequence([9, t]), 2) for t in range(2)]
    inputs = driver.inputs(rows, sample=True)
    inputs.await_mask[0] = 1
    handle = driver.backend.submit(inputs)
    # The row's next step was submitted before its failure was known: it fails alike, alone.
    later = driver.backend.submit(
        driver.inputs([(s, 1) for s, _ in rows], sample=True, future=[0, 1])
    )
    handle.set_mask(0, 0, mask())
    sampled = handle.result().sampled
    assert sampled[0] == -1 and sampled[1] >= 0
    after = later.result().sampled
    assert after[0] == -1 and after[1] >= 0


@pytest.mark.parametrize(
    ("row", "draft", "bits", "kind"),
    [
        (1, 0, mask(1), ErrorKind.INTERNAL),
        (9, 0, mask(1), ErrorKind.INTERNAL),
        (-1, 0, mask(1), ErrorKind.INTERNAL),
        (0, 1, mask(1), ErrorKind.INTERNAL),
        (0, 0, mask(1)[:-1], ErrorKind.INTERNAL),
    ],
)
def test_wrong_masks_are_refused(
    driver: BackendDriver, row: int, draft: int, bits: np.ndarray, kind: ErrorKind
) -> None:
    inputs = driver.inputs([(driver.sequence([9, t]), 2) for t in range(2)], sample=True)
    inputs.await_mask[0] = 1
    handle = driver.backend.submit(inputs)
    with pytest.raises(TidemillError) as caught:
        handle.set_mask(row, draft, bits)
    assert caught.value.kind is kind
    handle.set_mask(0, 0, mask(3))
    with pytest.raises(TidemillError, match="already"):
        handle.set_mask(0, 0, mask(3))
    assert handle.result().sampled[0] == 3


def test_close_unblocks_a_step_that_waits(driver: BackendDriver) -> None:
    inputs = driver.inputs([(driver.sequence([9]), 1)], sample=True)
    inputs.await_mask[0] = 1
    handles = [driver.backend.submit(inputs)]
    handles.append(driver.backend.submit(driver.inputs([(driver.sequence([9]), 1)], sample=True)))
    failures: list[TidemillError] = []

    def wait() -> None:
        with pytest.raises(TidemillError) as caught:
            handles[0].result()
        failures.append(caught.value)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.02)
    driver.backend.close()
    waiter.join(5)
    assert not waiter.is_alive()
    with pytest.raises(TidemillError) as caught:
        handles[1].result()
    failures.append(caught.value)
    assert {f.kind for f in failures} == {ErrorKind.UNAVAILABLE}
    assert refused(driver.backend, inputs).kind is ErrorKind.UNAVAILABLE
    driver.backend.close()


def test_a_future_of_a_row_that_samples_nothing_is_refused(driver: BackendDriver) -> None:
    future = driver.inputs([(driver.sequence([9]), 1)], sample=True, future=[0])
    assert "token_ids" in refused(driver.backend, future).message
    first = driver.backend.submit(driver.inputs([(driver.sequence([9]), 1)]))
    assert "token_ids" in refused(driver.backend, future).message
    assert first.result().logits is not None


OUT_OF_MEMORY = """
import resource
import numpy as np
from helpers.backend_driver import BackendDriver, options
from helpers.random_model import make_spec, make_tensors
from tidemill.backends import native
from tidemill.backends.base import LOGITS_ALL
from tidemill.base.errors import TidemillError

spec = make_spec(vocab=50021)
driver = BackendDriver(native.load(spec, make_tensors(spec), options(threads=2)), 64)
expected = driver.run([(driver.sequence([1]), 1)], sample=True).sampled
large = driver.inputs([(driver.sequence([7] * 500), 500)], logits=LOGITS_ALL, sample=True)
small = driver.inputs([(driver.sequence([1]), 1)], sample=True)
future = driver.inputs([(driver.sequence([1]), 1)], sample=True, future=[0])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
for after in (small, future):
    handles = [driver.backend.submit(large), driver.backend.submit(after)]
    for handle in handles:
        try:
            handle.result()
        except TidemillError as error:
            print(error.kind, error.message)
    print(driver.backend.submit(small).result().sampled == expected)
"""


def test_a_step_that_runs_out_of_memory_fails_with_those_after_it() -> None:
    """100 MB of logits are asked for where 64 MB are left; what comes later works."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    failed = "resource out of memory: use a smaller batch, cache or model"
    assert lines == [failed, failed, "[ True]"] * 2


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_any_number_of_threads_gives_the_same_bits(threads: int) -> None:
    spec = make_spec(heads=8, kv_heads=2, head_dim=16, intermediate=160, vocab=301)
    tensors = make_tensors(spec, "Q8_0")
    tokens = np.random.default_rng(2).integers(0, 301, 40).tolist()

    def run(count: int) -> np.ndarray:
        backend = native.load(spec, tensors, options(threads=count, dtype="bfloat16"))
        got = BackendDriver(backend, 8).all_logits(tokens)
        backend.close()
        return got

    assert np.array_equal(run(threads).view(np.uint32), run(1).view(np.uint32))


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_logprobs_are_of_the_raw_logits(driver: BackendDriver) -> None:
    rows = [(driver.sequence([9, 8, t]), 3) for t in range(5)]
    sampling = sampling_inputs(
        5,
        temperature=np.float32([0.0, 2.0, 1.0, 0.0, 1.0]),
        num_logprobs=np.int32([3, 0, -1, 70, 101]),  # the last: of all tokens
        bias_start=np.array([0, 1, 1, 1, 1, 1], np.int32),
        bias_id=np.array([50], np.int32),
        bias_value=np.array([100], np.float32),
    )
    out = driver.run(rows, sample=True, sampling=sampling)
    assert out.logprobs is not None and out.logits is not None
    assert out.sampled[0] == 50
    expected = log_softmax(out.logits)
    for s, wanted in enumerate((3, 0, -1, 70, 101)):
        ids, values = out.logprobs.top_ids[s], out.logprobs.top_values[s]
        if wanted < 0:
            assert np.isnan(out.logprobs.chosen[s]) and (ids == -1).all()
            continue
        assert abs(out.logprobs.chosen[s] - expected[s, out.sampled[s]]) < 1e-5
        order = np.argsort(-out.logits[s], kind="stable")[:wanted]
        assert ids.tolist() == [*order.tolist(), *[-1] * (101 - wanted)]
        assert np.abs(values[:wanted] - expected[s, order]).max(initial=0) < 1e-5


def test_prompt_targets(driver: BackendDriver) -> None:
    tokens = np.random.default_rng(4).integers(0, 101, 90).tolist()
    expected = log_softmax(driver.all_logits(tokens))
    long, short = driver.sequence(tokens), driver.sequence(tokens[:5])
    inputs = driver.inputs([(long, 90), (short, 5)], return_logits=False)
    inputs.logits[:] = [LOGITS_ALL, LOGITS_NONE]
    inputs.target_ids[:89] = tokens[1:]
    inputs.target_logprobs[:] = [2, -1]
    out = driver.backend.submit(inputs).result()
    assert out.targets is not None and out.logits is None and out.logprobs is None
    assert out.targets.chosen.shape == (89,) and out.targets.top_ids.shape == (89, 2)
    assert np.abs(out.targets.chosen - expected[np.arange(89), tokens[1:]]).max() < 1e-5
    best = np.argsort(-expected[:89], axis=1, kind="stable")[:, :2]
    assert np.array_equal(out.targets.top_ids, best)


def test_copies_run_before_the_rows(driver: BackendDriver) -> None:
    tokens = list(range(20))
    expected = driver.all_logits([*tokens, 55])[-1]
    origin = driver.sequence(tokens)
    driver.run([(origin, 20)])
    fork = driver.sequence([*tokens, 55])
    fork.computed = 20
    inputs = driver.inputs([(fork, 1)])
    # The full block is shared, the half-filled one copied into the fork's own.
    inputs.block_tables[0][0, 0] = origin.tables[0][0]
    pair = (origin.tables[0][1], int(inputs.block_tables[0][0, 1]))
    inputs = replace(inputs, copies=(np.array([pair], np.int32),))
    assert np.array_equal(driver.backend.submit(inputs).result().logits[0], expected)
    # The same by a call of its own.
    clean = driver.sequence([*tokens, 55])
    clean.computed = 20
    inputs = driver.inputs([(clean, 1)])
    pairs = np.array(list(zip(origin.tables[0], clean.tables[0], strict=True)), np.int32)
    driver.backend.copy_blocks(0, pairs)
    assert np.array_equal(driver.backend.submit(inputs).result().logits[0], expected)


def computed_and_not(kv_dtype: str) -> tuple[list[BackendDriver], DrivenSequence, DrivenSequence]:
    """Two backends of one model, with a sequence whose first 49 tokens the first one computed, and
    the same of the second one, which lacks their keys and values."""
    spec = with_windows(make_spec(vocab=101), [None, 24, None])
    tokens = np.random.default_rng(4).integers(0, 101, 50).tolist()
    made = []
    for _ in range(2):
        backend = native.load(spec, make_tensors(spec), options(kv_dtype=kv_dtype, threads=2))
        made.append(BackendDriver(backend, 16))
    source, target = made
    a, b = source.sequence(tokens), target.sequence(tokens)
    source.run([(a, 49)])
    b.computed = 49
    return made, a, b


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "int4"])
def test_exported_blocks_restore_the_same_bits(kv_dtype: str) -> None:
    made, a, b = computed_and_not(kv_dtype)
    source, target = made
    inputs = target.inputs([(b, 1)])
    for group in range(2):
        blocks = np.array(a.tables[group][::-1], np.int32)
        data = source.backend.export_blocks(group, blocks)
        assert data.keys[0].shape == (len(blocks), 16, 2, 10)
        assert len(data.keys) == len(data.values) == (2, 1)[group]
        assert len(data.key_scales) == (len(data.keys) if kv_dtype in ("int8", "int4") else 0)
        target.backend.import_blocks(group, np.array(b.tables[group][::-1], np.int32), data)
        again = target.backend.export_blocks(group, np.array(b.tables[group][::-1], np.int32))
        assert all(np.array_equal(x, y) for x, y in zip(data.keys, again.keys, strict=True))
    expected = source.run([(a, 1)]).logits
    assert np.array_equal(target.backend.submit(inputs).result().logits, expected)
    other = "int8" if kv_dtype == "float32" else "float32"
    with pytest.raises(TidemillError) as caught:
        target.backend.import_blocks(0, blocks, replace(data, kv_dtype=other))
    assert caught.value.kind is ErrorKind.BAD_REQUEST
    for driver in made:
        driver.backend.close()


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "int4"])
def test_raw_blocks_restore_the_same_bits_while_a_step_waits(kv_dtype: str) -> None:
    made, a, b = computed_and_not(kv_dtype)
    source, target = made
    inputs = target.inputs([(b, 1)])
    busy = []
    for driver in made:
        waiting = driver.inputs([(driver.sequence([9]), 1)], sample=True)
        waiting.await_mask[0] = 1
        busy.append(driver.backend.submit(waiting))
    for group, nbytes in enumerate(source.backend.block_bytes()):
        blocks = np.array(a.tables[group], np.int32)
        data = np.empty(len(blocks) * nbytes, np.uint8)
        source.backend.read_blocks(group, blocks, data)
        target.backend.write_blocks(group, np.array(b.tables[group], np.int32), data)
        with pytest.raises(TidemillError, match="blocks of this cache"):
            target.backend.write_blocks(group, blocks, data[:-1])
        with pytest.raises(TidemillError, match="is not one of"):
            source.backend.read_blocks(group, blocks + 10_000, data)
    for handle in busy:
        handle.set_mask(0, 0, mask(1))
        assert handle.result().sampled[0] == 1
    expected = source.run([(a, 1)]).logits
    assert np.array_equal(target.backend.submit(inputs).result().logits, expected)
    for driver in made:
        driver.backend.close()
    with pytest.raises(TidemillError) as caught:
        source.backend.read_blocks(0, blocks, data)
    assert caught.value.kind is ErrorKind.UNAVAILABLE


def test_pages_of_blocks_are_given_back_and_others_stay() -> None:
    spec = with_windows(make_spec(vocab=101), [None, 24, None])
    backend = native.load(spec, make_tensors(spec), options(kv_dtype="float32"))
    driver = BackendDriver(backend, 16)
    backend.allocate_cache((4000, 16))
    blocks = np.arange(4000, dtype=np.int32)
    data = backend.export_blocks(0, blocks)
    for array in (*data.keys, *data.values):
        array[:] = 7
    backend.import_blocks(0, blocks, data)
    backend.give_back_blocks(0, np.array([*range(100, 3000), 3500, 3600], np.int32))
    after = backend.export_blocks(0, blocks)
    for array in (*after.keys, *after.values):
        kept = (array == 7).reshape(4000, -1).all(axis=1)
        assert kept[:100].all() and kept[3000:].all()
        if sys.platform == "linux":
            # All but what lies in a huge page with other blocks.
            assert kept[100:3000].sum() < 2 * 2**21 / (array[0].nbytes * 2)
            assert not array[1500].any()
    tokens = list(range(40))
    expected = driver.all_logits(tokens)
    backend.give_back_blocks(0, blocks)
    assert np.array_equal(driver.all_logits(tokens), expected)
    with pytest.raises(TidemillError):
        backend.give_back_blocks(0, np.array([4000], np.int32))
    backend.close()


def broken(inputs: StepInputs, field: str) -> StepInputs:
    """The inputs with one field wrong."""
    i32, table = np.int32, inputs.block_tables[0]
    changes = {
        "token_ids": np.array([1, 101], i32),
        "row_start": np.array([0, 3], i32),
        "context_len": np.array([511], i32),
        "block_tables": (np.array([[64]], i32),),
        "block_tables ": (np.zeros((1, 0), i32),),
        "block_tables  ": (table, table),
        "logits": np.array([3], np.uint8),
        "sample": np.array([1, 0], np.uint8),
        "await_mask": np.array([1], np.uint8),
        "target_ids": np.array([0, 101], i32),
        "target_logprobs": np.zeros(0, i32),
        "copies": (np.array([[0, 64]], i32),),
        "token_ids ": np.array([1, 2], np.int64),
        "sampling": sampling_inputs(1),
    }
    return replace(inputs, **{field.strip(): changes[field]})


@pytest.mark.parametrize(
    "field",
    ["token_ids", "row_start", "context_len", "block_tables", "block_tables ", "block_tables  ",
     "logits", "sample", "await_mask", "target_ids", "target_logprobs", "copies", "token_ids ",
     "sampling"],
)  # fmt: skip
def test_inputs_that_contradict_themselves_are_refused(driver: BackendDriver, field: str) -> None:
    inputs = driver.inputs([(driver.sequence([1, 2]), 2)])
    error = refused(driver.backend, broken(inputs, field))
    assert error.kind is ErrorKind.INTERNAL
    named = {"copies": "block 64", "block_tables": "block 64"}.get(field, field.strip())
    assert named in error.message
    assert driver.backend.submit(inputs).result().logits is not None


def test_wrong_sampling_inputs_are_refused(driver: BackendDriver) -> None:
    bad = {
        "temperature": np.float32([np.nan]),
        "top_p": np.float32([0]),
        "min_p": np.float32([2]),
        "bias_id": np.int32([101]),
        "history": np.int32([-1]),
    }
    for field, value in bad.items():
        sampling = sampling_inputs(1)
        if field in ("bias_id", "history"):
            setattr(
                sampling, {"bias_id": "bias_start"}.get(field, "history_start"), np.int32([0, 1])
            )
            sampling.bias_value = np.zeros(int(field == "bias_id"), np.float32)
        setattr(sampling, field, value)
        inputs = driver.inputs([(driver.sequence([1]), 1)], sample=True, sampling=sampling)
        error = refused(driver.backend, inputs)
        assert (error.kind, error.param) == (ErrorKind.INTERNAL, f"sampling.{field}")


def test_cache_calls_while_a_step_waits(driver: BackendDriver) -> None:
    inputs = driver.inputs([(driver.sequence([9]), 1)], sample=True)
    inputs.await_mask[0] = 1
    handle = driver.backend.submit(inputs)
    with pytest.raises(TidemillError, match="outstanding"):
        driver.backend.export_blocks(0, np.zeros(1, np.int32))
    with pytest.raises(TidemillError, match="outstanding"):
        driver.backend.allocate_cache((4,))
    handle.set_mask(0, 0, mask(1))
    assert handle.result().sampled[0] == 1


def test_progress_advances_and_times_are_reported(driver: BackendDriver) -> None:
    driver.run([(driver.sequence([1]), 1)])  # waits for weights to be packed, which does not count
    before = driver.backend.progress()
    out = driver.run([(driver.sequence(list(range(40))), 40)], sample=True)
    assert driver.backend.progress() > before + 20
    queued, forward, sampling, total = out.seconds
    assert queued >= 0 and 0 < forward <= total and sampling >= 0
    assert abs(forward + sampling - total) < 1e-6


def test_a_step_without_rows_and_a_not_finite_row(driver: BackendDriver) -> None:
    empty = driver.inputs([(driver.sequence([1]), 1)])
    nothing = np.zeros(0, np.int32)
    bytes_ = np.zeros(0, np.uint8)
    inputs = replace(
        empty, token_ids=nothing, row_start=np.zeros(1, np.int32), context_len=nothing,
        block_tables=(np.zeros((0, 1), np.int32),), logits=bytes_, sample=bytes_,
        await_mask=bytes_, target_ids=nothing, target_logprobs=nothing,
    )  # fmt: skip
    out = driver.backend.submit(inputs).result()
    assert out.sampled.shape == (0,) and out.logits is None


def test_a_row_with_a_nan_fails_alone() -> None:
    tensors = dict(TENSORS)
    embedding = np.frombuffer(tensors["embed.weight"].data, np.float32).reshape(101, -1).copy()
    embedding[13, 5] = np.nan
    tied = replace(SPEC, tied_embeddings=False)
    tensors["lm_head.weight"] = tensors["embed.weight"]
    tensors["embed.weight"] = replace(tensors["embed.weight"], data=embedding.data.cast("B"))
    backend = native.load(tied, tensors, options(threads=2))
    driver = BackendDriver(backend, 8)
    rows = [(driver.sequence([t]), 1) for t in (12, 13, 14)]
    sampling = sampling_inputs(3, temperature=1.0, num_logprobs=np.int32([2, 2, 2]))
    out = driver.run(rows, sample=True, sampling=sampling, logits=LOGITS_LAST)
    assert out.sampled[1] == -2 and out.sampled[0] >= 0 and out.sampled[2] >= 0
    assert out.logprobs is not None and np.isnan(out.logprobs.chosen[1])
    backend.close()


def test_it_closes_when_collected() -> None:
    before = threading.active_count()
    for _ in range(3):
        loaded = native.load(SPEC, TENSORS, options(threads=2))
        loaded.allocate_cache((4,))
        assert wait_loaded(loaded) is None
        del loaded
        gc.collect()
        assert threading.active_count() == before


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_a_state_is_read_and_written_in_parts(backend: str) -> None:
    spec = with_recurrence(make_spec(layers=1))
    load = import_module(f"tidemill.backends.{backend}").load
    loaded = load(spec, make_tensors(spec), options(threads=1))
    loaded.allocate_cache((4,) * len(spec.cache_groups()), states=5)
    size, part = loaded.state_bytes(), 1000
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    for at in range(0, size, part):
        loaded.write_state(3, at, data[at : at + part], 7 if at + part >= size else -1)
    found = np.zeros(size, np.uint8)
    for at in range(0, size, 640):
        loaded.read_state(3, at, found[at : at + 640])
    assert np.array_equal(found, data)
    loaded.read_state(2, 0, found)
    assert not found.any()
    if backend == "native":
        for state, at in ((5, 0), (-1, 0), (0, 1), (0, -1)):
            with pytest.raises(TidemillError, match="do not exist"):
                loaded.read_state(state, at, found)
            with pytest.raises(TidemillError, match="do not exist"):
                loaded.write_state(state, at, found, 1)
    loaded.close()
