"""What a model needs, computed before it is loaded, beside what it takes when it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.random_model import MODELS, make_spec, make_tensors
from helpers.tiny_checkpoints import make_checkpoint

from tidemill.backends import native
from tidemill.backends.base import BackendOptions
from tidemill.contract.config import EngineConfig
from tidemill.loading.locate import bundled_models
from tidemill.models.tensors import TensorHeader
from tidemill.worker.load import load_worker
from tidemill.worker.needs import memory_needs


def config(model: str | Path, **changes: object) -> EngineConfig:
    settings: dict[str, object] = {"max_model_len": 256, "threads": 1, **changes}
    return EngineConfig(
        model=str(model), served_name="m", packed_cache="off", kv_memory=2**24, **settings
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("model", sorted(MODELS))
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("stored", "quantize", "dtype"),
    [
        ("F32", "none", "float32"),
        ("F32", "none", "bfloat16"),
        ("BF16", "none", "bfloat16"),
        ("BF16", "q8_0", "bfloat16"),
        ("BF16", "q4_0", "float32"),
        ("F16", "int8", "bfloat16"),
        ("Q8_0", "none", "bfloat16"),
        ("Q4_0", "none", "float32"),
    ],
)
def test_weights_are_exact(model: str, tied: bool, stored: str, quantize: str, dtype: str) -> None:
    spec = make_spec(
        hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=131, tied=tied
    )
    spec = MODELS[model](spec)
    tensors = make_tensors(spec, stored)
    options = BackendOptions(dtype, quantize, dtype, 32, 128, 1)
    headers = {n: TensorHeader(t.dtype, t.shape, t.nbytes) for n, t in tensors.items()}
    held = native.held_tensors(spec, headers, options)
    backend = native.load(spec, tensors, options)
    took, mapped = backend.memory().weight_bytes, backend.memory().mapped_bytes
    backend.close()
    # A norm without a weight has ones in memory that no tensor has.
    assert 0 <= took - sum(tensor.nbytes for tensor in held.values()) <= 4096
    assert sum(tensor.nbytes for tensor in held.values() if tensor.in_file) == mapped


@pytest.mark.parametrize("name", ["qwen3-q", "llama", "qwen2-tied-windows", "mistral-window"])
@pytest.mark.parametrize("quantize", ["none", "q8_0"])
def test_what_is_said_before_is_what_an_engine_says_of_itself(
    name: str, quantize: str, tmp_path: Path
) -> None:
    asked = config(make_checkpoint(name, tmp_path / "model"), quantize=quantize)
    needs = memory_needs(asked)
    worker = load_worker(asked)
    info = worker.info
    worker.runner.close()
    assert 0 <= info.weight_bytes - needs.weight_bytes <= 4096
    assert needs.token_bytes == info.kv_bytes_per_token
    assert (needs.dtype, needs.kv_dtype) == (info.dtype, info.kv_dtype)
    assert needs.context == info.max_model_len == 256
    assert needs.least_cache == 256 * needs.token_bytes + 2 * needs.state
    assert (needs.state > 0) == (info.state_bytes > 0)
    assert set(needs.weights) >= {"embedding", "attention", "feed-forward", "other"}
    assert [cache.kind for cache in needs.caches] == {
        "qwen2-tied-windows": ["full", "window"], "mistral-window": ["window"]
    }.get(name, ["full"])  # fmt: skip


def test_the_parts_add_up() -> None:
    needs = memory_needs(config(bundled_models()["brook"]))
    assert set(needs.weights) == {"embedding", "attention", "feed-forward", "other"}
    assert needs.files > sum(needs.weights.values()) / 2
    cache = 10 * 2**20
    parts = needs.weight_bytes + cache + needs.tables + needs.step + needs.process
    assert needs.total(cache, 3) == parts + 3 * needs.sequence
    assert needs.total() == needs.total(needs.least_cache, 16)
    assert needs.cache_of(1) == needs.cache_of(32) == needs.cache_of(33) / 2
    assert needs.cache_of(needs.context) == needs.least_cache
    longer = memory_needs(config(bundled_models()["brook"], max_model_len=512))
    assert longer.least_cache == 2 * needs.least_cache and longer.tables == 2 * needs.tables
    assert longer.step == needs.step and longer.weights == needs.weights
    smaller = memory_needs(config(bundled_models()["brook"], max_step_tokens=256))
    assert 2 * smaller.step == needs.step
    other = memory_needs(config(bundled_models()["brook"], kv_dtype="int8", quantize="q4_0"))
    assert other.token_bytes < 0.6 * needs.token_bytes
    assert other.weight_bytes < 0.5 * needs.weight_bytes


def test_other_backends_expand_every_weight() -> None:
    plain = memory_needs(config(bundled_models()["brook"]))
    wide = memory_needs(config(bundled_models()["brook"], backend="torch", dtype="float32"))
    assert 1.9 * plain.weight_bytes < wide.weight_bytes < 2.1 * plain.weight_bytes
    assert wide.process > plain.process


def test_a_draft_model_is_counted() -> None:
    brook = bundled_models()["brook"]
    asked = config(brook, speculate=f"draft={brook / 'draft'}")
    plain, needs = memory_needs(config(brook)), memory_needs(asked)
    alone = memory_needs(config(brook / "draft"))
    assert needs.weights == plain.weights | {"draft model": alone.weight_bytes}
    assert needs.token_bytes == plain.token_bytes + alone.token_bytes
    worker = load_worker(asked)
    info = worker.info
    worker.runner.close()
    assert 0 <= info.weight_bytes - needs.weight_bytes <= 8192
    assert info.kv_bytes_per_token == needs.token_bytes
    assert info.kv_bytes == pytest.approx(info.num_blocks * 32 * needs.token_bytes, rel=0.01)
    assert info.drafters == ("lookup", "draft") and info.speculation == "auto"


def test_an_eagle_head_is_counted() -> None:
    brook = bundled_models()["brook"]
    asked = config(brook, speculate=f"eagle={brook / 'eagle'}")
    plain, needs = memory_needs(config(brook)), memory_needs(asked)
    assert needs.weights.keys() - plain.weights.keys() == {"EAGLE head"}
    # fc, attention on twice the width, MLP, four norms, in float32; brook's output matrix scores.
    layer = 3 * 256**2 + (256 + 128 + 128) * 512 + 256**2 + 3 * 512 * 256
    assert needs.weights["EAGLE head"] == 4 * (layer + 4 * 256)
    assert needs.token_bytes == plain.token_bytes + 2 * 4 * 2 * 64
    worker = load_worker(asked)
    info = worker.info
    worker.runner.close()
    assert 0 <= info.weight_bytes - needs.weight_bytes <= 8192
    assert info.kv_bytes_per_token == needs.token_bytes
    assert info.kv_bytes == pytest.approx(info.num_blocks * 32 * needs.token_bytes, rel=0.01)


def test_medusa_heads_are_counted() -> None:
    brook = bundled_models()["brook"]
    asked = config(brook, speculate=f"medusa={brook / 'medusa'}")
    plain, needs = memory_needs(config(brook)), memory_needs(asked)
    assert needs.weights.keys() - plain.weights.keys() == {"Medusa heads"}
    # A map and a residual block of each of the 4 heads, in float32.
    assert needs.weights["Medusa heads"] == 4 * 4 * (2 * 256 * 256 + 256)
    worker = load_worker(asked)
    info = worker.info
    worker.runner.close()
    assert 0 <= info.weight_bytes - needs.weight_bytes <= 8192
