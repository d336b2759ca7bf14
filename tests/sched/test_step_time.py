"""Steps are cut by predicted time: streams keep their pace, prompts get on."""

from __future__ import annotations

import random

import pytest
from helpers.drive import Machine, request
from helpers.simulated import (
    Simulation,
    fast_arithmetic,
    gaps_between,
    prompt,
    quantile,
    small_model,
)

from tidemill.sched.cost import Load, StepCost


def long_beside_streams(max_itl: float | None, shorts: int = 0) -> Simulation:
    sim = Simulation(max_itl=max_itl)
    for i in range(8):
        sim.at(0.0, request(f"s{i}", prompt(100, i), 900))
    sim.at(3.0, request("long", prompt(8000, 99), 4))
    for i in range(shorts):
        sim.at(5.0 + 3 * i, request(f"x{i}", prompt(200, 50 + i), 4))
    sim.run()
    return sim


@pytest.mark.parametrize(("max_itl", "bound"), [(None, 0.13), (0.2, 0.21), (0.1, 0.11)])
def test_a_long_prefill_leaves_streams_their_pace(max_itl: float | None, bound: float) -> None:
    sim = long_beside_streams(max_itl)
    end = sim.seen["long"].tokens[0]
    gaps = gaps_between(sim, [f"s{i}" for i in range(8)], 3.0, end)
    assert quantile(gaps, 0.99) <= bound
    # And it gets on. Alone it would take 22 s.
    assert end - 3.0 < 60


def _beside_16k(layers: int) -> tuple[float, float]:
    """Seconds to the long prompt's first token, and the streams' p99 gap meanwhile."""
    sim = Simulation(cost=fast_arithmetic, layers=layers)
    for i in range(8):
        sim.at(0.0, request(f"s{i}", prompt(100, i), 3000))
    sim.at(3.0, request("long", prompt(16_000, 99), 4))
    sim.at(9.0, request("short", prompt(200, 98), 4))
    sim.run(until=400)
    assert sim.seen["short"].ttft < 4.0
    end = sim.seen["long"].tokens[0]
    gaps = gaps_between(sim, [f"s{i}" for i in range(8)], 3.0, end)
    return end - 3.0, quantile(gaps, 0.99)


def test_a_few_layers_a_step_read_a_long_context_less_often() -> None:
    first, gap = _beside_16k(28)
    first_of_chunks, gap_of_chunks = _beside_16k(0)
    assert gap <= 0.135 < gap_of_chunks
    assert first < 0.5 * first_of_chunks


def test_a_long_prompt_does_not_keep_short_ones_waiting() -> None:
    sim = long_beside_streams(None, shorts=8)
    assert max(sim.seen[f"x{i}"].ttft for i in range(8)) < 1.2
    assert sim.seen["long"].ended is not None


def test_without_streams_prefill_takes_the_whole_budget() -> None:
    sim = Simulation()
    sim.at(0.0, request("warm", prompt(64, 1), 4))
    sim.at(1.0, request("a", prompt(2000, 2), 1))
    sim.run()
    largest = max(plan.num_tokens for plan, _ in sim.steps)
    assert largest == 512


def test_more_streams_than_the_bound_allows_wait() -> None:
    sim = Simulation(max_itl=0.08)
    for i in range(100):
        sim.at(0.0, request(f"r{i}", prompt(20, i), 60))
    sim.run(until=12.0)
    steps = [seconds for plan, seconds in sim.steps if len(plan.rows) > 8][20:]
    assert quantile(steps, 0.95) <= 0.085
    sim.run()
    assert all(seen.ended for seen in sim.seen.values())


@pytest.mark.parametrize("seed", range(3))
def test_the_cost_is_learned(seed: int) -> None:
    rng = random.Random(seed)
    cost = StepCost()
    errors = []
    for step in range(400):
        load = Load()
        for _ in range(rng.choice([1, 8, 16])):
            load.add(rng.randrange(100, 600), 1)
        if step % 3 == 0:
            load.add(rng.randrange(0, 12_000), rng.choice([8, 32, 64]))
        seconds = small_model(load) * rng.lognormvariate(0, 0.05)
        if rng.random() < 0.02:
            seconds *= 4  # a neighbour's doing
        elif step > 50:
            errors.append(abs(cost.predict(load) / seconds - 1))
        cost.observe(load, seconds)
    assert quantile(errors, 0.5) < 0.1 and quantile(errors, 0.9) < 0.25
    assert 1.0 <= cost.margin <= 1.4


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_cost_of_adapters_is_learned(seed: int) -> None:
    """Each adapter of a step costs its bytes once; steps without any are predicted as before."""
    rng = random.Random(seed)
    cost = StepCost()

    def load(rows: int, adapters: int) -> Load:
        found = Load()
        for i in range(rows):
            found.add(200, 1)
            found.add_adapter(1 + i % adapters if adapters else 0, 20_000_000 * (1 + i % 2))
        return found

    def seconds(load: Load) -> float:
        return 0.02 + 0.0015 * load.tokens + 60e-12 * load.adapter_bytes

    for _ in range(600):
        rows = rng.randint(1, 16)
        step = load(rows, rng.choice((0, 0, 1, rows)))
        cost.observe(step, seconds(step) * rng.uniform(0.98, 1.02))
    for rows, adapters in ((1, 0), (16, 0), (1, 1), (16, 1), (16, 16), (8, 8)):
        step = load(rows, adapters)
        assert cost.predict(step) == pytest.approx(seconds(step), rel=0.07), (rows, adapters)
    assert load(16, 16).plus(200, 1).adapter_bytes == load(16, 16).adapter_bytes == 16 * 30e6


def test_the_cost_follows_a_machine_that_becomes_slower() -> None:
    cost = StepCost()
    load = Load()
    load.add(300, 16)
    for _ in range(50):
        cost.observe(load, 0.05)
    for _ in range(40):
        cost.observe(load, 0.10)
    assert 0.08 < cost.predict(load) < 0.13


def test_chunks_shrink_with_depth_and_never_vanish() -> None:
    cost = StepCost()
    for start in (0, 1000, 4000, 8000, 16_000):
        for count in (1, 16, 64):
            load = Load().plus(start, count)
            for _ in range(4):
                cost.observe(load, small_model(load))
    chunks = [cost.longest_chunk(Load(), start, 512, 0.12) for start in (0, 4000, 16_000)]
    assert chunks == sorted(chunks, reverse=True) and chunks[0] > 60 and chunks[-1] < 16
    assert cost.longest_chunk(Load(), 40_000, 512, 0.001) == 0


def test_a_backend_without_times_is_cut_by_tokens() -> None:
    machine = Machine(max_step_tokens=32)
    machine.submit(request("s", prompt(4, 1), 20))
    machine.step()
    machine.submit(request("l", prompt(100, 2), 2))
    machine.run()
    chunks = [row.count for plan in machine.plans[1:] for row in plan.rows if len(plan.rows) > 1]
    assert max(chunks) == 8
    stats = machine.scheduler.stats()
    assert stats.predicted_seconds == stats.last_predicted_seconds == 0.0
