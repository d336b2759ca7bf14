"""Blocks go down to tiers and come back under random timing: the tokens are a quiet run's.

The backend's tokens depend on what is read through the block tables. The test says when a block is
moved, lets blocks be handed out while they are copied, damages what lies on disk, and ends engines.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from helpers.drive import Machine, request
from helpers.fake_backend import expected_tokens
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tidemill.contract.moves import Tier

VOCAB = 5
CONVERSATIONS = [[1, 2, 0, 4, 1] * 6, [2, 2, 1] * 9, [1, 2, 0, 4, 1] * 3 + [4] * 14]


def answer_of(machine: Machine, name: str, prompt: list[int], count: int) -> list[int]:
    machine.submit(request(name, prompt, count))
    machine.run()
    return machine.tokens(name)


class TieredMachine(RuleBasedStateMachine):
    """Random requests, moves, damage, failures and restarts."""

    @initialize(
        depth=st.sampled_from([1, 2]),
        groups=st.sampled_from([1, 2]),
        blocks=st.integers(10, 24),
        budget=st.sampled_from([3, 8, 64]),
        tiers=st.sampled_from(["ram", "disk", "both"]),
        ram=st.integers(1, 12),
        records=st.sampled_from([4, 1000]),
        snapshots=st.sampled_from([0, 0, 1, 3]),
    )
    def build(
        self, depth: int, groups: int, blocks: int, budget: int, tiers: str, ram: int, records: int,
        snapshots: int,
    ) -> None:  # fmt: skip
        self.folder = Path(tempfile.mkdtemp(prefix="tiers-"))
        self.options = {
            "depth": depth, "groups": groups, "num_blocks": blocks, "block_size": 4,
            "max_step_tokens": budget, "max_model_len": 40, "vocab": VOCAB,
            "ram": 0 if tiers == "disk" else ram,
            "disk": None if tiers == "ram" else self.folder,
            "disk_limit": records * 4096, "snapshots": snapshots,
        }  # fmt: skip
        self.count = 0
        self.start()

    def start(self) -> None:
        self.machine = Machine(**self.options)  # type: ignore[arg-type]
        self.asked: dict[str, tuple[list[int], int]] = {}

    @rule(
        which=st.integers(0, 2), turn=st.integers(1, 30), count=st.integers(1, 9),
        salt=st.sampled_from(["", "", "other"]),
    )  # fmt: skip
    def ask(self, which: int, turn: int, count: int, salt: str) -> None:
        name = f"r{self.count}"
        self.count += 1
        prompt = CONVERSATIONS[which][:turn]
        self.asked[name] = prompt, count
        self.machine.submit(request(name, prompt, count, salt=salt))

    @rule(steps=st.integers(1, 6))
    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self.machine.step()

    @rule()
    def launch(self) -> None:
        self.machine.launch()

    @rule(blocks=st.integers(1, 12))
    def move(self, blocks: int) -> None:
        for _ in range(blocks):
            assert self.machine.mover is not None
            self.machine.mover.work()

    @rule()
    def move_while_steps_run(self) -> None:
        """A block is copied; its memory is handed out and written before the copy is done."""
        machine, backend = self.machine, self.machine.backend

        def interrupt() -> None:
            backend.on_read = lambda: None
            machine.step()
            machine.step()

        backend.on_read = interrupt
        assert machine.mover is not None
        machine.mover.work()
        backend.on_read = lambda: None

    @rule(pick=st.integers(0, 50))
    def cancel(self, pick: int) -> None:
        if self.asked:
            name = sorted(self.asked)[pick % len(self.asked)]
            self.machine.take(self.machine.scheduler.cancel(name))
            del self.asked[name]

    @rule(pick=st.integers(0, 50), at=st.integers(0, 10_000), cut=st.booleans())
    def damage(self, pick: int, at: int, cut: bool) -> None:
        files = sorted(path for path in self.folder.glob("*/*/*") if path.stat().st_size)
        if files:
            path = files[pick % len(files)]
            if cut:
                os.truncate(path, at % path.stat().st_size)
                return
            data = bytearray(path.read_bytes())
            data[at % len(data)] ^= 4
            path.write_bytes(data)

    @rule()
    def forget(self) -> None:
        """The cache is emptied, as when an engine sleeps."""
        if not self.machine.scheduler.has_requests and not self.machine.in_flight:
            self.machine.memory.forget_all()
            self.machine.backend.empty_cache()

    @rule(blocks=st.integers(10, 24))
    def resize(self, blocks: int) -> None:
        if not self.machine.in_flight:
            self.machine.runner.copy(self.machine.memory.resize(blocks))

    @rule()
    def take_back(self) -> None:
        self.machine.backend.forget_steps()
        self.machine.roll_back()

    @rule()
    def kill(self) -> None:
        """The engine ends in the middle of everything; the next one begins with the folder."""
        self.check_answers()
        self.start()

    def check_answers(self) -> None:
        for name, (prompt, count) in self.asked.items():
            box = self.machine.collected.get((name, 0))
            tokens = [] if box is None else box.tokens
            assert expected_tokens(prompt, count, VOCAB)[: len(tokens)] == tokens

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        try:
            self.machine.run(4000)
            assert self.machine.memory.num_used == 0
            self.check_answers()
            assert all(self.machine.collected[name, 0].terminal for name in self.asked)
        finally:
            shutil.rmtree(self.folder)


TestTiers = TieredMachine.TestCase
TestTiers.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_what_was_evicted_comes_back_from_ram() -> None:
    machine = Machine(num_blocks=12, ram=64)
    prompts = [[i, *range(30)] for i in range(4)]
    first = [answer_of(machine, f"a{i}", prompt, 3) for i, prompt in enumerate(prompts)]
    again = [answer_of(machine, f"b{i}", prompt, 3) for i, prompt in enumerate(prompts)]
    assert first == again
    stats = machine.scheduler.stats()
    assert [one.tier for one in stats.tiers] == [Tier.RAM] and stats.tiers[0].tokens > 60
    assert machine.collected["b0", 0].outputs[0].cached_tokens == 28


def test_a_prefix_survives_its_engine_and_damage_is_counted(tmp_path: Path) -> None:
    prompt = list(range(40))
    want = answer_of(Machine(disk=tmp_path), "a", prompt, 4)
    files = sorted(path for path in tmp_path.glob("*/*/*") if path.is_file())
    assert len(files) == 10  # the 10 full blocks of 43 tokens that were computed

    machine = Machine(disk=tmp_path)
    assert answer_of(machine, "b", prompt, 4) == want
    assert machine.collected["b", 0].outputs[0].cached_tokens == 36

    data = bytearray(files[0].read_bytes())
    data[-1] ^= 1
    files[0].write_bytes(data)
    machine = Machine(disk=tmp_path)
    assert answer_of(machine, "c", prompt, 4) == want
    [stats] = machine.scheduler.stats().tiers
    assert stats.figures.damaged_blocks == 1
    assert machine.collected["c", 0].outputs[0].cached_tokens < 36


def test_what_the_last_step_filled_is_saved_without_another_one(tmp_path: Path) -> None:
    machine = Machine(disk=tmp_path)
    machine.submit(request("a", range(20), 5))
    while machine.in_flight or machine.launch():
        machine.land()
    assert machine.mover is not None
    while machine.mover.work():
        pass
    assert len([path for path in tmp_path.glob("*/*/*") if path.is_file()]) == 24 // 4


@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_the_state_of_a_recurrent_model_comes_back(tmp_path: Path, tier: str) -> None:
    """The device keeps two states; those of other prompts come back with their blocks, or alone."""
    below = {"ram": 200} if tier == "ram" else {"disk": tmp_path}
    machine = Machine(num_blocks=40, snapshots=2, **below)  # type: ignore[arg-type]
    prompts = [[i, *range(30)] for i in range(4)]
    first = [answer_of(machine, f"a{i}", prompt, 3) for i, prompt in enumerate(prompts)]
    again = [answer_of(machine, f"b{i}", prompt, 3) for i, prompt in enumerate(prompts)]
    assert first == again
    cached = [machine.collected[f"b{i}", 0].outputs[0].cached_tokens for i in range(4)]
    assert cached == [28] * 4
    if tier == "disk":
        machine = Machine(snapshots=1, disk=tmp_path)
        turn = prompts[0] + first[0] + [7]
        assert answer_of(machine, "c", turn, 3) == expected_tokens(turn, 3, 97)
        assert machine.collected["c", 0].outputs[0].cached_tokens == 32


def test_a_damaged_state_is_computed_again(tmp_path: Path) -> None:
    prompt = list(range(22))
    want = answer_of(Machine(disk=tmp_path, snapshots=2), "a", prompt, 2)
    paths = sorted(tmp_path.glob("*/*/*"), key=lambda path: path.stat().st_mtime_ns)
    for path in paths:
        data = bytearray(path.read_bytes())
        if b"recurrent state" in data:
            data[-1] ^= 1
            path.write_bytes(data)
            break
    machine = Machine(disk=tmp_path, snapshots=2)
    assert answer_of(machine, "b", prompt, 2) == want
    [stats] = machine.scheduler.stats().tiers
    assert stats.figures.damaged_blocks == 1
    assert machine.collected["b", 0].outputs[0].cached_tokens == 0


def swap(*, snapshots: int = 0, dear: bool = False, **below: int) -> Machine:
    """Three streams that together take more than the cache: one is preempted, and others take its
    blocks before it is admitted again."""
    machine = Machine(num_blocks=24, snapshots=snapshots, max_num_seqs=3, **below)
    machine.backend.cost = lambda inputs: (1e-9 if dear else 1.0) * len(inputs.token_ids)
    prompts = {f"r{i}": [i, *range(12)] for i in range(3)}
    machine.submit(*(request(name, prompt, 40, explain=True) for name, prompt in prompts.items()))
    while machine.step():  # blocks move beside the steps
        for _ in range(8):
            if machine.mover is not None:
                machine.mover.work()
    machine.run()
    for name, prompt in prompts.items():
        assert machine.tokens(name) == expected_tokens(prompt, 40, 97)
    assert machine.scheduler.stats().preemptions
    return machine


@pytest.mark.parametrize("snapshots", [0, 4])
def test_a_preempted_stream_is_swapped(snapshots: int) -> None:
    machine = swap(snapshots=snapshots, ram=200)
    stats = machine.scheduler.stats()
    assert stats.resumed_brought_tokens > 0
    if not snapshots:  # with states, the last that was kept decides
        assert stats.resumed_computed_tokens < stats.resumed_brought_tokens
    last = [machine.collected[f"r{i}", 0].terminal[0].history for i in range(3)]
    found = [one.brought for history in last if history is not None for one in history.preemptions]
    assert sum(found) == stats.resumed_brought_tokens


def test_it_is_computed_again_where_that_is_cheaper() -> None:
    for machine in (swap(), swap(ram=200, dear=True)):
        stats = machine.scheduler.stats()
        assert stats.resumed_brought_tokens == 0 and stats.resumed_computed_tokens > 0


def test_a_tenant_finds_nothing_of_another(tmp_path: Path) -> None:
    machine = Machine(disk=tmp_path)
    machine.submit(request("a", range(20), 2, salt="one"))
    machine.run()
    machine = Machine(disk=tmp_path)
    machine.submit(request("b", range(20), 2, salt="two"))
    machine.run()
    assert machine.collected["b", 0].outputs[0].cached_tokens == 0


def test_a_short_prompt_overtakes_one_that_waits_for_blocks(tmp_path: Path) -> None:
    answer_of(Machine(disk=tmp_path), "a", list(range(80)), 2)
    machine = Machine(disk=tmp_path)
    machine.submit(request("long", range(80), 2), request("short", range(50, 55), 2))
    while machine.step():
        pass
    assert machine.collected["short", 0].terminal and ("long", 0) not in machine.collected
    machine.run()
    assert machine.collected["long", 0].terminal


def test_a_cancelled_load_gives_its_blocks_back(tmp_path: Path) -> None:
    answer_of(Machine(disk=tmp_path), "a", list(range(80)), 2)
    machine = Machine(disk=tmp_path)
    machine.submit(request("b", range(80), 2))
    machine.step()
    assert machine.memory.num_used > 0 and machine.mover is not None
    machine.mover.work()
    machine.take(machine.scheduler.cancel("b"))
    machine.mover.work()
    assert machine.memory.num_used == 0
    assert machine.memory.num_cached == 1  # what had been brought is found


def test_what_is_quicker_to_compute_is_computed(tmp_path: Path) -> None:
    answer_of(Machine(disk=tmp_path), "a", list(range(80)), 2)
    machine = Machine(disk=tmp_path)
    machine.backend.cost = lambda inputs: 1e-9 * len(inputs.token_ids)
    for i in range(4):  # steps are measured
        answer_of(machine, f"w{i}", [90, i], 3)
    answer_of(machine, "b", list(range(80)), 2)
    assert machine.collected["b", 0].outputs[0].cached_tokens == 0


def test_a_load_waits_for_the_steps_that_may_write_to_its_blocks(tmp_path: Path) -> None:
    prompt = list(range(24))
    want = answer_of(Machine(disk=tmp_path), "a", prompt, 2)
    machine = Machine(disk=tmp_path, num_blocks=8, depth=2)
    machine.submit(request("ends", [90] * 20, 4))
    machine.launch()
    machine.take(machine.scheduler.cancel("ends"))  # its row is in flight, its blocks are free
    machine.submit(request("b", prompt, 2))
    assert not machine.launch() and machine.mover is not None
    while machine.mover.work():
        pass
    machine.land()
    machine.run()
    assert machine.tokens("b") == want
    assert machine.collected["b", 0].outputs[0].cached_tokens == 20


def test_a_copy_is_discarded_if_its_block_was_handed_out_meanwhile(tmp_path: Path) -> None:
    prompt, other = list(range(16)), [90] * 19
    machine = Machine(disk=tmp_path, num_blocks=5)
    machine.submit(request("a", prompt, 1))
    while machine.step():
        pass

    def hand_out() -> None:
        machine.backend.on_read = lambda: None
        machine.submit(request("b", other, 1))
        while machine.step():
            pass

    machine.backend.on_read = hand_out
    machine.run()
    [stats] = machine.scheduler.stats().tiers
    assert stats.lost_blocks >= 3
    after = Machine(disk=tmp_path)
    for name, tokens in (("c", prompt), ("d", other)):
        assert answer_of(after, name, tokens, 3) == expected_tokens(tokens, 3, 97)


def test_what_was_brought_before_the_cache_was_emptied_is_forgotten(tmp_path: Path) -> None:
    prompt = list(range(24))
    want = answer_of(Machine(disk=tmp_path), "a", prompt, 2)
    machine = Machine(disk=tmp_path)
    machine.submit(request("b", prompt, 2))
    machine.step()
    assert machine.mover is not None and machine.mover.work()
    machine.take(machine.scheduler.cancel("b"))
    machine.memory.forget_all()
    machine.backend.empty_cache()
    assert answer_of(machine, "c", prompt, 2) == want
