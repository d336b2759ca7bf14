"""Each request is told its share of the steps' time."""

from __future__ import annotations

import pytest
from helpers.drive import request
from helpers.simulated import Simulation, prompt


def _total(sim: Simulation) -> tuple[float, float]:
    """Seconds that requests were told, and those of all steps."""
    return sum(seen.computed for seen in sim.seen.values()), sum(s for _, s in sim.steps)


@pytest.mark.parametrize("layers", [0, 24])
def test_the_shares_are_the_whole(layers: int) -> None:
    """Also of prompts whose layers are computed over several steps. What is computed for a choice
    that has just ended is nobody's."""
    sim = Simulation(noise=0.1, layers=layers)
    for i in range(12):
        sim.at(0.2 * i, request(f"r{i}", prompt(100 + 250 * i, i), 30, tenant=f"t{i % 3}"))
    sim.run()
    told, computed = _total(sim)
    assert 0.97 * computed < told <= computed * 1.000001


def test_a_longer_prompt_and_more_choices_take_more() -> None:
    def computed(length: int, n: int = 1) -> float:
        sim = Simulation(noise=0.0)
        sim.at(0.0, request("r", prompt(length, 1), 20, n=n))
        sim.run()
        return sim.seen["r"].computed

    assert computed(2000) > 3 * computed(200)
    assert computed(200, 4) > computed(200)


def test_two_of_a_step_share_it() -> None:
    sim = Simulation(noise=0.0)
    for name in ("a", "b"):
        sim.at(0.0, request(name, prompt(64, ord(name)), 50))
    sim.run()
    one, other = sim.seen["a"].computed, sim.seen["b"].computed
    assert one == pytest.approx(other, rel=0.05)
