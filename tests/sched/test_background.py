"""Background requests use what no other wants, in simulated time."""

from __future__ import annotations

from helpers.drive import request
from helpers.simulated import Simulation, prompt, quantile


def batch(sim: Simulation, count: int, tokens: int, *, tenant: str = "a") -> None:
    for i in range(count):
        one = request(f"z{i}", prompt(150, 7000 + i), tokens, tenant=tenant, background=True)
        sim.at(0.0, one)


def people(sim: Simulation, count: int, begin: float, every: float = 0.7) -> None:
    for i in range(count):
        name = f"p{i}"
        sim.at(begin + i * every, request(name, prompt(200, 100 + i), 40, tenant=f"t{i % 3}"))


def seen_by_people(sim: Simulation) -> tuple[float, float]:
    """95th percentiles of the time to the first token, and of the gaps."""
    theirs = [seen for name, seen in sim.seen.items() if name.startswith("p")]
    assert all(seen.ended for seen in theirs)
    gaps = [gap for seen in theirs for gap in seen.gaps]
    return quantile([seen.ttft for seen in theirs], 0.95), quantile(gaps, 0.95)


def test_others_hardly_notice() -> None:
    alone = Simulation()
    people(alone, 40, 5.0)
    alone.run()
    beside = Simulation()
    batch(beside, 400, 64)
    people(beside, 40, 5.0)
    beside.run(until=40.0)
    done = sum(seen.ended is not None for n, seen in beside.seen.items() if n.startswith("z"))
    assert done > 20, "idle time was not used"
    beside.run()
    (ttft, gap), (ttft_beside, gap_beside) = seen_by_people(alone), seen_by_people(beside)
    assert ttft_beside <= 1.3 * ttft and gap_beside <= 1.25 * gap
    assert all(seen.ended for seen in beside.seen.values())


def test_alone_it_is_as_fast_as_any_other_work() -> None:
    def seconds(*, background: bool) -> float:
        sim = Simulation(num_blocks=300)
        for i in range(100):
            one = request(f"z{i}", prompt(150, i), 64, tenant="a", background=background)
            sim.at(0.0, one)
        sim.run()
        return sim.now

    assert seconds(background=True) <= 1.25 * seconds(background=False)


def test_it_goes_on_beside_a_stream_that_never_ends() -> None:
    sim = Simulation()
    sim.at(0.0, request("p0", prompt(50, 1), 3000, tenant="b"))
    batch(sim, 4, 16)
    sim.run(until=60.0)
    assert sum(seen.ended is not None for n, seen in sim.seen.items() if n.startswith("z")) == 4
    gaps = sim.seen["p0"].gaps
    assert quantile(gaps, 0.95) < 1.3 * quantile(gaps, 0.05)


def test_its_memory_and_slots_are_given_back_at_once() -> None:
    for bounds in ({"num_blocks": 60}, {"max_num_seqs": 4}):
        sim = Simulation(max_model_len=1000, **bounds)  # type: ignore[arg-type]
        batch(sim, 12, 400)
        sim.run(until=10.0)
        sim.at(sim.now, request("p0", prompt(300, 1), 200, tenant="a"))
        sim.at(sim.now, request("p1", prompt(300, 2), 200, tenant="b"))
        begun = sim.now
        sim.run(until=begun + 20.0)
        assert sim.seen["p0"].ttft < 1.0 and sim.seen["p1"].ttft < 1.5
        assert sim.scheduler.stats().preemptions > 0
        sim.run()
        assert all(len(s.tokens) == 400 for n, s in sim.seen.items() if n.startswith("z"))


def test_a_long_prompt_waits_for_no_background_work() -> None:
    sim = Simulation(num_blocks=100, max_model_len=3000)
    batch(sim, 10, 300)
    sim.run(until=5.0)
    sim.at(sim.now, request("p0", prompt(2500, 1), 4, tenant="a"))
    sim.run(until=sim.now + 10.0)
    assert sim.seen["p0"].ended


def test_tenants_share_the_background() -> None:
    sim = Simulation(max_num_seqs=4)
    batch(sim, 60, 32, tenant="a")
    for i in range(60):
        one = request(f"c{i}", prompt(150, 90_000 + i), 32, tenant="c", background=True)
        sim.at(0.0, one)
    sim.run(until=15.0)
    done = {
        k: sum(1 for n, seen in sim.seen.items() if n.startswith(k) and seen.ended) for k in "zc"
    }
    assert done["z"] > 5 and 0.6 < done["z"] / done["c"] < 1.6
