"""A narrow KV cache is measured before it is used, and refused where it breaks the model."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.backend_driver import options
from helpers.random_model import make_spec, make_tensors, raw

from tidemill.backends import native, torch
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.models.quantization import to_float32
from tidemill.models.tensors import RawTensor
from tidemill.worker.kv_check import NARROW, TOKENS, check_kv

SPEC = make_spec(head_dim=16, q_bias=True, k_bias=True, v_bias=True)
BACKENDS = [native, torch]


def tensors(outlier: float, sharp: float = 8) -> dict[str, RawTensor]:
    """A model that attends sharply; one channel of its keys is as large as `outlier` says.

    Queries are zero in that channel and in the one that rope turns it into, so that the model is
    the same whatever it holds: only eight bits for a whole head have to cover it.
    """
    found = make_tensors(SPEC)
    for name, tensor in found.items():
        values = to_float32(tensor).copy()
        if name.endswith("attn.q.weight"):
            values *= sharp
            values[7::16] = values[15::16] = 0
        elif name.endswith("attn.q.bias"):
            values[7::16] = values[15::16] = 0
        elif name.endswith("attn.k.bias"):
            values[7::16] += np.float32(outlier)
        else:
            continue
        found[name] = raw(values)
    return found


@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda m: m.__name__.rsplit(".", 1)[-1])
def test_a_model_that_bears_it(backend, narrow: str) -> None:  # type: ignore[no-untyped-def]
    loaded = backend.load(
        SPEC, tensors(0.0, sharp=8 if narrow == "int8" else 1), options(kv_dtype=narrow)
    )
    line = check_kv(loaded, "float32", narrow, 0)
    assert line.startswith(f"{narrow} KV cache: ") and "nats per token from a float32 one" in line
    assert 0 < float(line.split()[3]) < 0.1
    loaded.allocate_cache((4,))
    assert loaded.export_blocks(0, np.arange(1, dtype=np.int32)).kv_dtype == narrow
    loaded.close()


@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda m: m.__name__.rsplit(".", 1)[-1])
def test_a_model_that_breaks(backend, narrow: str) -> None:  # type: ignore[no-untyped-def]
    loaded = backend.load(SPEC, tensors(3000.0), options(kv_dtype=narrow))
    with pytest.raises(TidemillError) as caught:
        check_kv(loaded, "float32", narrow, 0)
    assert caught.value.kind is ErrorKind.CONFIG and caught.value.param == "kv_dtype"
    assert f"breaks with an {narrow} KV cache" in caught.value.message
    assert "use --kv-dtype float32" in caught.value.message
    # The same type is no difference at all: what was measured is the cache.
    assert check_kv(loaded, "float32", "float32", 0).startswith("float32 KV cache: 0 nats")
    loaded.close()


def test_a_context_shorter_than_the_text() -> None:
    loaded = native.load(SPEC, tensors(0.0), options(kv_dtype="int8", max_positions=20))
    assert TOKENS > 20 and "over 20 tokens" in check_kv(loaded, "float32", "int8", 0)
    loaded.close()
