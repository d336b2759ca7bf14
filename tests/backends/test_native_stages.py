"""A model computed in stages gives the bits that one process gives.

The stages are backends of this process: what they send passes through the same sockets as between
processes, and each runs its steps on a thread of its own.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
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
from tidemill.backends.base import HIDDEN_ALL, Backend, BackendOptions, Stage
from tidemill.backends.native.backend import NativeBackend
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.models.layers import Latent, Mlp, Moe, Rope
from tidemill.models.spec import Attention, DecoderSpec
from tidemill.models.stages import divide_layers
from tidemill.models.tensors import RawTensor

PROMPT = [(7 * i * i + 3) % 131 for i in range(75)]
SPEC = make_spec(hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=96)


@contextmanager
def stages_of(
    spec: DecoderSpec,
    tensors: dict[str, RawTensor],
    layers: Sequence[tuple[int, int]],
    chosen: BackendOptions,
) -> Iterator[list[NativeBackend]]:
    count = len(layers)
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in layers]
        for pair in pairs:
            for end in pair:
                stack.enter_context(end)
        backends: list[NativeBackend] = []
        for i, (first, end) in enumerate(layers):
            receives, sends = pairs[i - 1][1].fileno(), pairs[i][0].fileno()
            stage = Stage(i, count, range(first, end), receives, sends)
            backends.append(NativeBackend(spec, tensors, replace(chosen, stage=stage)))
            stack.callback(backends[-1].close)
        yield backends


def check_same(
    spec: DecoderSpec, stored: str, stages: Sequence[int] = (2,), **changes: object
) -> None:
    """Stages have the bits of one process, and its weights between them."""
    tensors = make_tensors(spec, stored)
    chosen = options(**changes)
    whole = native.load(spec, tensors, chosen)
    expected, tokens = computed(whole, PROMPT)
    held = whole.memory()
    whole.close()
    for count in stages:
        layers = divide_layers(spec, tensors, count)
        with stages_of(spec, tensors, layers, chosen) as backends:
            logits, found = computed(Together(backends), PROMPT)
            parts = [backend.memory() for backend in backends]
        assert logits.tobytes() == expected.tobytes(), count
        assert found == tokens
        assert sum(part.kv_bytes for part in parts) == held.kv_bytes
        assert abs(sum(part.weight_bytes for part in parts) - held.weight_bytes) < 4096  # padding
        assert max(part.weight_bytes for part in parts) < held.weight_bytes


@pytest.mark.parametrize(
    ("stored", "changes"),
    [
        ("F32", {}),
        ("BF16", {"dtype": "bfloat16", "kv_dtype": "bfloat16", "threads": 2}),
        ("Q8_0", {"dtype": "bfloat16", "kv_dtype": "int8"}),
        ("F32", {"quantize": "int8", "dtype": "bfloat16"}),
    ],
)
def test_two_and_three_stages_give_the_bits_of_one(stored: str, changes: dict[str, object]) -> None:
    check_same(SPEC, stored, (2, 3), **changes)


def _mixture() -> DecoderSpec:
    moe = Moe(experts=4, top_k=2, expert=Mlp(96), shared=Mlp(96), shared_gate=True)
    return replace(SPEC, layers=tuple(replace(layer, mlp=moe) for layer in SPEC.layers))


def _latent() -> DecoderSpec:
    latent = Latent(rank=64, rope=32, nope=32, value=64, q_rank=64)
    layers = []
    for layer in SPEC.layers:
        assert isinstance(layer.mixer, Attention)
        mixer = replace(layer.mixer, kv_heads=1, head_dim=96, rope=Rope(10000.0, 32), latent=latent)
        layers.append(replace(layer, mixer=mixer))
    return replace(SPEC, layers=tuple(layers))


def _shared_keys() -> DecoderSpec:
    """A layer of its own, and behind the cut one whose keys the last layer reads."""
    own, reads, _ = with_shared_kv(SPEC).layers
    assert isinstance(reads.mixer, Attention)
    moved = replace(reads, mixer=replace(reads.mixer, kv_layer=1))
    return replace(SPEC, layers=(SPEC.layers[0], own, moved))


FEATURES: dict[str, Callable[[], DecoderSpec]] = {
    "untied": lambda: replace(SPEC, tied_embeddings=False),
    "windows": lambda: with_windows(SPEC, (16, None, 32)),  # a cache group per stage
    "parallel": lambda: replace(
        SPEC, layers=tuple(replace(layer, parallel=True) for layer in SPEC.layers)
    ),
    "experts": _mixture,
    "latent": _latent,
    "recurrent": lambda: with_recurrence(SPEC),
    "mixers beside": lambda: mixers_beside(SPEC),
    "shared keys": _shared_keys,
}


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_is_computed_in_stages(feature: str) -> None:
    check_same(FEATURES[feature](), "F32")


def test_a_step_begins_while_the_one_before_is_computed_behind() -> None:
    tensors = make_tensors(SPEC, "F32")
    with stages_of(SPEC, tensors, [(0, 1), (1, 3)], options()) as backends:
        for backend in backends:
            backend.allocate_cache((16,))
        first, second = backends
        driver = BackendDriver(first, 16)
        steps = [driver.inputs([(driver.sequence(PROMPT), 20)]) for _ in range(2)]
        handles = [first.submit(step) for step in steps]
        assert not handles[0].done(0.2)  # the other stage has not been told of it
        others = [second.submit(steps[0])]
        handles[0].result()
        assert not handles[1].done(0.2)
        others.append(second.submit(steps[1]))  # its input lies in the socket
        handles[1].result()
        for other in others:
            other.result()


def test_hidden_states_come_from_the_last_stage() -> None:
    tensors = make_tensors(SPEC, "F32")
    found = []
    whole = native.load(SPEC, tensors, options())
    with whole_and_stages(whole, tensors) as models:
        for model in models:
            driver = BackendDriver(model, 16)  # type: ignore[arg-type]
            inputs = driver.inputs([(driver.sequence(PROMPT), 9), (driver.sequence(PROMPT), 5)])
            inputs.hidden = np.array([HIDDEN_ALL, 0], np.uint8)
            found.append(model.submit(inputs).result().hidden)  # type: ignore[attr-defined]
    assert found[0].shape == (9, SPEC.hidden_size)
    assert found[0].tobytes() == found[1].tobytes()


@contextmanager
def whole_and_stages(
    whole: Backend, tensors: dict[str, RawTensor]
) -> Iterator[tuple[Backend, Together]]:
    layers = divide_layers(SPEC, tensors, 3)
    try:
        with stages_of(SPEC, tensors, layers, options()) as backends:
            models = whole, Together(backends)
            for model in models:
                model.allocate_cache((16,))
            yield models
    finally:
        whole.close()


def test_a_stage_that_fails_ends_the_steps_of_all() -> None:
    with stages_of(SPEC, make_tensors(SPEC), [(0, 1), (1, 3)], options()) as backends:
        for backend in backends:
            backend.allocate_cache((16,))
        driver = BackendDriver(backends[0], 16)
        handle = backends[0].submit(driver.inputs([(driver.sequence(PROMPT), 9)]))
        assert not handle.done(0.2)
        backends[1].fail_group()
        with pytest.raises(TidemillError, match="has ended or does not answer") as error:
            handle.result()
        assert error.value.kind is ErrorKind.UNAVAILABLE


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (replace(SPEC, generates=False), "generates no text"),
        (with_shared_kv(SPEC), "inputs made of the embedding"),
    ],
)
def test_what_has_no_stages_is_refused_with_its_reason(spec: DecoderSpec, why: str) -> None:
    whole = stages_of(spec, make_tensors(spec), [(0, 1), (1, 3)], options())
    with pytest.raises(TidemillError, match=why) as error, whole:
        pass
    assert error.value.kind is ErrorKind.UNSUPPORTED
    assert error.value.param == "pipeline_parallel"
