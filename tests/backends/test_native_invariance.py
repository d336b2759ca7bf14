"""Promise 6 at its root: a row's logits, bit for bit, whatever shares its batch.

Two layers of Qwen3-0.6B's shape, so that tiles, panels and spans are met as in a real model. Every
row is first decoded alone on one thread; then the same rows run in batches of other sizes and
orders, on other numbers of threads, and prompts are cut into other chunks. Long contexts are not
computed: random K and V are imported, and all sequences share the blocks of a prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from helpers.backend_driver import options, sampling_inputs
from helpers.random_model import make_spec, make_tensors

from tidemill.backends import native
from tidemill.backends.base import (
    LOGITS_ALL,
    LOGITS_LAST,
    Backend,
    ExportedBlocks,
    StepHandle,
    StepInputs,
)
from tidemill.models.kv_types import scales_shape
from tidemill.models.spec import DecoderSpec, QkNorm
from tidemill.models.tensors import RawTensor

VOCAB, BLOCK, MAX_POSITIONS = 4099, 32, 3200
CONTEXTS = (1, 511, 513, 3000)
BATCHES = (2, 5, 7, 13, 64)
PREFIX_BLOCKS = -(-max(CONTEXTS) // BLOCK)
OWN_BLOCKS = 6  # per sequence: the partly filled block of its context, and what it adds
SEQUENCES = 64
NUM_BLOCKS = PREFIX_BLOCKS + OWN_BLOCKS * SEQUENCES

SPEC = make_spec(
    hidden=1024, heads=16, kv_heads=8, head_dim=128, intermediate=3072, vocab=VOCAB, layers=2,
    qk_norm=QkNorm(),
)  # fmt: skip

# Stored type of the matrices, computing type, KV type.
TYPES = [
    ("F32", "float32", "float32"),
    ("F32", "float32", "bfloat16"),
    ("F16", "bfloat16", "float32"),
    ("F16", "bfloat16", "bfloat16"),
    ("F16", "bfloat16", "int8"),
    ("BF16", "bfloat16", "float32"),
    ("BF16", "bfloat16", "bfloat16"),
    ("BF16", "bfloat16", "int8"),
    ("BF16", "float32", "float32"),
    ("Q8_0", "bfloat16", "float32"),
    ("Q8_0", "bfloat16", "bfloat16"),
    ("Q8_0", "bfloat16", "int8"),
    ("INT8", "bfloat16", "bfloat16"),
    ("Q4_0", "bfloat16", "float32"),
    ("Q4_0", "bfloat16", "bfloat16"),
    ("Q4_0", "bfloat16", "int8"),
    ("Q4_K_M", "bfloat16", "bfloat16"),
    ("F32", "float32", "int8"),
    ("F32", "float32", "int4"),
    ("Q8_0", "bfloat16", "int4"),
]


@dataclass(frozen=True)
class Row:
    """Some tokens of sequence `index`, which has `context` tokens in the cache."""

    index: int
    context: int
    tokens: tuple[int, ...]


def table_of(row: Row) -> list[int]:
    """Shared blocks for the whole blocks of the context, then the sequence's own. The shared ones
    are shuffled, so that block ids and positions differ."""
    shuffled = np.random.default_rng(5).permutation(PREFIX_BLOCKS)[: row.context // BLOCK]
    own = PREFIX_BLOCKS + row.index * OWN_BLOCKS
    return [*shuffled.tolist(), *range(own, own + OWN_BLOCKS)]


def step(rows: Sequence[Row], wanted: int) -> StepInputs:
    tables = [table_of(row) for row in rows]
    width = max(map(len, tables))
    lengths = [len(row.tokens) for row in rows]
    count, tokens = len(rows), sum(lengths)
    return StepInputs(
        step_id=1,
        token_ids=np.array([t for row in rows for t in row.tokens], np.int32),
        row_start=np.cumsum([0, *lengths]).astype(np.int32),
        context_len=np.array([row.context for row in rows], np.int32),
        block_tables=(np.array([t + [-1] * (width - len(t)) for t in tables], np.int32),),
        logits=np.full(count, wanted, np.uint8),
        sample=np.zeros(count, np.uint8),
        await_mask=np.zeros(count, np.uint8),
        target_ids=np.full(tokens, -1, np.int32),
        target_logprobs=np.full(count, -1, np.int32),
        copies=(np.zeros((0, 2), np.int32),),
        sampling=sampling_inputs(0),
        return_logits=True,
    )


def logits(backend: Backend, rows: Sequence[Row], wanted: int = LOGITS_LAST) -> np.ndarray:
    outputs = backend.submit(step(rows, wanted)).result()
    assert outputs.logits is not None
    return outputs.logits


def random_blocks(spec: DecoderSpec, kv_dtype: str) -> ExportedBlocks:
    """K and V of every block, of the size that normed keys and projected values have: 16 random
    blocks, each often."""
    rng = np.random.default_rng(3)
    mixer = spec.layers[0].mixer
    shape = (16, BLOCK, mixer.kv_heads, mixer.head_dim)
    chosen = rng.integers(0, 16, NUM_BLOCKS)
    out = ExportedBlocks(kv_dtype, [], [])
    for _ in spec.layers:
        for key, arrays, scales in (
            (True, out.keys, out.key_scales),
            (False, out.values, out.value_scales),
        ):
            if kv_dtype == "int4":
                arrays.append(rng.integers(0, 16, shape, dtype=np.uint8)[chosen])
                groups = scales_shape(kv_dtype, mixer.head_dim, key=key)
                assert groups is not None
                scale = rng.uniform(0.2, 0.4, (*shape[:3], *groups)).astype(np.float32)
                scale[..., 1] *= -8
                scales.append((scale.view(np.uint32) & 0xFFFF0000).view(np.float32)[chosen])
                continue
            if kv_dtype == "int8":
                arrays.append(rng.integers(-127, 128, shape, dtype=np.int8)[chosen])
                scales.append(rng.uniform(0.005, 0.02, shape[:3]).astype(np.float32)[chosen])
                continue
            values = rng.standard_normal(shape, dtype=np.float32)
            bits = (values.view(np.uint32) >> 16).astype(np.uint16)
            arrays.append((bits if kv_dtype == "bfloat16" else values)[chosen])
    return out


def decode_rows() -> list[Row]:
    tokens = np.random.default_rng(7).integers(0, VOCAB, SEQUENCES).tolist()
    return [Row(i, CONTEXTS[i % len(CONTEXTS)], (t,)) for i, t in enumerate(tokens)]


def check_batches(alone: Backend, others: Sequence[Backend]) -> None:
    """AssertionError unless every batch gives each row what it gets alone."""
    rows = decode_rows()
    expected = np.concatenate([logits(alone, [row]) for row in rows])
    assert np.isfinite(expected).all()
    rng = np.random.default_rng(11)
    for backend in others:
        for size in BATCHES:
            picked = rng.permutation(SEQUENCES)[:size]
            got = logits(backend, [rows[i] for i in picked])
            different = (got.view(np.uint32) != expected[picked].view(np.uint32)).any(axis=1)
            assert not different.any(), f"batch of {size}: rows {picked[different]} differ"


def check_chunks(alone: Backend, others: Sequence[Backend]) -> None:
    """AssertionError unless every way to cut a prompt gives each position the same logits."""
    decoded = decode_rows()[40:45]
    for context, count in ((0, 30), (490, 30), (2990, 12)):
        prompt = tuple(np.random.default_rng(context).integers(0, VOCAB, count).tolist())
        expected = np.concatenate([_at(alone, context, prompt, i, i + 1) for i in range(count)])
        for backend in others:
            for cuts in ((count,), (1, count), (17, count), (5, 6, 23, count)):
                parts, begin = [], 0
                for end in (min(cut, count) for cut in cuts):
                    if end > begin:
                        parts.append(_at(backend, context, prompt, begin, end, decoded))
                        begin = end
                got = np.concatenate(parts)
                assert np.array_equal(got.view(np.uint32), expected.view(np.uint32)), (
                    f"prompt at {context} cut at {cuts}"
                )


def _at(
    backend: Backend,
    context: int,
    prompt: tuple[int, ...],
    begin: int,
    end: int,
    beside: Sequence[Row] = (),
) -> np.ndarray:
    """Logits of prompt[begin:end] of sequence 0, whose prompt follows `context` cached tokens;
    the rows `beside` share the batch."""
    inputs = step([Row(0, context, prompt[begin:end]), *beside], LOGITS_ALL)
    inputs.context_len[0] = context + begin
    outputs = backend.submit(inputs).result()
    assert outputs.logits is not None
    return outputs.logits[: end - begin]


def make_backends(
    tensors: dict[str, RawTensor], dtype: str, kv_dtype: str, threads: Sequence[int], **more: object
) -> list[Backend]:
    blocks = random_blocks(SPEC, kv_dtype)
    backends = []
    for count in threads:
        given = options(
            dtype=dtype, kv_dtype=kv_dtype, threads=count, block_size=BLOCK,
            max_positions=MAX_POSITIONS, **more,
        )  # fmt: skip
        backend = native.load(SPEC, tensors, given)
        backend.allocate_cache((NUM_BLOCKS,))
        backend.import_blocks(0, np.arange(NUM_BLOCKS, dtype=np.int32), blocks)
        backends.append(backend)
    return backends


@pytest.fixture(scope="module")
def stored() -> Iterator[dict[str, dict[str, RawTensor]]]:
    """Tensors by stored type, made once."""
    made: dict[str, dict[str, RawTensor]] = {}
    yield made
    made.clear()


def tensors_of(stored: dict[str, dict[str, RawTensor]], dtype: str) -> dict[str, RawTensor]:
    if dtype not in stored:
        stored.clear()  # one type at a time in memory
        stored[dtype] = make_tensors(SPEC, dtype)
    return stored[dtype]


@pytest.mark.parametrize(("weights", "dtype", "kv_dtype"), TYPES)
def test_logits_do_not_depend_on_the_batch(
    weights: str, dtype: str, kv_dtype: str, stored: dict[str, dict[str, RawTensor]]
) -> None:
    one, two = make_backends(tensors_of(stored, weights), dtype, kv_dtype, (1, 2))
    try:
        check_batches(one, (one, two))
        check_chunks(one, (two,))
    finally:
        one.close()
        two.close()


class BatchDependent:
    """A backend with the usual mistake: it chooses its kernels by the size of the batch. Those of
    another instruction set sum the same numbers in another order."""

    def __init__(self, small: Backend, large: Backend) -> None:
        self._small, self._large = small, large

    def submit(self, inputs: StepInputs) -> StepHandle:
        return (self._small if inputs.token_ids.size < 7 else self._large).submit(inputs)


def test_a_reordered_sum_is_noticed(stored: dict[str, dict[str, RawTensor]]) -> None:
    isas = native.available_isas()
    if len(isas) < 2:
        pytest.skip("this machine runs one instruction set only: no reordered kernels")
    tensors = tensors_of(stored, "BF16")
    (small,) = make_backends(tensors, "bfloat16", "bfloat16", (1,))
    (large,) = make_backends(tensors, "bfloat16", "bfloat16", (1,), isa=isas[-1])
    try:
        check_batches(small, (small,))
        wrong = BatchDependent(small, large)
        with pytest.raises(AssertionError, match="batch of 7: rows"):
            check_batches(small, (wrong,))  # type: ignore[arg-type]
        with pytest.raises(AssertionError, match="prompt at 0 cut at"):
            check_chunks(small, (wrong,))  # type: ignore[arg-type]
    finally:
        small.close()
        large.close()
