"""Memory arithmetic and the machine's limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.random_model import make_spec, with_recurrence

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.needs import CacheNeeds, MemoryNeeds
from tidemill.worker.machine import available_memory, usable_cpus
from tidemill.worker.sizing import RESERVE_BYTES, check_weights_fit, plan_cache, reserve

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


def needs(**changes: int) -> MemoryNeeds:
    sizes = {"step": 2**20, "sequence": 2**20, "process": 2**20, **changes}
    return MemoryNeeds(
        backend="native", dtype="bfloat16", kv_dtype="bfloat16", files=8 * GIB,
        weights={"feed-forward": 8 * GIB}, caches=(CacheNeeds("full", 2, None, 1000),),
        block_tokens=32, context=100, **sizes,
    )  # fmt: skip


def test_a_model_larger_than_memory_names_the_numbers() -> None:
    with pytest.raises(TidemillError, match=r"8\.00 GiB.*0\.5 GiB.*8\.25 GiB") as caught:
        check_weights_fit(needs(), 33 * GIB // 4, "big")
    assert caught.value.kind is ErrorKind.RESOURCE
    check_weights_fit(needs(), 9 * GIB, "small")
    with pytest.raises(TidemillError, match=r"8\.00 GiB.*2\.0 GiB.*9\.00 GiB"):
        check_weights_fit(needs(step=2 * GIB), 9 * GIB, "a step larger than the usual reserve")


def test_what_a_step_takes_is_left_to_it() -> None:
    assert reserve(needs(), config()) == RESERVE_BYTES
    assert reserve(needs(sequence=2**24), config()) == 256 * 2**24 + 2 * 2**20
    plan = plan_cache(config(), SPEC, "bfloat16", 3 * GIB // 4, GIB // 2 + GIB // 8)
    used = plan.num_blocks * 32 * SPEC.kv_bytes_per_token("bfloat16")
    assert 0.55 * GIB / 8 < used <= 0.6 * GIB / 8


def test_a_cache_reserves_what_it_may_grow_to() -> None:
    per_block = 32 * SPEC.kv_bytes_per_token("float32")
    asked = {"kv_memory": 130 * per_block, "max_model_len": 320}
    assert plan_cache(config(**asked), SPEC, "float32", GIB).reserved_blocks == 130
    for most, blocks in ((10, 130), (500, 500), (10**6, 256 * 10)):
        plan = plan_cache(config(kv_reserve=most * per_block, **asked), SPEC, "float32", GIB)
        assert (plan.num_blocks, plan.reserved_blocks) == (130, blocks)


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
    assert (plan.max_num_seqs, plan.snapshots, plan.draft_states) == (8, 16, 32)
    assert plan.states == 2 * 8 + 16 + 32
    assert any(
        "8 sequences at once, 16 beginnings of prompts and 32 drafts" in note for note in plan.notes
    )
    plan = plan_cache(config(max_num_seqs=8, kv_memory=24 * state), spec, "float32", GIB)
    assert (plan.max_num_seqs, plan.snapshots, plan.draft_states) == (3, 6, 1)
    off = config(max_num_seqs=8, kv_memory=24 * state, prefix_caching=False)
    plan = plan_cache(off, spec, "float32", GIB)
    assert (plan.max_num_seqs, plan.snapshots, plan.states) == (6, 0, 13)
    plan = plan_cache(config(kv_memory=6 * state), spec, "float32", GIB)
    assert (plan.max_num_seqs, plan.snapshots, plan.draft_states) == (1, 1, 0)
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
        recurrent_drafts=plan.draft_states,
    )
    other = plan_cache(again, spec, "float32", GIB // 2)
    assert (other.num_blocks, other.states, other.max_num_seqs) == (
        plan.num_blocks, plan.states, plan.max_num_seqs
    )  # fmt: skip
