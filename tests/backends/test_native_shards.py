"""A model computed by several ranks gives the bits that one process gives.

The ranks are backends of this process: what they share passes through the same memory as between
processes, and each runs its steps on a thread of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
from helpers.backend_driver import BackendDriver, options
from helpers.random_model import (
    make_spec,
    make_tensors,
    mixers_beside,
    with_recurrence,
    with_shared_kv,
    with_windows,
)
from helpers.together import Together, computed

from tidemill.backends import native
from tidemill.backends.base import BackendOptions, Shard
from tidemill.backends.native import _core
from tidemill.backends.native.backend import NativeBackend
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.models.layers import Latent, Mlp, Moe, Rope
from tidemill.models.spec import Attention, DecoderSpec, QkNorm
from tidemill.models.tensors import RawTensor

PROMPT = [(7 * i * i + 3) % 131 for i in range(75)]
SPEC = make_spec(hidden=128, heads=8, kv_heads=4, head_dim=16, intermediate=160)


@contextmanager
def ranks_of(
    spec: DecoderSpec, tensors: dict[str, RawTensor], ranks: int, chosen: BackendOptions
) -> Iterator[list[NativeBackend]]:
    descriptor = os.memfd_create("ranks")
    os.ftruncate(descriptor, _core.GROUP_BYTES)
    backends: list[NativeBackend] = []
    try:
        for rank in range(ranks):
            shard = replace(chosen, shard=Shard(rank, ranks, descriptor))
            backends.append(NativeBackend(spec, tensors, shard))
        yield backends
    finally:
        for backend in backends:
            backend.close()
        os.close(descriptor)


def check_same(
    spec: DecoderSpec,
    stored: str,
    ranks: Sequence[int] = (2,),
    most: float = 0.75,
    **changes: object,
) -> None:
    """Ranks have the bits of one process, and each holds at most such a share of its weights."""
    tensors = make_tensors(spec, stored)
    chosen = options(**changes)
    whole = native.load(spec, tensors, chosen)
    expected, tokens = computed(whole, PROMPT)
    whole.close()
    for count in ranks:
        with ranks_of(spec, tensors, count, chosen) as backends:
            logits, found = computed(Together(backends), PROMPT)
            held = [backend.memory().weight_bytes for backend in backends]
        assert logits.tobytes() == expected.tobytes(), count
        assert found == tokens
        assert max(held) < most * whole_bytes(spec, tensors, chosen)


def whole_bytes(spec: DecoderSpec, tensors: dict[str, RawTensor], chosen: BackendOptions) -> int:
    backend = native.load(spec, tensors, chosen)
    try:
        return backend.memory().weight_bytes
    finally:
        backend.close()


@pytest.mark.parametrize(
    ("stored", "changes"),
    [
        ("F32", {}),
        ("BF16", {"dtype": "bfloat16", "kv_dtype": "bfloat16", "threads": 2}),
        ("Q8_0", {"dtype": "bfloat16", "kv_dtype": "int8"}),
        ("Q4_0", {"dtype": "bfloat16", "kv_dtype": "int4"}),
        ("F32", {"quantize": "int8", "dtype": "bfloat16"}),
        ("Q8_0", {"isa": "portable", "dtype": "bfloat16"}),
    ],
)
def test_two_and_four_ranks_give_the_bits_of_one(stored: str, changes: dict[str, object]) -> None:
    check_same(SPEC, stored, (2, 4), **changes)


def test_formats_that_pack_whole_rows_alone_are_split() -> None:
    spec = make_spec(hidden=256, heads=8, kv_heads=4, head_dim=32, intermediate=512)
    check_same(spec, "Q4_K_M", dtype="bfloat16")


def _attention(**values: object) -> DecoderSpec:
    layers = []
    for layer in SPEC.layers:
        assert isinstance(layer.mixer, Attention)
        layers.append(replace(layer, mixer=replace(layer.mixer, **values)))
    return replace(SPEC, layers=tuple(layers))


def _mixture() -> DecoderSpec:
    expert = Mlp(96)
    moe = Moe(experts=4, top_k=2, expert=expert, shared=Mlp(96), shared_gate=True)
    return replace(SPEC, layers=tuple(replace(layer, mlp=moe) for layer in SPEC.layers))


FEATURES: dict[str, Callable[[], DecoderSpec]] = {
    "untied": lambda: replace(SPEC, tied_embeddings=False),
    "biases": lambda: _attention(q_bias=True, k_bias=True, v_bias=True, o_bias=True),
    "norms of heads": lambda: _attention(qk_norm=QkNorm()),
    "norms per head": lambda: _attention(qk_norm=QkNorm(scope="heads")),
    "sinks": lambda: _attention(sinks=True),
    "slopes": lambda: _attention(slopes=tuple(2.0**-i for i in range(8)), rope=None),
    "gated": lambda: _attention(gated=True),
    "windows": lambda: with_windows(SPEC, (16, None, 32)),
    "parallel": lambda: replace(
        SPEC, layers=tuple(replace(layer, parallel=True) for layer in SPEC.layers)
    ),
    "experts": _mixture,
    "recurrent": lambda: with_recurrence(SPEC),
    "mixers beside": lambda: mixers_beside(SPEC),
    "shared keys, inputs of layers": lambda: with_shared_kv(SPEC),
}
# Attention of which every rank computes all.
WHOLE: dict[str, Callable[[], DecoderSpec]] = {
    "norms of all heads": lambda: _attention(qk_norm=QkNorm(scope="full")),
    "one KV head": lambda: _attention(kv_heads=1),
    "latent": lambda: _attention(
        kv_heads=1,
        head_dim=96,
        rope=Rope(10000.0, 32),
        latent=Latent(rank=64, rope=32, nope=32, value=64, q_rank=64),
    ),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_is_split_with_its_heads_and_rows(feature: str) -> None:
    check_same(FEATURES[feature](), "F32", most=0.95)


@pytest.mark.parametrize("feature", WHOLE)
def test_what_heads_share_is_computed_by_all(feature: str) -> None:
    spec = WHOLE[feature]()
    check_same(spec, "F32", most=0.95)
    ranks = replace(spec, ranks=2)
    assert ranks.kv_bytes_per_token("int8") == 2 * spec.kv_bytes_per_token("int8")


def test_widths_that_are_no_multiple_of_a_panel_are_split() -> None:
    check_same(
        make_spec(hidden=104, heads=6, kv_heads=3, head_dim=10, intermediate=136), "F32", (3,)
    )


@pytest.mark.parametrize(
    ("spec", "ranks", "why"),
    [
        (SPEC, 5, "too small for 5 processes"),
        (replace(SPEC, generates=False), 2, "generates no text"),
        (make_spec(hidden=16, heads=2, kv_heads=2, head_dim=8, intermediate=96), 2, "too small"),
    ],
)
def test_what_cannot_be_split_is_refused_with_its_reason(
    spec: DecoderSpec, ranks: int, why: str
) -> None:
    whole = ranks_of(spec, make_tensors(spec), ranks, options())
    with pytest.raises(TidemillError, match=why) as error, whole:
        pass
    assert error.value.kind is ErrorKind.UNSUPPORTED
    assert error.value.param == "tensor_parallel"


def test_a_rank_that_fails_ends_the_steps_of_all() -> None:
    with ranks_of(SPEC, make_tensors(SPEC), 2, options()) as backends:
        for backend in backends:
            backend.allocate_cache((16,))
        driver = BackendDriver(backends[0], 16)
        handle = backends[0].submit(driver.inputs([(driver.sequence(PROMPT), 9)]))
        assert not handle.done(0.2)  # the other rank has not begun
        backends[1].fail_group()
        with pytest.raises(TidemillError, match="has ended or does not answer") as error:
            handle.result()
        assert error.value.kind is ErrorKind.UNAVAILABLE
