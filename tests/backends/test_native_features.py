"""What families differ in, bit for bit: chunks, batches and threads change no logit with experts,
caps, ALiBi, sinks, layer norms, parallel blocks and recurrent mixers either."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, options
from helpers.random_model import make_spec, make_tensors, with_recurrence

from tidemill.backends import native
from tidemill.models.alibi import slopes
from tidemill.models.spec import DecoderSpec, Mlp, Moe, Norm, QkNorm

_BASE = make_spec(hidden=96, heads=6, kv_heads=2, head_dim=32, intermediate=96, layers=2)
_COUNT = 530  # past a span of attention


def _with(
    mlp: Mlp | Moe | None = None, *, mixer: dict | None = None, **layer: object
) -> DecoderSpec:
    first = _BASE.layers[0]
    one = replace(first, mixer=replace(first.mixer, **(mixer or {})), mlp=mlp or first.mlp, **layer)
    return replace(_BASE, layers=(one, one))


SPECS = {
    "experts": _with(
        Moe(8, 2, Mlp(64), shared=Mlp(96), shared_gate=True), mixer={"qk_norm": QkNorm()}
    ),
    "sigmoid-groups": _with(
        Moe(8, 3, Mlp(64, bias=True), scoring="sigmoid", correction=True, groups=4, top_groups=2)
    ),
    "cap-alibi": _with(mixer={"softcap": 2.0, "slopes": slopes(6), "rope": None}),
    "recurrent": with_recurrence(_BASE),
    "sinks-window": _with(mixer={"sinks": True, "window": 100, "clip": 0.7}),
    "parallel": replace(
        _with(Mlp(96, "gelu", gated=False), parallel=True, post_norm=True),
        norm=Norm("layer", bias=True), residual_scale=0.5, logit_scale=0.3, logit_softcap=3.0,
        learned_positions=True, embed_norm=True, embed_scale=2.0, max_positions=600,
    ),
}  # fmt: skip
TYPES = [
    ("F32", "float32", "float32"),
    ("BF16", "bfloat16", "bfloat16"),
    ("Q8_0", "bfloat16", "int8"),
]


@pytest.mark.parametrize("kind", TYPES, ids="-".join)
@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_row_does_not_depend_on_its_company(name: str, kind: tuple[str, str, str]) -> None:
    stored, dtype, kv_dtype = kind
    spec = SPECS[name]
    tensors = make_tensors(spec, stored)

    def driver(threads: int) -> BackendDriver:
        given = options(dtype=dtype, kv_dtype=kv_dtype, threads=threads, max_positions=600)
        return BackendDriver(native.load(spec, tensors, given), num_blocks=160)

    text = np.random.default_rng(0).integers(0, spec.vocab_size, _COUNT).tolist()
    one, three = driver(1), driver(3)
    expected = one.all_logits(text, 1)
    assert np.isfinite(expected).all()
    for used, chunk in ((one, 33), (three, 257), (three, None)):
        got = used.all_logits(text, chunk)
        assert np.array_equal(got.view(np.uint32), expected.view(np.uint32)), chunk
    # The same last token beside four other sequences.
    rows = [three.sequence(text[: _COUNT - 100 * i]) for i in range(5)]
    for row in rows:
        three.run([(row, len(row.tokens) - 1)])
    together = three.run([(row, 1) for row in rows]).logits
    assert together is not None
    alone = np.stack([expected[len(row.tokens) - 1] for row in rows])
    assert np.array_equal(together.view(np.uint32), alone.view(np.uint32))
    for used in (one, three):
        used.backend.close()
