"""Between tenants: who is served, in simulated time."""

from __future__ import annotations

import pytest
from helpers.drive import Machine, request
from helpers.simulated import Simulation, prompt, quantile

from tidemill.base.errors import ErrorKind
from tidemill.sched.fairness import Tenants


def one_at_a_time(sim: Simulation, count: int, tokens: int) -> None:
    """Tenant b: the next request 10 ms after the end of the last one."""
    left = iter(range(count))

    def send(ended: str = "b") -> None:
        i = next(left, None) if ended.startswith("b") else None
        if i is not None:
            one = request(f"b{i}", prompt(200, 1000 + i), tokens, tenant="b")
            sim.at(sim.now + 0.01, one)

    sim.on_end = send
    send()


def flood(sim: Simulation, name: str, count: int, tokens: int, weight: float = 1.0) -> None:
    for i in range(count):
        one = request(
            f"{name}{i}",
            prompt(200, ord(name) * 1000 + i),
            tokens,
            tenant=name,
            weight=weight,
            arrival=i / 1000,
        )
        sim.at(sim.now, one)


def test_a_client_with_few_requests_beside_one_with_many() -> None:
    alone = Simulation()
    one_at_a_time(alone, 20, 32)
    alone.run()
    usual = quantile([seen.ttft for seen in alone.seen.values()], 0.95)
    sim = Simulation()
    flood(sim, "a", 200, 64)
    sim.run(until=2.0)
    one_at_a_time(sim, 20, 32)
    sim.run()
    mine = [seen.ttft for name, seen in sim.seen.items() if name.startswith("b")]
    assert quantile(mine, 0.95) <= 2 * usual
    # The many are not made to wait for it: their own work takes what it takes.
    assert max(seen.ended or 0 for seen in sim.seen.values()) < 95


def test_many_short_requests_in_a_row_get_no_more_than_their_share() -> None:
    sim = Simulation()
    flood(sim, "a", 200, 64)
    sim.run(until=2.0)
    one_at_a_time(sim, 1000, 1)
    begun = len(sim.steps)
    sim.run(until=32.0)
    seq_ids = {s.seq_id for plan, _ in sim.steps for s in plan.new if s.request_id[0] == "b"}
    tokens = {True: 0, False: 0}
    for plan, _ in sim.steps[begun:]:
        for row in plan.rows:
            tokens[row.seq_id in seq_ids] += row.count
    assert 0.3 < tokens[True] / (tokens[True] + tokens[False]) < 0.6


def test_weights_are_shares() -> None:
    sim = Simulation()
    flood(sim, "a", 300, 8, weight=1.0)
    flood(sim, "c", 300, 8, weight=3.0)
    sim.run(until=40.0)
    done = {
        name: sum(1 for n, seen in sim.seen.items() if n.startswith(name) and seen.ended)
        for name in "ac"
    }
    assert done["a"] > 10 and 2.3 < done["c"] / done["a"] < 3.7


def test_slots_are_shared() -> None:
    sim = Simulation(max_num_seqs=4)
    flood(sim, "a", 12, 400)
    sim.run(until=5.0)
    sim.at(sim.now, request("b", prompt(50, 1), 4, tenant="b"))
    sim.run()
    assert sim.seen["b"].ttft < 0.2
    assert all(seen.ended and len(seen.tokens) == 400 for n, seen in sim.seen.items() if n != "b")


def test_memory_is_shared() -> None:
    sim = Simulation(num_blocks=40, max_model_len=1000)
    flood(sim, "a", 12, 300)
    sim.run(until=12.0)
    assert sim.scheduler.memory.num_free < 7
    sim.at(sim.now, request("b", prompt(200, 1), 4, tenant="b"))
    sim.run()
    assert sim.seen["b"].ttft < 0.5
    assert all(seen.ended for seen in sim.seen.values())


def test_priorities_count_within_a_tenant_alone() -> None:
    machine = Machine(max_num_seqs=1)
    machine.submit(
        request("a1", [1, 2], 2, tenant="a", arrival=1.0),
        request("a2", [1, 3], 2, tenant="a", arrival=2.0, priority=-5),
        request("b1", [1, 4], 2, tenant="b", arrival=3.0, priority=9),
    )
    machine.run()
    order = [name for name, _ in machine.collected]
    assert order.index("a2") < order.index("a1")
    assert order.index("b1") < order.index("a1")


def test_deficits_are_bounded_and_idle_tenants_forgotten() -> None:
    tenants = Tenants()
    tenants.enter("a", 1.0)
    tenants.enter("b", 1.0)
    tenants.charge("a", 100_000)
    assert tenants.deficit("a") == -2048 and tenants.deficit("b") == 512
    for i in range(10_000):
        tenants.enter(f"t{i}", 2.0)
        tenants.leave(f"t{i}", float(i))
    tenants.check()
    assert len(tenants) == 2
    assert tenants.share("a") == 0.5
    assert tenants.competing(1e9)
    tenants.leave("b", 100.0)
    assert tenants.competing(105.0) and not tenants.competing(1e6)


def test_of_tenants_that_are_owed_alike_the_one_whose_turn_is_longest_ago_is_served() -> None:
    tenants = Tenants()
    for name in "abcd":
        tenants.enter(name, 1.0)
        tenants.charge(name, 10)
    tenants.charge("d", 10_000)  # the others are owed more than is remembered, so alike
    turns = []
    for _ in range(6):
        turns.append(tenants.pick("abc").name)
        tenants.record_turn(turns[-1])
    assert turns[:3] == turns[3:] and sorted(turns[:3]) == ["a", "b", "c"]


def test_who_makes_room_for_another_tenant_is_never_the_oldest() -> None:
    machine = Machine(max_num_seqs=2, num_blocks=64)
    machine.submit(
        request("a1", [1] * 5, 30, tenant="a", arrival=1.0),
        request("a2", [2] * 9, 30, tenant="a", arrival=2.0),
    )
    machine.step()
    machine.submit(request("b", [3] * 5, 4, tenant="b", arrival=3.0))
    machine.run()
    preemptions = {}
    for name in ("a1", "a2", "b"):
        timings = machine.collected[name, 0].terminal[0].timings
        assert timings is not None
        preemptions[name] = timings.preemptions
    assert preemptions["a1"] == preemptions["b"] == 0 and preemptions["a2"] > 0


@pytest.mark.parametrize(("others", "deficit"), [(4095, -488.0), (4096, 512.0)])
def test_of_idle_tenants_the_latest_are_remembered(others: int, deficit: float) -> None:
    tenants = Tenants()
    tenants.enter("a", 1.0)
    tenants.enter("b", 1.0)
    tenants.charge("b", 2000)
    tenants.leave("b", 1.0)
    for i in range(others):
        tenants.enter(f"t{i}", 1.0)
        tenants.leave(f"t{i}", 2.0)
    tenants.enter("b", 1.0)
    assert tenants.deficit("b") == deficit


@pytest.mark.parametrize("started", [False, True])
def test_the_time_in_the_queue_is_limited(started: bool) -> None:
    machine = Machine(max_num_seqs=1 + started)
    machine.submit(request("first", [5] * 5, 30))
    machine.step()
    machine.submit(request("late", [6] * 5, 30, start_by=10.0))
    machine.step()
    machine.now = 11.0
    machine.take(machine.scheduler.expire())
    ended = machine.collected["late", 0].terminal if ("late", 0) in machine.collected else []
    assert bool(ended) is not started
    if ended:
        assert ended[0].error is not None and ended[0].error.kind == ErrorKind.OVERLOADED
        assert "--max-queue-time" in ended[0].error.message
        assert machine.scheduler.stats().queue_expired == 1
    machine.run()


def test_a_weight_must_be_a_positive_number() -> None:
    machine = Machine()
    machine.submit(request("x", [1, 2], 2, weight=0.0), request("y", [1], 2, weight=float("nan")))
    for name in "xy":
        error = machine.collected[name, 0].terminal[0].error
        assert error is not None and error.param == "weight"
