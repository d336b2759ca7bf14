"""A chunk of a prompt computed a few layers a step, beside streams: the bits of one step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, DrivenSequence, options
from helpers.random_model import make_spec, make_tensors, with_windows

from tidemill.backends import native
from tidemill.backends.base import LOGITS_NONE, LayerSlice, StepInputs
from tidemill.base.errors import TidemillError
from tidemill.models.spec import DecoderSpec, LayerInputs, Mlp, Moe

LAYERS = 5
_SPEC = with_windows(
    make_spec(hidden=96, heads=6, kv_heads=2, head_dim=32, intermediate=128, layers=LAYERS),
    (24, None, 24, None, None),
)
_DENSE = _SPEC.layers[0].mlp
_SEPARATE_NORMS = Moe(
    4, 2, Mlp(64), shared=Mlp(96), separate_norms=True, router_scale=0.1, expert_scales=True
)
SPECS = {
    "sequential": _SPEC,
    "inputs, shared KV, experts apart": replace(
        _SPEC,
        layer_inputs=LayerInputs(32, _SPEC.vocab_size, "gelu_tanh", 2.0, 0.1, 0.7),
        layers=tuple(
            replace(
                layer,
                mixer=replace(layer.mixer, kv_layer=kv, v_norm=True, v_from_k=kv is None),
                mlp=mlp,
                post_norm=True,
                scaled=True,
            )
            for layer, kv, mlp in zip(
                _SPEC.layers,
                (None, None, 0, 1, None),
                (_DENSE, _SEPARATE_NORMS, _DENSE, _SEPARATE_NORMS, _DENSE),
                strict=True,
            )
        ),
    ),
    "parallel": replace(
        _SPEC, layers=tuple(replace(layer, parallel=True) for layer in _SPEC.layers)
    ),
}
PROMPT = np.random.default_rng(3).integers(0, _SPEC.vocab_size, 150).tolist()
CHUNKS = (70, 33, 40)  # and the last 7
CUTS = ((0, LAYERS), (0, 1, LAYERS), (0, 2, 3, LAYERS), (0, 1, 2, 3, 4, LAYERS))


def _driver(spec: DecoderSpec, stored: str, kv_dtype: str) -> BackendDriver:
    given = options(
        dtype="float32" if stored == "F32" else "bfloat16",
        kv_dtype=kv_dtype, threads=2, max_positions=256,
    )  # fmt: skip
    return BackendDriver(native.load(spec, make_tensors(spec, stored), given), num_blocks=60)


def _sliced(inputs: StepInputs, begin: int, end: int, sequence: int = 9) -> StepInputs:
    inputs.slice = LayerSlice(sequence, begin, end)
    if end < LAYERS:
        inputs.logits[-1] = LOGITS_NONE
    return inputs


def _logits(driver: BackendDriver, inputs: StepInputs) -> np.ndarray:
    outputs = driver.backend.submit(inputs).result()
    assert outputs.logits is not None
    return outputs.logits


@pytest.mark.parametrize(
    "kind", [("F32", "float32"), ("Q8_0", "int8"), ("Q8_0", "int4"), ("BF16", "bfloat16")]
)
@pytest.mark.parametrize("name", sorted(SPECS))
def test_layers_over_several_steps_give_the_same_bits(name: str, kind: tuple[str, str]) -> None:
    driver = _driver(SPECS[name], *kind)
    whole, long = driver.sequence(PROMPT), driver.sequence(PROMPT)
    expected = [driver.run([(whole, count)]).logits for count in (*CHUNKS, 7)]
    stream = PROMPT[40:100]
    alone = driver.all_logits(stream, 1)
    short = driver.sequence(stream)
    for count, cuts, wanted in zip((*CHUNKS, 7), CUTS, expected, strict=True):
        start = long.computed
        for begin, end in pairwise(cuts):
            long.computed = start
            position = short.computed
            driver.all_logits(PROMPT[::-1])  # what a step leaves in buffers is of other tokens
            got = _logits(driver, _sliced(driver.inputs([(short, 1), (long, count)]), begin, end))
            assert np.array_equal(got[0].view(np.uint32), alone[position].view(np.uint32))
            if end == LAYERS:
                assert wanted is not None
                assert np.array_equal(got[1].view(np.uint32), wanted[0].view(np.uint32)), cuts
    driver.backend.close()


def test_a_slice_may_be_alone_in_its_step_and_come_again() -> None:
    driver = _driver(_SPEC, "F32", "float32")
    whole, long = driver.sequence(PROMPT), driver.sequence(PROMPT)
    expected = driver.run([(whole, 60)]).logits
    got = None
    for begin, end in ((0, 2), (0, 2), (2, 4), (2, 3), (2, 4), (4, 5), (4, 5)):
        long.computed = 0
        handle = driver.backend.submit(_sliced(driver.inputs([(long, 60)]), begin, end))
        got = handle.result().logits
    assert expected is not None and got is not None
    assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))
    driver.backend.close()


@pytest.mark.parametrize(
    ("begin", "end", "sequence", "count", "message"),
    [
        (1, 3, 9, 60, "no step left the row's input of layer 1"),
        (2, 3, 8, 60, "no step left"),
        (2, 3, 9, 59, "no step left"),
        (3, 3, 9, 60, "some of the last row's 5 layers"),
        (2, 6, 9, 60, "some of the last row's 5 layers"),
    ],
)
def test_what_does_not_go_on_is_refused(
    begin: int, end: int, sequence: int, count: int, message: str
) -> None:
    driver = _driver(_SPEC, "F32", "float32")
    long: DrivenSequence = driver.sequence(PROMPT)
    driver.backend.submit(_sliced(driver.inputs([(long, 60)]), 0, 2)).result()
    long.computed = 0
    with pytest.raises(TidemillError, match=message):
        driver.backend.submit(
            _sliced(driver.inputs([(long, count)]), begin, end, sequence)
        ).result()
    driver.backend.close()


def test_a_row_with_layers_left_has_no_logits() -> None:
    driver = _driver(_SPEC, "F32", "float32")
    inputs = driver.inputs([(driver.sequence(PROMPT), 20)])
    inputs.slice = LayerSlice(1, 0, 2)
    with pytest.raises(TidemillError, match="only after its last layer"):
        driver.backend.submit(inputs)
    driver.backend.close()
