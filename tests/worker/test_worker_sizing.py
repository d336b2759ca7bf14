"""Memory arithmetic and the machine's limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.random_model import make_spec, make_tensors, with_recurrence

from tidemill.backends.base import BackendOptions
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.models.tensors import TensorHeader
from tidemill.worker.machine import available_memory, usable_cpus
from tidemill.worker.sizing import check_weights_fit, plan_cache, weight_bytes

GIB = 2**30
SPEC = make_spec(layers=4)


def config(**changes: object) -> EngineConfig:
    return EngineConfig(model="m", served_name="m", **changes)  # type: ignore[arg-type]


def test_a_small_model_takes_no_more_than_it_can_use() -> None:
    few = config(max_num_seqs=4, max_model_len=320)
    plan = plan_cache(few, SPEC, "bfloat16", 64 * GIB)
    assert plan.num_blocks == 4 * 10 and plan.max_model_len == 320
    assert "4 sequences of 320" in plan.notes[0]
    plan = plan_cache(config(max_num_seqs=10), SPEC, "bfloat16", 64 * GIB)
    assert plan.num_blocks == 10 * 64 and "10 sequences of 2048" in plan.notes[0]
    plan = plan_cache(config(max_num_seqs=2), SPEC, "bfloat16", 64 * GIB)
    assert plan.num_blocks == 2 * 128
    plan = plan_cache(config(max_num_seqs=10, kv_memory=64 * GIB), SPEC, "bfloat16", GIB)
    assert plan.num_blocks == 10 * 128


def test_a_share_of_what_is_free() -> None:
    plan = plan_cache(config(), SPEC, "bfloat16", 3 * GIB // 4)
    used = plan.num_blocks * 32 * SPEC.kv_bytes_per_token("bfloat16")
    assert 0.55 * GIB / 4 < used <= 0.6 * GIB / 4


def test_the_context_is_bounded_by_the_cache_unless_it_was_asked_for() -> None:
    per_block = 32 * SPEC.kv_bytes_per_token("float32")
    tight = {"kv_memory": 5 * per_block + 1}
    plan = plan_cache(config(**tight), SPEC, "float32", GIB)
    assert (plan.num_blocks, plan.max_model_len) == (5, 160)
    assert any("4096" in note and "160" in note for note in plan.notes)
    with pytest.raises(TidemillError, match=r"160 tokens.*200") as caught:
        plan_cache(config(max_model_len=200, **tight), SPEC, "float32", GIB)
    assert caught.value.kind is ErrorKind.RESOURCE
    with pytest.raises(TidemillError, match=r"5000.*4096") as caught:
        plan_cache(config(max_model_len=5000), SPEC, "float32", GIB)
    assert caught.value.kind is ErrorKind.CONFIG
    with pytest.raises(TidemillError, match=r"one KV block.*raise --kv-memory") as caught:
        plan_cache(config(kv_memory=100), SPEC, "float32", GIB)
    assert caught.value.kind is ErrorKind.RESOURCE


def test_a_model_larger_than_memory_names_both_numbers() -> None:
    with pytest.raises(TidemillError, match=r"8\.00 GiB.*2\.00 GiB") as caught:
        check_weights_fit(8 * GIB, 2 * GIB, "big")
    assert caught.value.kind is ErrorKind.RESOURCE
    check_weights_fit(GIB, 2 * GIB, "small")


@pytest.mark.parametrize(
    ("stored", "quantize"),
    [
        *(
            (kind, quantize)
            for kind in ("F32", "BF16", "F16")
            for quantize in ("none", "q8_0", "q4_0", "int8")
        ),
        ("Q8_0", "none"),
        ("Q4_0", "none"),
    ],
)
def test_weight_bytes_are_near_what_the_native_backend_takes(stored: str, quantize: str) -> None:
    from tidemill.backends.native import load

    spec = make_spec(hidden=256, heads=4, kv_heads=2, head_dim=64, intermediate=512, vocab=1024)
    tensors = make_tensors(spec, stored)
    for dtype in ("float32", "bfloat16"):
        headers = {n: TensorHeader(t.dtype, t.shape, t.nbytes) for n, t in tensors.items()}
        guess = weight_bytes(headers, dtype, quantize, "native")
        backend = load(spec, tensors, BackendOptions(dtype, quantize, dtype, 32, 128, 1))
        took = backend.memory().weight_bytes
        backend.close()
        assert 0.85 * took < guess < 1.15 * took, (dtype, guess, took)


def test_cgroup_limits(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path) >= 1
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert usable_cpus(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cpus(tmp_path) >= 1
    free = available_memory(tmp_path)
    assert free > 0
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 50000\n")
    assert available_memory(tmp_path) == 650000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) > 650000


def test_recurrent_states_take_their_share() -> None:
    spec = with_recurrence(make_spec(layers=1))
    state = spec.state_bytes
    free = config(max_num_seqs=8, max_model_len=320, kv_memory=GIB)
    plan = plan_cache(free, spec, "float32", GIB)
    assert (plan.max_num_seqs, plan.snapshots, plan.states) == (8, 16, 32)
    assert any("8 sequences at once and 16 beginnings" in note for note in plan.notes)
    plan = plan_cache(config(max_num_seqs=8, kv_memory=24 * state), spec, "float32", GIB)
    assert (plan.max_num_seqs, plan.snapshots) == (3, 6)
    off = config(max_num_seqs=8, kv_memory=24 * state, prefix_caching=False)
    plan = plan_cache(off, spec, "float32", GIB)
    assert (plan.max_num_seqs, plan.snapshots, plan.states) == (6, 0, 12)
    plan = plan_cache(config(kv_memory=6 * state), spec, "float32", GIB)
    assert (plan.max_num_seqs, plan.snapshots) == (1, 1)
    assert plan_cache(config(), SPEC, "float32", GIB).states == 2 * 256


@pytest.mark.parametrize("memory", [None, 24, 6, 400])
def test_an_engine_in_anothers_place_chooses_the_same(memory: int | None) -> None:
    spec = with_recurrence(make_spec(layers=1))
    kv_memory = None if memory is None else memory * spec.state_bytes
    first = config(kv_memory=kv_memory, max_num_seqs=40)
    plan = plan_cache(first, spec, "float32", GIB)
    per_token = spec.kv_bytes_per_token("float32")
    again = config(
        kv_memory=plan.num_blocks * first.block_size * per_token,
        max_num_seqs=40,
        recurrent_sequences=plan.max_num_seqs,
        recurrent_snapshots=plan.snapshots,
    )
    other = plan_cache(again, spec, "float32", GIB // 2)
    assert (other.num_blocks, other.states, other.max_num_seqs) == (
        plan.num_blocks, plan.states, plan.max_num_seqs
    )  # fmt: skip
