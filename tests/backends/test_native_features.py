"""What families differ in, bit for bit: chunks, batches and threads change no logit with experts,
caps, ALiBi, sinks, latents, layer norms, parallel blocks and recurrent mixers either."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, options
from helpers.random_model import MODELS, make_spec, make_tensors

from tidemill.backends import native, torch
from tidemill.models.alibi import slopes
from tidemill.models.spec import DecoderSpec, Latent, Mlp, Moe, Norm, QkNorm, Rope

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
        Moe(8, 3, Mlp(64, bias=True), scoring="sigmoid", e_score_correction_bias=True,
            groups=4, top_groups=2)
    ),
    "cap-alibi": _with(mixer={"softcap": 2.0, "slopes": slopes(6), "rope": None}),
    **{name: make(_BASE) for name, make in MODELS.items() if name != "plain"},
    "sinks-window": _with(mixer={"sinks": True, "window": 100, "clip": 0.7}),
    "latent": _with(
        Moe(8, 2, Mlp(64), scoring="sigmoid", e_score_correction_bias=True, groups=4, top_groups=2),
        mixer={"heads": 5, "kv_heads": 1, "head_dim": 96, "rope": Rope(10000.0, 32),
               "latent": Latent(rank=64, rope=32, nope=32, value=64, q_rank=64)},
    ),
    "chunks": _with(
        Moe(8, 2, Mlp(64), scoring="sigmoid_chosen", normalize=False, scale_inputs=True,
            shared=Mlp(96)),
        mixer={"window": 100, "chunked": True, "attention_temperature": (0.3, 64.0, 1),
               "qk_norm": QkNorm(Norm(weight=False), after_rope=True)},
    ),
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
    ("Q4_0", "bfloat16", "int4"),
    ("INT8", "bfloat16", "bfloat16"),
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


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("backend", [native, torch], ids=["native", "torch"])
def test_latents_move_between_caches(backend: Any, kv_dtype: str) -> None:
    """K and V of unlike widths, exported and imported."""
    spec = SPECS["latent"]
    tensors = make_tensors(spec)
    text = np.random.default_rng(1).integers(0, spec.vocab_size, 40).tolist()
    source, target = (
        BackendDriver(backend.load(spec, tensors, options(kv_dtype=kv_dtype)), num_blocks=8)
        for _ in range(2)
    )
    a, b = source.sequence(text), target.sequence(text)
    source.run([(a, 39)])
    b.computed = 39
    inputs = target.inputs([(b, 1)])
    data = source.backend.export_blocks(0, np.array(a.tables[0], np.int32))
    assert data.keys[0].shape == (3, 16, 1, 96) and data.values[0].shape == (3, 16, 1, 64)
    target.backend.import_blocks(0, np.array(b.tables[0], np.int32), data)
    expected = source.run([(a, 1)]).logits
    got = target.backend.submit(inputs).result().logits
    assert np.array_equal(got, expected)
    for used in (source, target):
        used.backend.close()
