"""Which layers are left out: those without use are found, those with use are kept."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from helpers.backend_driver import options
from helpers.random_model import make_spec, make_tensors

from tidemill.backends.base import Backend
from tidemill.backends.native import load
from tidemill.models.quantization import to_float32
from tidemill.models.tensors import RawTensor, layer_name
from tidemill.worker.speculate import layers
from tidemill.worker.speculate.layers import Found, search, speedup

IDLE = (1, 2, 4)


def backend_with_idle_layers(idle: tuple[int, ...], backend: str = "native") -> Backend:
    """A random model of 6 layers of which some change nothing, with confident answers."""
    spec = make_spec(vocab=61, hidden=64, heads=4, kv_heads=2, head_dim=16, layers=6)
    tensors = dict(make_tensors(spec, "F32"))
    for layer in range(6):
        for name in ("attn.o.weight", "mlp.down.weight"):
            full = layer_name(layer, name)
            scale = 0.0 if layer in idle else 4.0
            weights = to_float32(tensors[full]) * scale
            tensors[full] = RawTensor(
                "F32", weights.shape, weights.astype(np.float32).view(np.uint8)
            )
    made = load(spec, tensors, options())
    made.allocate_cache((40,))
    return made


def test_layers_that_do_nothing_are_found() -> None:
    backend = backend_with_idle_layers(IDLE)
    found = search(backend, [3, 4])
    backend.close()
    assert set(IDLE) <= set(found.layers)
    assert found.agreement > 0.5 and found.speedup > layers.WORTH
    assert msgspec.json.decode(msgspec.json.encode(found), type=Found) == found
    assert "3 of 6 layers" in found.told(6) or len(found.layers) > 3


def test_a_search_ends_in_time() -> None:
    backend = backend_with_idle_layers(IDLE)
    times = iter([0.0, 1.0, layers.MAX_SECONDS + 1])
    assert len(search(backend, [3], lambda: next(times)).layers) <= 1
    backend.close()


def test_nothing_is_left_out_where_it_is_not_worth_it() -> None:
    assert speedup(0.9, 0.9) == 1.0 and speedup(0.0, 0.1) == 1.0
    assert speedup(0.9, 0.3) > 1.3
    assert speedup(1.0, 0.0) == pytest.approx((layers.LONGEST + 1) / layers.VERIFYING)
    assert "none of 6" in Found().told(6)
