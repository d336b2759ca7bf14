"""Blocks go from one engine to another under random timing: the tokens are a quiet run's.

Both have a real scheduler, pool and mover, and a backend whose tokens depend on what is read
through the block tables. The test says when a block is copied for the other engine and when it
arrives, lets it be evicted before and between, and lets the way fail.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.drive import Machine, request
from helpers.fake_backend import expected_tokens
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tidemill.contract.moves import Name, PeerLoad, RemotePrefill, Tier
from tidemill.memory import tiers
from tidemill.sched.cost import Load

VOCAB = 5
CONVERSATIONS = [[1, 2, 0, 4, 1] * 6, [2, 2, 1] * 9, [1, 2, 0, 4, 1] * 3 + [4] * 14]


class Way:
    """Stands in for `transfer.peers.Peers`: the sender's real outbox, without sockets.

    Attributes:
        fetches: begun, in order.
        hurried: blocks arrive by themselves.
        computes: the sender computes prompts for the receiver.
    """

    def __init__(self, sender: Machine) -> None:
        self.sender = sender
        self.fetches: list[Fetch] = []
        self.hurried = False
        self.computes = False
        self.damaged = 0

    def loads(self) -> list[tuple[str, PeerLoad]]:
        return [("there", PeerLoad(chunk=0.001))] if self.computes else []

    def prefill(self, names: Sequence[Name], what: RemotePrefill) -> Fetch | None:
        """As `engine.prefills` does it."""
        assert what.address == "there"
        tokens = array("i", b"".join(name[2] for name in (*what.prompt.before, *names)))
        name = f"prefill{len(self.fetches)}"
        self.sender.submit(request(name, list(tokens), 1, salt=what.prompt.salt))
        self.fetches.append(Fetch(self, names, name))
        return self.fetches[-1]

    def has(self, digest: bytes) -> bool:
        assert self.sender.server is not None
        _, changes, _ = self.sender.server.announced.since(None)
        return (digest, True) in changes

    def fetch(self, names: Sequence[Name]) -> Fetch | None:
        count = next((i for i, n in enumerate(names) if not self.has(n[0])), len(names))
        if not count:
            return None
        self.fetches.append(Fetch(self, names[:count]))
        return self.fetches[-1]

    def close(self) -> None:
        """Nothing is open."""


class Fetch:
    """As `transfer.peers.Fetch`."""

    def __init__(self, way: Way, names: Sequence[Name], computed: str = "") -> None:
        self.names = names
        self.taken = 0
        self.waited = False
        self._computed = computed  # the request that computes them
        self.ended = False
        self._way = way
        self._arrived: list[bytearray] = []
        self._asked = False

    @property
    def ready(self) -> bool:
        if self._way.hurried:
            if self._computed and not self.ended:
                self._way.sender.run(4000)
            self.ask()
            self.arrive()
        return self.ended or self.complete or bool(self._arrived)

    @property
    def complete(self) -> bool:
        return self.taken == len(self.names)

    def ask(self) -> None:
        """The next block is asked for: its copy is a move of the sender."""
        server, mover = self._way.sender.server, self._way.sender.mover
        at = self.taken + len(self._arrived)
        if self.ended or self._asked or at == len(self.names):
            return
        assert server is not None and mover is not None
        if self._computed and not self._way.has(self.names[at][0]):
            box = self._way.sender.collected.get((self._computed, 0))
            self.ended = box is not None and bool(box.terminal) and not self._arrived
            return
        self._asked = True
        if server.outbox.expect([self.names[at][0]]):
            mover.bring((self.names[at],))

    def arrive(self) -> None:
        """What was copied of it arrives, or that there is no such block."""
        server, mover = self._way.sender.server, self._way.sender.mover
        if not self._asked or self.ended:
            return
        assert server is not None and mover is not None
        at = self.taken + len(self._arrived)
        data = None
        for _ in range(100):
            data = server.outbox.take(self.names[at][0], 0.0)
            if data is not None or not mover.work():
                break
        self._asked = False
        if data is None:
            self.ended = True
        else:
            self._arrived.append(bytearray(data))
            server.outbox.free(data)

    def take(self) -> bytearray | None:
        if not self._arrived:
            return None
        self.taken += 1
        return self._arrived.pop(0)

    def confirm(self) -> bool:
        return True

    def give_back(self) -> None:
        """Nothing is shared."""

    def cancel(self) -> None:
        self.ended = True
        self._arrived.clear()


class TwoEngines(RuleBasedStateMachine):
    """Random requests to both, moves, failures."""

    @initialize(
        depth=st.sampled_from([1, 2]), groups=st.sampled_from([1, 2]),
        blocks=st.tuples(st.integers(10, 24), st.integers(10, 24)),
        budget=st.sampled_from([3, 8, 64]), ram=st.sampled_from([0, 4]), computes=st.booleans(),
        snapshots=st.sampled_from([0, 0, 1, 3]),
    )  # fmt: skip
    def build(
        self, depth: int, groups: int, blocks: tuple[int, int], budget: int, ram: int,
        computes: bool, snapshots: int,
    ) -> None:  # fmt: skip
        options = {
            "depth": depth, "groups": groups, "block_size": 4, "max_step_tokens": budget,
            "max_model_len": 40, "vocab": VOCAB, "ram": ram,
            "snapshots": snapshots,
        }  # fmt: skip
        sender = Machine(num_blocks=blocks[0], serves=True, **options)  # type: ignore[arg-type]
        self.way = Way(sender)
        receiver = Machine(num_blocks=blocks[1], peers=self.way, **options)  # type: ignore[arg-type]
        self.machines = [sender, receiver]
        if computes:  # what it takes here and there is known, and much less there
            self.way.computes = True
            for _ in range(3):
                receiver.scheduler.cost.observe(Load(4, 10, 4), 1000.0)
        self.asked: dict[str, tuple[int, list[int], int]] = {}

    @rule(
        where=st.integers(0, 1), which=st.integers(0, 2), turn=st.integers(1, 30),
        count=st.integers(1, 9), salt=st.sampled_from(["", "", "other"]),
    )  # fmt: skip
    def ask(self, where: int, which: int, turn: int, count: int, salt: str) -> None:
        name = f"r{len(self.asked)}"
        prompt = CONVERSATIONS[which][:turn]
        self.asked[name] = where, prompt, count
        self.machines[where].submit(request(name, prompt, count, salt=salt))

    @rule(where=st.integers(0, 1), steps=st.integers(1, 6))
    def advance(self, where: int, steps: int) -> None:
        for _ in range(steps):
            self.machines[where].step()

    @rule(where=st.integers(0, 1))
    def launch(self, where: int) -> None:
        self.machines[where].launch()

    @rule(where=st.integers(0, 1), blocks=st.integers(1, 8))
    def move(self, where: int, blocks: int) -> None:
        mover = self.machines[where].mover
        assert mover is not None
        for _ in range(blocks):
            mover.work()

    @rule()
    def copy_while_steps_run(self) -> None:
        """A block is copied; its memory is handed out and written before the copy is done."""
        sender = self.machines[0]
        backend = sender.backend

        def interrupt() -> None:
            backend.on_read = lambda: None
            sender.step()
            sender.step()

        backend.on_read = interrupt
        assert sender.mover is not None
        sender.mover.work()
        backend.on_read = lambda: None

    @rule()
    def ask_for_blocks(self) -> None:
        for fetch in self.way.fetches:
            fetch.ask()

    @rule()
    def arrive(self) -> None:
        for fetch in self.way.fetches:
            fetch.arrive()

    @rule(pick=st.integers(0, 50))
    def fail(self, pick: int) -> None:
        if self.way.fetches:
            self.way.fetches[pick % len(self.way.fetches)].cancel()

    @rule(where=st.integers(0, 1))
    def forget(self, where: int) -> None:
        """The cache is emptied, as when an engine sleeps."""
        machine = self.machines[where]
        if not machine.scheduler.has_requests and not machine.in_flight:
            machine.memory.forget_all()
            machine.backend.empty_cache()

    @rule(where=st.integers(0, 1), blocks=st.integers(10, 24))
    def resize(self, where: int, blocks: int) -> None:
        machine = self.machines[where]
        if not machine.in_flight:
            machine.runner.copy(machine.memory.resize(blocks))

    @rule(where=st.integers(0, 1))
    def take_back(self, where: int) -> None:
        self.machines[where].backend.forget_steps()
        self.machines[where].roll_back()

    def teardown(self) -> None:
        if not hasattr(self, "machines"):
            return
        self.way.hurried = True
        for machine in self.machines:
            machine.run(4000)
            assert machine.memory.num_used == 0
        for name, (where, prompt, count) in self.asked.items():
            box = self.machines[where].collected[name, 0]
            assert box.terminal
            assert box.tokens == expected_tokens(prompt, count, VOCAB)


TestTwoEngines = TwoEngines.TestCase
TestTwoEngines.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_a_prompt_is_computed_by_another_engine() -> None:
    sender = Machine(serves=True)
    way = Way(sender)
    receiver = Machine(peers=way)
    way.hurried = way.computes = True
    for _ in range(3):
        receiver.scheduler.cost.observe(Load(4, 10, 4), 1000.0)
    prompt = list(range(42))
    receiver.submit(request("a", prompt, 4))
    receiver.run()
    assert receiver.tokens("a") == expected_tokens(prompt, 4, 97)
    assert receiver.collected["a", 0].outputs[0].cached_tokens == 40
    [stats] = receiver.scheduler.stats().tiers
    assert (stats.tokens, stats.prefills, stats.lost_prefills) == (40, 1, 0)
    assert sender.plans
    assert sum(len(plan.rows) for plan in receiver.plans) == 4


def test_what_an_engine_does_not_compute_to_its_end_is_computed_here() -> None:
    sender = Machine(serves=True, max_step_tokens=8)
    way = Way(sender)
    receiver = Machine(peers=way)
    way.computes = True
    for _ in range(3):
        receiver.scheduler.cost.observe(Load(4, 10, 4), 1000.0)
    prompt = list(range(42))
    receiver.submit(request("a", prompt, 4))
    assert receiver.mover is not None
    while not way.fetches:
        receiver.step()
        receiver.mover.work()
    [fetch] = way.fetches
    for _ in range(2):
        sender.step()  # some blocks are filled, and sent while others are not
    fetch.ask()
    fetch.arrive()
    receiver.mover.work()
    assert fetch.taken == 1
    way.computes, way.hurried = False, True
    fetch.cancel()  # the connection is lost: what is there now comes as from any peer
    receiver.run()
    assert receiver.tokens("a") == expected_tokens(prompt, 4, 97)
    assert receiver.collected["a", 0].outputs[0].cached_tokens == 16
    [stats] = receiver.scheduler.stats().tiers
    assert (stats.prefills, stats.lost_prefills) == (1, 1)


@pytest.mark.parametrize("snapshots", [0, 2])
def test_a_prefix_of_another_engine_is_brought(snapshots: int) -> None:
    sender = Machine(serves=True, snapshots=snapshots)
    way = Way(sender)
    receiver = Machine(peers=way, snapshots=snapshots)
    way.hurried = True
    prompt = list(range(40))
    for machine in (sender, receiver):
        machine.submit(request("a", prompt, 4))
        machine.run()
    assert receiver.tokens("a") == sender.tokens("a")
    assert receiver.collected["a", 0].outputs[0].cached_tokens == 36
    [stats] = receiver.scheduler.stats().tiers
    assert stats.tier is Tier.PEER and stats.tokens == 36
    assert sender.server is not None and sender.server.outbox.held_bytes == 0


def test_what_is_announced_is_there(tmp_path: Path) -> None:
    """Blocks leave the cache, and their records the disk."""
    machine = Machine(num_blocks=12, serves=True, disk=tmp_path, disk_limit=8 * 4096)
    for i in range(12):
        machine.submit(request(f"r{i}", [i, *range(30)], 3))
        machine.run()
    assert machine.server is not None and machine.mover is not None
    _, changes, _ = machine.server.announced.since(None)
    assert changes
    for digest, _ in changes:
        assert machine.memory.has(digest) or machine.mover.tier_of(digest) is Tier.DISK


def _slow(monkeypatch: pytest.MonkeyPatch, computes: bool) -> tuple[Machine, Machine, Way]:
    """A receiver that believes that bringing is slower than computing: it is not."""
    monkeypatch.setitem(tiers.FIRST_BANDWIDTH, Tier.PEER, 1.0)
    sender = Machine(serves=True, num_blocks=400)
    way = Way(sender)
    receiver = Machine(peers=way, num_blocks=400)
    way.hurried, way.computes = True, computes
    for _ in range(40):
        receiver.scheduler.cost.observe(Load(4, 10, 4), 0.1)
    return sender, receiver, way


@pytest.mark.parametrize("computes", [False, True])
def test_a_slow_way_is_tried_again_now_and_then(
    computes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver, way = _slow(monkeypatch, computes)
    cached = []
    for turn in range(1, 16):
        receiver.now = turn * (tiers.EXPLORE_SECONDS + 1)
        for which in range(2):
            name, prompt = f"{turn} {which}", [2 * turn + which] * 40
            if not computes:
                sender.submit(request(name, prompt, 1))
                sender.run()
            receiver.submit(request(name, prompt, 4))
            receiver.run()
            assert receiver.tokens(name) == expected_tokens(prompt, 4, 97)
            cached.append(receiver.collected[name, 0].outputs[0].cached_tokens)
        if cached[-1] == 36:
            break
        assert len(way.fetches) == turn  # the first of two prompts, with some blocks
        assert all(len(fetch.names) <= tiers.PROBE_BLOCKS for fetch in way.fetches)
    assert cached[0] == 0 and cached[-1] == 36
    [stats] = receiver.scheduler.stats().tiers
    assert stats.tokens == sum(cached)


def _asked_for(sender: Machine, receiver: Machine, way: Way, prompt: list[int]) -> Fetch:
    """The receiver waits for a prompt's blocks, and the first has been asked for."""
    sender.submit(request("a", prompt, 4))
    sender.run()
    receiver.submit(request("a", prompt, 4))
    while not way.fetches:
        receiver.step()
        assert receiver.mover is not None
        receiver.mover.work()
    [fetch] = way.fetches
    fetch.ask()
    return fetch


def _evict_all(sender: Machine) -> None:
    for i in range(6):
        sender.submit(request(f"other{i}", [50 + i] * 40, 1))
        for _ in range(30):
            sender.step()


def test_a_block_that_is_evicted_before_it_is_copied_does_not_arrive() -> None:
    sender = Machine(num_blocks=16, serves=True)
    way = Way(sender)
    receiver = Machine(peers=way)
    fetch = _asked_for(sender, receiver, way, list(range(40)))
    _evict_all(sender)
    fetch.arrive()
    assert fetch.ended and not fetch.taken
    receiver.run()
    assert receiver.tokens("a") == sender.tokens("a")


def test_a_block_that_is_evicted_while_it_is_copied_does_not_arrive() -> None:
    sender = Machine(num_blocks=16, serves=True)
    way = Way(sender)
    receiver = Machine(peers=way)
    fetch = _asked_for(sender, receiver, way, list(range(40)))

    def interrupt() -> None:
        sender.backend.on_read = lambda: None
        _evict_all(sender)

    sender.backend.on_read = interrupt
    fetch.arrive()
    assert fetch.ended and not fetch.taken
    receiver.run()
    assert receiver.tokens("a") == sender.tokens("a")
